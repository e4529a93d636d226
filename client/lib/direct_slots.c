/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Manages slots of words in the memory space. Each check of data in flight has one slot. A kernel
 * increments `runs` of its slot at its end, so the host finds free slots without a further call.
 */
#include <errno.h>
#include <stdlib.h>

#include "client/lib/direct.h"

#define SLOTS DIRECT_SLOTS

int direct_slots_open(struct gpunvme_direct *d)
{
    return memory_space_alloc(&d->space, SLOTS * sizeof(struct gd_check), &d->checks.at);
}

void direct_slots_close(struct gpunvme_direct *d)
{
    memory_space_free(&d->space, d->checks.at);
    d->checks.at = 0;
}

/* Returns a slot that has ended as often as it was taken, or SLOTS if none is known. */
static uint32_t direct_slots_find_free(const struct direct_slots *s)
{
    uint32_t i = 0;

    while (i < SLOTS && s->taken[i] != s->ended[i])
        i++;
    return i;
}

/*
 * Updates the numbers of ended uses by a copy from the memory space, which is needed once in SLOTS
 * lists.
 */
static int update(struct gpunvme_direct *d)
{
    struct direct_slots *s = &d->checks;
    struct gd_check *copy = calloc(SLOTS, sizeof(*copy));
    int err = copy ? memory_space_get(&d->space, copy, s->at, SLOTS * sizeof(*copy)) : -ENOMEM;

    for (uint32_t i = 0; i < SLOTS && !err; i++)
        s->ended[i] = copy[i].runs;
    free(copy);
    return err;
}

struct gd_check *direct_slots_take(struct gpunvme_direct *d)
{
    struct direct_slots *s = &d->checks;

    pthread_mutex_lock(&d->lock);
    uint32_t i = direct_slots_find_free(s);
    if (i == SLOTS && update(d) == 0)
        i = direct_slots_find_free(s);
    if (i < SLOTS)
        s->taken[i]++;
    pthread_mutex_unlock(&d->lock);
    return i < SLOTS ? (struct gd_check *)(uintptr_t)s->at + i : NULL;
}

void direct_slots_give_back(struct gpunvme_direct *d, const struct gd_check *slot)
{
    if (!slot)
        return;
    pthread_mutex_lock(&d->lock);
    d->checks.taken[slot - (const struct gd_check *)(uintptr_t)d->checks.at]--;
    pthread_mutex_unlock(&d->lock);
}
