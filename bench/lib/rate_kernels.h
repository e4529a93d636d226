/* SPDX-License-Identifier: BSD-2-Clause */
/* The kernels of rate_bench: ways to drive queue pairs, and a controller that runs on the GPU. */
#ifndef BENCH_LIB_RATE_KERNELS_H
#define BENCH_LIB_RATE_KERNELS_H

#include <cuda_runtime_api.h>

#include "cuda/queue/gq_reads.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Our protocol: a warp owns a queue pair. run.n_queues warps. */
cudaError_t rate_warp_owned(const struct gq_run *run, const struct gq_port *ports,
                            struct gq_state *states, cudaStream_t stream);

/* The same for reads (gq_reads_protocol.h). */
cudaError_t rate_warp_reads(const struct gq_run *run, const struct gq_reads *reads,
                            const struct gq_port *ports, struct gq_state *states,
                            cudaStream_t stream);

/*
 * The reference point: a block of `batch` threads owns a queue pair and sends that many commands at
 * a time (batch < depth), each thread one; a barrier, one doorbell; each thread waits for the
 * completion at its own position; a barrier, and the next batch. The queues must be fresh (head,
 * tail 0, phase 1). states[].outcome is GQ_OUT_TIMED_OUT after command_ns without a completion.
 */
cudaError_t rate_block_owned(const struct gq_run *run, const struct gq_port *ports,
                             struct gq_state *states, unsigned batch, cudaStream_t stream);

/*
 * Completes every command of queues in GPU memory at once, a warp a queue, until *stop is not zero
 * (GPU memory). served[i] is how many.
 */
cudaError_t rate_serve(const struct gq_port *ports, unsigned n_queues, const uint32_t *stop,
                       uint64_t *served, cudaStream_t stream);

/* Loads the kernels: while a resident one runs, the first launch of another would wait for it. */
cudaError_t rate_load(void);

#ifdef __cplusplus
}
#endif

#endif
