/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The DMA engine of a simulated drive (sim_dma_engine) over CUDA's copy
 * engines and copy kernels.
 */
#ifndef SIM_GPU_SIM_CUDA_DMA_H
#define SIM_GPU_SIM_CUDA_DMA_H

#include "sim/sim_dma_engine.h"

#ifdef __cplusplus
extern "C" {
#endif

struct sim_cuda_dma;

/*
 * It is opened for a GPU when memory of that GPU is mapped for the first time. NULL: no memory, or
 * a build without CUDA.
 */
struct sim_cuda_dma *sim_cuda_dma_new(void);
/* Precondition: no drive has memory of the GPU mapped. NULL does nothing. */
void sim_cuda_dma_free(struct sim_cuda_dma *m);
/* For sim_set_dma_engine(). NULL of NULL. */
const struct sim_dma_engine *sim_cuda_dma_table(const struct sim_cuda_dma *m);

#ifdef __cplusplus
}
#endif

#endif
