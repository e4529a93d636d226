/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the volatile write cache. The media has the newest data. A sparse
 * copy has the contents of each written LBA as of the last flush. A power cut
 * chooses one of the two versions for each written LBA.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "sim/sim_internal.h"

int sim_cache_open(struct sim_ns *ns)
{
    struct sim_undo *u = &ns->undo;
    void *before = mmap(NULL, ns->mapped, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (before == MAP_FAILED)
        return -ENOMEM;
    u->before = before;
    u->written = calloc((ns->mapped >> ns->lba_shift) / 64 + 1, sizeof(*u->written));
    return u->written ? 0 : -ENOMEM;
}

static bool cache_has(const struct sim_undo *u, uint64_t lba)
{
    return u->written[lba / 64] >> lba % 64 & 1;
}

/* Saves the contents of an LBA. Returns -EIO if the LBA cannot be read. */
static int cache_keep(struct sim_ns *ns, uint64_t lba)
{
    struct sim_undo *u = &ns->undo;
    size_t at = lba << ns->lba_shift;

    if (!sim_copy_to_target(u->before + at, ns->base + at, ns->lba_size))
        return -EIO;
    u->written[lba / 64] |= 1ull << lba % 64;
    return 0;
}

int sim_cache_before_write(struct sim_ns *ns, uint64_t lba, uint64_t lbas)
{
    int rc = 0;

    pthread_mutex_lock(&ns->lock);
    for (uint64_t l = lba; l < lba + lbas && rc == 0; l++)
        rc = cache_has(&ns->undo, l) ? 0 : cache_keep(ns, l);
    pthread_mutex_unlock(&ns->lock);
    return rc;
}

void sim_cache_durable(struct sim_ns *ns, uint64_t lba, uint64_t lbas)
{
    pthread_mutex_lock(&ns->lock);
    for (uint64_t l = lba; l < lba + lbas; l++)
        ns->undo.written[l / 64] &= ~(1ull << l % 64);
    pthread_mutex_unlock(&ns->lock);
}

void sim_cache_flush(struct sim_ns *ns)
{
    pthread_mutex_lock(&ns->lock);
    memset(ns->undo.written, 0, (ns->lbas / 64 + 1) * sizeof(*ns->undo.written));
    pthread_mutex_unlock(&ns->lock);
}

enum fate { KEPT, DROPPED, TORN };

static void cache_settle(struct sim_ns *ns, uint64_t lba, uint64_t *rng)
{
    enum fate fate = sim_random(rng) % (ns->lba_size > 512 ? 3 : 2);
    uint64_t start = lba << ns->lba_shift;

    if (fate == KEPT)
        return;
    uint64_t sectors = fate == DROPPED ? UINT64_MAX : sim_random(rng);
    for (uint64_t at = start; at < start + ns->lba_size; at += 512, sectors >>= 1)
        if (sectors & 1)
            memcpy(ns->base + at, ns->undo.before + at, 512);
}

void sim_cache_power_cut(struct sim_ns *ns, uint64_t *rng)
{
    for (uint64_t lba = 0; lba < ns->lbas; lba++)
        if (cache_has(&ns->undo, lba))
            cache_settle(ns, lba, rng);
    sim_cache_flush(ns);
}

void sim_cache_free(struct sim_ns *ns)
{
    if (ns->undo.before)
        munmap(ns->undo.before, ns->mapped);
    free(ns->undo.written);
}
