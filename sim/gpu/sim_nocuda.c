/* SPDX-License-Identifier: BSD-2-Clause */
/* The DMA engine in a build without a CUDA toolkit: it cannot be opened. */
#include <errno.h>

#include "sim/gpu/sim_cuda_dma.h"

int sim_cuda_dma_open(int cuda_device, struct sim_cuda_dma **out)
{
    (void)cuda_device;
    (void)out;
    return -ENODEV;
}

void sim_cuda_dma_close(struct sim_cuda_dma *m)
{
    (void)m;
}

const struct sim_dma_engine *sim_cuda_dma_table(const struct sim_cuda_dma *m)
{
    (void)m;
    return NULL;
}

struct sim_peer_windows *sim_cuda_dma_peer_windows(struct sim_cuda_dma *m, unsigned *blocks)
{
    (void)m;
    *blocks = 0;
    return NULL;
}
