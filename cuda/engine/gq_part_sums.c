/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Allocates memory for gq_readv.part_sums: staging for one block per lane, the
 * table of checksums, and words for the pieces of a slice of each workspace.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/engine/gq_internal.h"
#include "cuda/gq_sum_fill.h"

static int open_table(struct gq_engine *e)
{
    struct gq_part_sums *p = &e->part_sums;
    struct gq_sum_table *table = malloc(sizeof(*table));

    if (!table)
        return -ENOMEM;
    gq_sum_fill(table);
    int err = e->exec->ops->staging_alloc(e->exec, sizeof(*table), false, &p->table);
    if (!err) {
        err = e->exec->ops->put(e->exec, p->table.base, table, sizeof(*table));
        if (err)
            e->exec->ops->staging_free(e->exec, &p->table);
    }
    free(table);
    return err;
}

static int open_words(struct gq_engine *e)
{
    size_t len = (size_t)e->n_workspaces * GQ_PART_PIECES * 2 * sizeof(uint32_t);

    return e->exec->ops->shared_alloc(e->exec, len, (void **)&e->part_sums.words);
}

static int part_sums_open(struct gq_engine *e)
{
    struct gq_part_sums *p = &e->part_sums;
    size_t len = (size_t)e->n_queues * GQ_STAGING_LANES * GQ_SUM_BLOCK;
    int err = open_table(e);

    if (err)
        return err;
    err = gq_staging_open(e, len, &p->staging);
    if (err)
        goto free_table;
    err = open_words(e);
    if (!err)
        return 0;
    p->words = NULL;
    gq_staging_close(e, &p->staging);
free_table:
    e->exec->ops->staging_free(e->exec, &p->table);
    return err;
}

int gq_engine_sum_parts(struct gq_engine *e)
{
    int err;

    if (e->stages || e->part_sums.words)
        return 0;
    e->exec->ops->quiesce(e->exec); /* another engine may have runs on the device */
    err = part_sums_open(e);
    e->exec->ops->resume(e->exec);
    return err;
}

void gq_part_sums_close(struct gq_engine *e)
{
    struct gq_part_sums *p = &e->part_sums;

    if (!p->words)
        return;
    e->exec->ops->shared_free(e->exec, p->words);
    gq_staging_close(e, &p->staging);
    e->exec->ops->staging_free(e->exec, &p->table);
}

void gq_part_sums_use(const struct gq_engine *e, unsigned workspace, uint64_t n,
                      struct gq_reads *reads)
{
    const struct gq_part_sums *p = &e->part_sums;

    reads->sums.table = (const struct gq_sum_table *)(uintptr_t)p->table.base;
    reads->part_sums = p->words + (size_t)workspace * GQ_PART_PIECES * 2;
    memset(reads->part_sums, 0, n * 2 * sizeof(uint32_t));
    reads->staging = gq_staging_target(&p->staging);
    reads->lane_staging = GQ_SUM_BLOCK;
    reads->queue_area = GQ_STAGING_LANES * GQ_SUM_BLOCK;
}
