/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Maps regions of memory for the controller and builds their tables of PRP
 * entries. Allocates staging of an engine, which is mapped, too.
 */
#include <errno.h>

#include "cuda/engine/gq_internal.h"

static uint64_t table_pages(uint64_t pages)
{
    return (pages + NVME_PRP_PER_PAGE - 1) / NVME_PRP_PER_PAGE;
}

/* A thread of a controller in software may load an entry for a command of another process. */
static void build_table(struct gq_region *r)
{
    uint64_t *table = r->prps.addr;

    for (uint64_t page = 0; page < r->pages; page++)
        __atomic_store_n(&table[page], r->iova + page * NVME_PAGE_SIZE, __ATOMIC_RELAXED);
}

int gq_region_map(struct nvme_ctrlr *c, const struct gq_import *imp, enum nvme_map_for purpose,
                  struct gq_region *out)
{
    int err;

    *out = (struct gq_region){
        .base = imp->base,
        .pages = imp->mem.len / NVME_PAGE_SIZE,
    };
    assert(out->base % NVME_PAGE_SIZE == 0 && imp->mem.len % NVME_PAGE_SIZE == 0);
    err = nvme_dma_alloc(c, table_pages(out->pages) * NVME_PAGE_SIZE, &out->prps);
    if (err)
        return err;
    err = nvme_map(c, &imp->mem, purpose, &out->iova);
    if (err) {
        nvme_dma_free(c, &out->prps);
        return err;
    }
    build_table(out);
    return 0;
}

void gq_region_revoke(struct nvme_ctrlr *c, struct gq_region *r)
{
    r->revoked = r->revoked || nvme_unmap(c, r->iova) != -ETIMEDOUT;
}

int gq_region_unmap(struct nvme_ctrlr *c, struct gq_region *r)
{
    int err = r->revoked ? 0 : nvme_unmap(c, r->iova);

    if (err == -ETIMEDOUT) /* a software controller's copies are under way */
        return err;
    nvme_dma_free(c, &r->prps);
    return 0;
}

/* --- Staging --------------------------------------------------------------------------------- */

int gq_staging_map(struct gq_engine *e, struct gq_staging *s)
{
    int err = gq_region_map(e->ctrlr, &s->mem, NVME_MAP_LEASE, &s->region);

    if (err)
        e->exec->ops->staging_free(e->exec, &s->mem);
    return err;
}

int gq_staging_open(struct gq_engine *e, size_t len, struct gq_staging *s)
{
    bool host = e->stages || !gq_cqe_covers_device(nvme_ctrlr_transport(e->ctrlr));
    int err = e->exec->ops->staging_alloc(e->exec, len, host, &s->mem);

    return err ? err : gq_staging_map(e, s);
}

void gq_staging_close(struct gq_engine *e, struct gq_staging *s)
{
    if (!gq_region_unmap(e->ctrlr, &s->region))
        e->exec->ops->staging_free(e->exec, &s->mem);
    else
        e->exec->in_reach = true;
}
