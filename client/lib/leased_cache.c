/* SPDX-License-Identifier: BSD-2-Clause */
/* Allocates and clears the words of a cache in the memory space of its leases. */
#include "client/lib/leased_cache.h"

#include <stddef.h>

/*
 * Places the arrays from `at` on, those that are cleared first, and returns
 * their end.
 */
static uint64_t leased_cache_place_all(struct leased_cache *c, uint64_t at)
{
    struct gpunvme_device_cache *d = &c->device;
    uint64_t sets = (uint64_t)1 << d->set_shift, first = at;

    d->words = memory_space_place(&at, sets * d->ways + GD_CACHE_LOOKS, sizeof(*d->words));
    d->locks = memory_space_place(&at, sets, sizeof(*d->locks));
    d->slots = memory_space_place(&at, d->n_slots / 32, sizeof(*d->slots));
    d->recent = memory_space_place(&at, sets * d->ways, sizeof(*d->recent));
    c->words_len = at - first;
    d->counts = memory_space_place(&at, GD_CACHE_COUNTERS, sizeof(*d->counts));
    c->device_at = (uintptr_t)memory_space_place(&at, 1, sizeof(*d));
    return at;
}

static int leased_cache_put_generation(struct leased_cache *c, uint64_t generation)
{
    uint64_t at = c->device_at + offsetof(struct gpunvme_device_cache, generation);

    c->device.generation = generation;
    return memory_space_put(c->space, at, &generation, sizeof(generation));
}

int leased_cache_open(struct leased_cache *c)
{
    int err = memory_space_alloc(c->space, leased_cache_place_all(c, 0), &c->words_at);

    if (err)
        return err;
    (void)leased_cache_place_all(c, c->words_at);
    c->device.generation = GD_CACHE_OFF + 1;
    return memory_space_put(c->space, c->device_at, &c->device, sizeof(c->device));
}

void leased_cache_close(struct leased_cache *c)
{
    memory_space_free(c->space, c->words_at);
    c->words_at = 0;
}

int leased_cache_clear(struct leased_cache *c)
{
    int err = memory_space_clear(c->space, c->words_at, c->words_len);

    return err ? err : leased_cache_put_generation(c, GD_CACHE_OFF + 1);
}

bool leased_cache_is_used_up(const struct leased_cache *c)
{
    uint64_t next = c->device.generation + 1;

    return c->device.generation == GD_CACHE_OFF || next == GD_CACHE_GENERATIONS;
}

int leased_cache_next(struct leased_cache *c)
{
    uint64_t next = leased_cache_is_used_up(c) ? GD_CACHE_OFF : c->device.generation + 1;

    return leased_cache_put_generation(c, next);
}

int leased_cache_set_second_touch(struct leased_cache *c, bool second_touch)
{
    uint64_t at = c->device_at + offsetof(struct gpunvme_device_cache, second_touch);

    c->device.second_touch = second_touch;
    return memory_space_put(c->space, at, &c->device.second_touch, sizeof(c->device.second_touch));
}

int leased_cache_counts(const struct leased_cache *c, struct gd_cache_counts *out)
{
    struct gd_cache_counts all[GD_CACHE_COUNTERS];
    int err = memory_space_get(c->space, all, (uintptr_t)c->device.counts, sizeof(all));

    *out = (struct gd_cache_counts){0};
    for (size_t i = 0; i < GD_CACHE_COUNTERS && !err; i++) {
        out->hits += all[i].hits;
        out->misses += all[i].misses;
        out->bypasses += all[i].bypasses;
    }
    return err;
}
