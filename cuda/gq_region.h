/*
 * Memory that the controller reaches, with the PRP lists for every transfer into it.
 *
 * The lists of a region are one table, built once: entry i is the address of page i, 511 entries
 * to a list page, whose last entry points to the next list page. A list may start at any entry,
 * so a command needs no list of its own, only the address of the entry of its second page.
 */
#ifndef CUDA_GQ_REGION_H
#define CUDA_GQ_REGION_H

#include "blockdev/nvme.h"
#include "cuda/gq_exec.h"

#define GQ_PRP_DATA (NVME_PRP_PER_PAGE - 1) /* entries of a list page beside the chain pointer */

struct gq_region {
    uint64_t iova; /* of the first page; the region is contiguous from there */
    uint64_t base; /* the first page, as the executor addresses it */
    uint64_t pages;
    struct nvme_dma prps;
};

/* Maps whole pages and builds the table. Errors: those of map(), -ENOMEM. */
int gq_region_map(struct nvme_ctrlr *c, const struct gq_import *imp, struct gq_region *out);
void gq_region_unmap(struct nvme_ctrlr *c, struct gq_region *r);

/*
 * How much of a transfer of len bytes at byte off of the region one command may carry. A list
 * that ended exactly in the chain entry would be read as a page address there, so such a
 * transfer is cut before its last page, to a multiple of lba_size. len is one already.
 */
uint64_t gq_region_clip(uint64_t off, uint64_t len, uint32_t lba_size);

/* Sets prp1 and prp2. len as gq_region_clip() allows; off a multiple of 4. */
void gq_region_prps(const struct gq_region *r, uint64_t off, uint64_t len, struct gq_cmd *cmd);

#endif
