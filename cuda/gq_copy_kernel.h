/*
 * Small copies between pinned host memory and a GPU's memory, by a kernel that stays: it takes
 * batches out of mailboxes in host memory (gq_mailbox.h), and says in host memory how many it has
 * done. A launch for each batch would do as well, were it not that launches wait behind every warp
 * that polls host memory.
 *
 * The kernel ends by itself when it has had nothing to do for a while, or has been there for 0.1 s,
 * and is launched again with the next batch; so calls that wait for running kernels wait no longer.
 */
#ifndef CUDA_GQ_COPY_KERNEL_H
#define CUDA_GQ_COPY_KERNEL_H

#include <cuda_runtime_api.h>

#include "cuda/gq_mailbox.h"

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t gq_copy_kernel_load(void);
cudaError_t gq_copy_kernel_run(const struct gq_copy_kernel_launch *l, unsigned blocks,
                               cudaStream_t stream);

/* A kernel and its mailboxes; used by one thread. */
struct gq_copy_kernel;

/* On the current device. blocks: 1 to GQ_COPY_KERNEL_BLOCKS. -ENOMEM, -EIO. */
int gq_copy_kernel_open(unsigned blocks, struct gq_copy_kernel **out);
/* Waits for the kernel to end. No copy may be under way. */
void gq_copy_kernel_close(struct gq_copy_kernel *c);

/*
 * n copies that it takes (gq_copy_kernel_takes()): 0 and a ticket; -EAGAIN when the mailboxes have
 * no room for all now, -ENOSPC when they never have; -EIO, and ever after, when a launch has
 * failed.
 */
int gq_copy_kernel_submit(struct gq_copy_kernel *c, const struct gq_gather *copies, unsigned n,
                          struct gq_copy_kernel_ticket *ticket);
/* 1: done and visible to the device (copies from it: to the host), 0: not yet, -EIO. */
int gq_copy_kernel_poll(struct gq_copy_kernel *c, const struct gq_copy_kernel_ticket *ticket);

#ifdef __cplusplus
}
#endif

#endif
