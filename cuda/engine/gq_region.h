/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A region is memory mapped for the controller, with the PRP entries for every
 * transfer (gq_prp.h).
 */
#ifndef CUDA_ENGINE_GQ_REGION_H
#define CUDA_ENGINE_GQ_REGION_H

#include "blockdev/nvme/nvme.h"
#include "cuda/gq_exec.h"
#include "cuda/queue/gq_prp.h"

struct gq_region {
    uint64_t iova; /* IOVA of the first page; the region is contiguous */
    uint64_t base; /* the executor's address of the first page */
    uint64_t pages;
    struct nvme_dma prps;
    bool revoked;
};

/* Maps whole pages and builds the table. Returns 0, -ENOMEM or an error of map(). */
int gq_region_map(struct nvme_ctrlr *c, const struct gq_import *imp, enum nvme_map_for purpose,
                  struct gq_region *out);
/*
 * Unmaps the memory from a controller that has failed for good.
 * gq_region_unmap() must still be called.
 */
void gq_region_revoke(struct nvme_ctrlr *c, struct gq_region *r);
/*
 * Unmaps and frees the table. On an error the controller may still reach the
 * memory, which must not be freed.
 */
int gq_region_unmap(struct nvme_ctrlr *c, struct gq_region *r);

#endif
