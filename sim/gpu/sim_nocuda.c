/* SPDX-License-Identifier: BSD-2-Clause */
/* Replaces the DMA engine in a build without a CUDA toolkit. */
#include "sim/gpu/sim_cuda_dma.h"

struct sim_cuda_dma *sim_cuda_dma_new(void)
{
    return NULL;
}

void sim_cuda_dma_free(struct sim_cuda_dma *m)
{
    (void)m;
}

const struct sim_dma_engine *sim_cuda_dma_table(const struct sim_cuda_dma *m)
{
    (void)m;
    return NULL;
}
