/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Has the library choose a GPU among those of the mount and of the process,
 * which a test sets. The rig is in C, because the library's headers are C11. A
 * UUID is 16 times one byte.
 */
#ifndef TESTS_CLIENT_MOUNT_GPU_RIG_H
#define TESTS_CLIENT_MOUNT_GPU_RIG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

struct mount_gpu_rig {
    const char *mount;   /* UUID byte of each GPU that the mount serves */
    const char *lost;    /* those of them that are lost */
    const char *process; /* UUID byte of each device that the process sees, by ordinal */
    int current;         /* device of the current context, or -1 */
    bool cpu;            /* the mount has the CPU executor */
};
/* Returns the device, -1 for no CUDA device, or -errno. Stores the lease tier. */
int mount_gpu_rig_choose(const struct mount_gpu_rig *rig, uint32_t *lease_tier);

__END_DECLS

#endif
