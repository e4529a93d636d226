/* SPDX-License-Identifier: BSD-2-Clause */
/* Allocates staging of an engine and maps it for the controller. */
#include "cuda/engine/gq_internal.h"

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
