/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The volatile write cache. The media has the newest data, and the undo table
 * has the contents of each written LBA as of the last flush. A power cut
 * chooses one of the two for each LBA in the table.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sim/sim_internal.h"

#define FREE_KEY UINT64_MAX

static size_t cache_probe(const struct sim_undo *u, uint64_t lba)
{
    uint64_t hash = lba;
    size_t i = (size_t)sim_random(&hash) & (u->cap - 1);

    while (u->lba[i] != FREE_KEY && u->lba[i] != lba)
        i = (i + 1) & (u->cap - 1);
    return i;
}

static int undo_alloc(struct sim_undo *u, size_t cap, uint32_t lba_size)
{
    u->lba = malloc(cap * sizeof(*u->lba));
    u->data = malloc(cap * lba_size);
    if (!u->lba || !u->data) {
        free(u->lba);
        free(u->data);
        *u = (struct sim_undo){0};
        return -ENOMEM;
    }
    memset(u->lba, 0xff, cap * sizeof(*u->lba));
    u->cap = cap;
    u->n = 0;
    return 0;
}

/* Stores the old contents of an LBA. Returns -EIO if it cannot be read. */
static int undo_put(struct sim_undo *u, uint64_t lba, const void *data, uint32_t lba_size)
{
    size_t i = cache_probe(u, lba);

    assert(u->n < u->cap && u->lba[i] == FREE_KEY);
    if (!sim_copy_to_target(u->data + i * lba_size, data, lba_size))
        return -EIO;
    u->lba[i] = lba;
    u->n++;
    return 0;
}

static int undo_grow(struct sim_undo *u, uint32_t lba_size)
{
    struct sim_undo bigger;
    int rc = undo_alloc(&bigger, u->cap ? u->cap * 2 : 64, lba_size);

    if (rc)
        return rc;
    /* undo_put() reads memory here and cannot fail. */
    for (size_t i = 0; i < u->cap; i++)
        if (u->lba[i] != FREE_KEY)
            (void)undo_put(&bigger, u->lba[i], u->data + i * lba_size, lba_size);
    free(u->lba);
    free(u->data);
    *u = bigger;
    return 0;
}

/* Closes the gap of a removal, so that probing finds later entries. */
static void undo_remove(struct sim_undo *u, uint64_t lba, uint32_t lba_size)
{
    size_t hole = cache_probe(u, lba);

    if (u->lba[hole] == FREE_KEY)
        return;
    assert(u->n > 0);
    u->lba[hole] = FREE_KEY;
    u->n--;
    for (size_t i = (hole + 1) & (u->cap - 1); u->lba[i] != FREE_KEY; i = (i + 1) & (u->cap - 1)) {
        uint64_t moved = u->lba[i];

        u->lba[i] = FREE_KEY;
        size_t to = cache_probe(u, moved);
        u->lba[to] = moved;
        if (to != i)
            memcpy(u->data + to * lba_size, u->data + i * lba_size, lba_size);
    }
}

int sim_cache_before_write(struct sim_ns *ns, uint64_t lba, uint64_t lbas)
{
    int rc = 0;

    pthread_mutex_lock(&ns->lock);
    for (uint64_t l = lba; l < lba + lbas && rc == 0; l++) {
        struct sim_undo *u = &ns->undo;

        if (u->n * 2 >= u->cap)
            rc = undo_grow(u, ns->lba_size);
        if (rc == 0 && u->lba[cache_probe(u, l)] == FREE_KEY)
            rc = undo_put(u, l, ns->base + (l << ns->lba_shift), ns->lba_size);
    }
    pthread_mutex_unlock(&ns->lock);
    return rc;
}

void sim_cache_durable(struct sim_ns *ns, uint64_t lba, uint64_t lbas)
{
    pthread_mutex_lock(&ns->lock);
    for (uint64_t l = lba; ns->undo.cap && l < lba + lbas; l++)
        undo_remove(&ns->undo, l, ns->lba_size);
    pthread_mutex_unlock(&ns->lock);
}

void sim_cache_flush(struct sim_ns *ns)
{
    pthread_mutex_lock(&ns->lock);
    if (ns->undo.n) {
        memset(ns->undo.lba, 0xff, ns->undo.cap * sizeof(*ns->undo.lba));
        ns->undo.n = 0;
    }
    pthread_mutex_unlock(&ns->lock);
}

enum fate { KEPT, DROPPED, TORN };

static void cache_settle(struct sim_ns *ns, unsigned char *now, const unsigned char *before,
                         uint64_t *rng)
{
    enum fate fate = sim_random(rng) % (ns->lba_size > 512 ? 3 : 2);

    if (fate == KEPT)
        return;
    uint64_t sectors = fate == DROPPED ? UINT64_MAX : sim_random(rng);
    for (uint32_t at = 0; at < ns->lba_size; at += 512, sectors >>= 1)
        if (fate == DROPPED || (sectors & 1))
            memcpy(now + at, before + at, 512);
}

static int by_lba(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* The order of LBAs makes the outcome depend on the seed alone. */
void sim_cache_power_cut(struct sim_ns *ns, uint64_t *rng)
{
    struct sim_undo *u = &ns->undo;
    uint64_t *order = malloc((u->n + 1) * sizeof(*order));
    size_t n = 0;

    for (size_t i = 0; order && i < u->cap; i++)
        if (u->lba[i] != FREE_KEY)
            order[n++] = u->lba[i];
    if (order)
        qsort(order, n, sizeof(*order), by_lba);
    for (size_t i = 0; i < n; i++)
        cache_settle(ns, ns->base + (order[i] << ns->lba_shift),
                     u->data + cache_probe(u, order[i]) * ns->lba_size, rng);
    free(order);
    sim_cache_flush(ns);
}

void sim_cache_free(struct sim_ns *ns)
{
    free(ns->undo.lba);
    free(ns->undo.data);
    ns->undo = (struct sim_undo){0};
}
