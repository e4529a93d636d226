/*
 * The DMA engine of a simulated drive (nvme_dma_engine) over CUDA's copy
 * engines and copy kernels.
 */
#ifndef CUDA_GQ_DMA_ENGINE_H
#define CUDA_GQ_DMA_ENGINE_H

#include "blockdev/transport.h"

struct gq_dma_engine;
struct gq_peer_windows;

/* The device's kernels must be loaded (gq_kernels_load). -ENOMEM, -EIO. */
int gq_dma_engine_open(int cuda_device, struct gq_dma_engine **out);
/* Precondition: no copy in flight. */
void gq_dma_engine_close(struct gq_dma_engine *m);
const struct nvme_dma_engine *gq_dma_engine_table(const struct gq_dma_engine *m);
/*
 * Its peer windows; *blocks: blocks of the copy kernel of one channel on this
 * device.
 */
struct gq_peer_windows *gq_dma_engine_peer_windows(struct gq_dma_engine *m, unsigned *blocks);

#endif
