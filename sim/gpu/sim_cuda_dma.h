/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The DMA engine of a simulated drive (sim_dma_engine) over CUDA's copy
 * engines and copy kernels.
 */
#ifndef SIM_GPU_SIM_CUDA_DMA_H
#define SIM_GPU_SIM_CUDA_DMA_H

#include "sim/sim_dma_engine.h"

struct sim_cuda_dma;
struct sim_peer_windows;

/* Loads its kernels. -ENOMEM, -EIO. */
int sim_cuda_dma_open(int cuda_device, struct sim_cuda_dma **out);
/* Precondition: no copy in flight. */
void sim_cuda_dma_close(struct sim_cuda_dma *m);
const struct sim_dma_engine *sim_cuda_dma_table(const struct sim_cuda_dma *m);
/*
 * Its peer windows; *blocks: blocks of the copy kernel of one channel on this
 * device.
 */
struct sim_peer_windows *sim_cuda_dma_peer_windows(struct sim_cuda_dma *m, unsigned *blocks);

#endif
