/* How a software controller reaches CUDA memory: nvme_mover over copy engines and a kernel. */
#ifndef CUDA_GQ_MOVER_H
#define CUDA_GQ_MOVER_H

#include "blockdev/transport.h"

struct gq_mover;
struct gq_routes;

/* The device's kernels must be loaded (gq_kernels_load). -ENOMEM, -EIO. */
int gq_mover_open(int cuda_device, struct gq_mover **out);
/* No copy may be under way. */
void gq_mover_close(struct gq_mover *m);
const struct nvme_mover *gq_mover_table(const struct gq_mover *m);
/* Its routes, and how many blocks a channel's copier should have on this device. */
struct gq_routes *gq_mover_routes(struct gq_mover *m, unsigned *blocks);

#endif
