/* SPDX-License-Identifier: BSD-2-Clause */
/* Chooses the GPU of a program's allocations and leases among those of the mount. */
#ifndef CLIENT_LIB_MOUNT_GPU_H
#define CLIENT_LIB_MOUNT_GPU_H

#include "client/lib/client_internal.h"

struct mount_gpu {
    int device; /* ordinal in this process; CUDA_NO_DEVICE on a mount without CUDA */
    uint32_t lease_tier;
};

/*
 * Chooses the device of the calling thread's current CUDA context if the mount
 * serves it, otherwise the first GPU of the mount that is not lost and that this
 * process sees. Returns -ENODEV if there is none.
 */
int mount_gpu_choose(struct connection *g, struct mount_gpu *out);

#endif
