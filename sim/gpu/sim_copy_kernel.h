/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Copies small blocks between pinned host memory and a GPU's memory by a
 * persistent kernel. The kernel takes batches from tagged slots in host memory
 * (sim_copy_slots.h) and stores the number of finished batches to host memory.
 * Launching a kernel for each batch would be slower, because launches wait
 * behind each warp that polls host memory.
 *
 * The kernel ends after an idle time, or after 0.1 s, and is launched again
 * with the next batch. Calls that wait for running kernels therefore wait for a
 * bounded time.
 */
#ifndef SIM_GPU_SIM_COPY_KERNEL_H
#define SIM_GPU_SIM_COPY_KERNEL_H

#include <cuda_runtime_api.h>
#include <sys/cdefs.h>

#include "sim/gpu/sim_copy_slots.h"

__BEGIN_DECLS

/*
 * Loads both kernels in advance, because the first launch of one would load it
 * and wait for running kernels.
 */
cudaError_t sim_copy_kernel_load(void);
/*
 * Launches the kernel that makes copies of any size and alignment. `copies` is
 * pinned and valid until that kernel has ended.
 */
cudaError_t sim_gather_run(const struct sim_gather *copies, uint32_t n, cudaStream_t stream);
cudaError_t sim_copy_kernel_run(const struct sim_copy_kernel_launch *l, unsigned blocks,
                                cudaStream_t stream);

/* Represents a kernel and its slots. Only one thread uses the struct. */
struct sim_copy_kernel;

/*
 * Opens a copy kernel with 1 to SIM_COPY_KERNEL_BLOCKS blocks on the current
 * device. Returns 0, -ENOMEM or -EIO.
 */
int sim_copy_kernel_open(unsigned blocks, struct sim_copy_kernel **out);
/* Waits for the end of the kernel. No copy may be in flight. */
void sim_copy_kernel_close(struct sim_copy_kernel *c);

/*
 * Posts n copies that satisfy sim_copy_kernel_takes(). Returns 0 and a ticket,
 * -EAGAIN if there is no room at present, -ENOSPC if all slots together are too
 * small, and -EIO if a launch has failed, which is permanent.
 */
int sim_copy_kernel_submit(struct sim_copy_kernel *c, const struct sim_gather *copies, unsigned n,
                           struct sim_copy_kernel_ticket *ticket);
/*
 * Returns 1 if the copies are done and visible to the device (or to the host,
 * for copies from the device), 0 if they are in flight, or -EIO.
 */
int sim_copy_kernel_poll(struct sim_copy_kernel *c, const struct sim_copy_kernel_ticket *ticket);

__END_DECLS

#endif
