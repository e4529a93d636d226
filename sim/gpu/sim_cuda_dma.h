/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the DMA engine of a simulated drive (sim_dma_engine) over CUDA's
 * copy engines and copy kernels.
 */
#ifndef SIM_GPU_SIM_CUDA_DMA_H
#define SIM_GPU_SIM_CUDA_DMA_H

#include <sys/cdefs.h>

#include "sim/sim_dma_engine.h"

__BEGIN_DECLS

struct sim_cuda_dma;

/*
 * Creates an engine. It is opened for a GPU when memory of that GPU is mapped
 * for the first time. Returns NULL if memory is exhausted, and in a build
 * without CUDA.
 */
struct sim_cuda_dma *sim_cuda_dma_new(void);
/*
 * Frees the engine. No drive may have memory of the GPU mapped. NULL does
 * nothing.
 */
void sim_cuda_dma_free(struct sim_cuda_dma *m);
/* Returns the table for sim_set_dma_engine(), or NULL for NULL. */
const struct sim_dma_engine *sim_cuda_dma_table(const struct sim_cuda_dma *m);

__END_DECLS

#endif
