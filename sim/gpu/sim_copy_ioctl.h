/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Private part of the mount's interface (gpunvme/gpunvme_ioctl.h), between
 * libgpunvme and the daemon of the same version: copy kernels of applications
 * on a simulated drive. Reads on leased queues are correct without it, and
 * slower.
 */
#ifndef SIM_GPU_SIM_COPY_IOCTL_H
#define SIM_GPU_SIM_COPY_IOCTL_H

#include "gpunvme/gpunvme_ioctl.h"

/*
 * Request on the mount's socket for a lease of queues, answered by struct
 * gpunvme_reply_copy_kernel and two descriptors: the memory of the mailboxes
 * (sim/gpu/sim_mailbox.h), and the file of the drive's media, read-only. The
 * socket closes instead if the drive is not simulated or the executor not CUDA.
 */
#define GPUNVME_ASK_COPY_KERNEL 3u

struct gpunvme_reply_copy_kernel {
    uint64_t len;       /* of the first descriptor's memory, bytes */
    uint64_t media_len; /* of the second one's */
    uint32_t layout;    /* GPUNVME_COPY_KERNEL_LAYOUT: of the mailboxes */
    uint32_t sets;      /* number of mailboxes, each with a kernel while it has work */
    uint32_t blocks;    /* of each kernel */
    uint32_t reserved[5];
};
#define GPUNVME_COPY_KERNEL_LAYOUT 4u

/*
 * The copy kernel of the lease makes reads into a buffer, until the end of the
 * buffer or of the lease, or until it has run for a second without progress;
 * after that the daemon makes them, as it does while the GPU has no room for
 * the kernel. -ENOENT (lease, buffer, no copy kernel),
 * -ENOTSUP (a buffer that is not in GPU memory that the drive reaches),
 * -EACCES, -EINVAL, -ENOSPC. If the socket has closed instead of a reply:
 * -EDQUOT: this user has the maximum of copy kernels; -EBUSY: all copy kernels
 * of the mount are in use.
 */
struct gpunvme_ioc_copy_kernel {
    struct gpunvme_abi abi;
    uint64_t lease_id; /* of queues */
    uint64_t lease_key;
    uint64_t id; /* of the buffer */
    uint64_t key;
    uint64_t addr;  /* of the buffer's first page in the caller, as BUFFER_IOVA takes it */
    uint64_t media; /* of the first byte of the media, for the copy kernel */
    uint32_t flags; /* 0 */
    uint32_t reserved;
};

#define GPUNVME_IOC_COPY_KERNEL _IOWR('G', 0x6c, struct gpunvme_ioc_copy_kernel)

static_assert(sizeof(struct gpunvme_reply_copy_kernel) == sizeof(struct gpunvme_reply),
              "one size of replies");
static_assert(sizeof(struct gpunvme_ioc_copy_kernel) == 64, "copy kernel");
static_assert(offsetof(struct gpunvme_ioc_copy_kernel, media) == 48, "copy kernel");

#endif
