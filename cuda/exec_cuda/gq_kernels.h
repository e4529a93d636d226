/* SPDX-License-Identifier: BSD-2-Clause */
/* Launches the kernels from C, asynchronously on the given stream. */
#ifndef CUDA_EXEC_CUDA_GQ_KERNELS_H
#define CUDA_EXEC_CUDA_GQ_KERNELS_H

#include <cuda_runtime_api.h>
#include <sys/cdefs.h>

#include "cuda/gq.h"

__BEGIN_DECLS

/* Passed to the kernel by value, so that no read over the bus is needed. */
struct gq_kernel_run {
    struct gq_run run;
    const struct gq_port *ports;    /* device memory, by queue number */
    struct gq_state *states;        /* mapped host memory, by rank */
    uint16_t queues[GQ_MAX_QUEUES]; /* queue numbers, by rank */
};

/*
 * Loads every kernel. Otherwise CUDA would load each one at its first launch,
 * which waits for running kernels, and one of them may wait for this very
 * launch.
 */
cudaError_t gq_kernels_load(void);

/* Launches one block per queue of the run. */
cudaError_t gq_kernel_run(const struct gq_kernel_run *run, const struct gq_reads *reads,
                          cudaStream_t stream);

/* Loads the kernel for gq_exec_ops.sums, and stores the table that it uses. */
cudaError_t gq_sums_load(void);
/*
 * Launches that kernel for n parts. `at` holds offsets from base; NULL means
 * that the parts are contiguous. Both arrays are pinned and have n entries.
 */
cudaError_t gq_sums_launch(uint64_t base, const uint64_t *at, uint32_t n, uint32_t *sums,
                           cudaStream_t stream);

__END_DECLS

#endif
