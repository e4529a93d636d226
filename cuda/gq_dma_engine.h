/* How a software controller reaches CUDA memory: nvme_dma_engine over copy engines and a kernel. */
#ifndef CUDA_GQ_MOVER_H
#define CUDA_GQ_MOVER_H

#include "blockdev/transport.h"

struct gq_dma_engine;
struct gq_peer_windows;

/* The device's kernels must be loaded (gq_kernels_load). -ENOMEM, -EIO. */
int gq_dma_engine_open(int cuda_device, struct gq_dma_engine **out);
/* No copy may be under way. */
void gq_dma_engine_close(struct gq_dma_engine *m);
const struct nvme_dma_engine *gq_dma_engine_table(const struct gq_dma_engine *m);
/* Its peer windows, and how many blocks a channel's copy kernel should have on this device. */
struct gq_peer_windows *gq_dma_engine_peer_windows(struct gq_dma_engine *m, unsigned *blocks);

#endif
