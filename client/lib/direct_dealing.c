/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Words by which the groups of a list deal it, in the memory space: one set for each
 * list in flight. A kernel counts the runs of a set when it has ended with it,
 * so the host finds free sets without a call at the end of a list.
 */
#include "client/lib/direct.h"

#define SETS DIRECT_DEALINGS

int direct_dealing_open(struct gpunvme_direct *d)
{
    struct direct_dealings *s = &d->dealings;

    return memory_space_alloc(&d->space, SETS * sizeof(struct gq_dealing), &s->at);
}

void direct_dealing_close(struct gpunvme_direct *d)
{
    memory_space_free(&d->space, d->dealings.at);
    d->dealings.at = 0;
}

/* The index of a set that has ended as often as it was taken; SETS: none is known. */
static uint32_t find_free(const struct direct_dealings *s)
{
    uint32_t i = 0;

    while (i < SETS && s->taken[i] != s->ended[i])
        i++;
    return i;
}

/* A copy from the memory space, once in SETS lists. */
static int update(struct gpunvme_direct *d)
{
    struct gq_dealing sets[SETS];
    int err = memory_space_get(&d->space, sets, d->dealings.at, sizeof(sets));

    for (uint32_t i = 0; i < SETS && !err; i++)
        d->dealings.ended[i] = sets[i].runs;
    return err;
}

struct gq_dealing *direct_dealing_take(struct gpunvme_direct *d)
{
    struct direct_dealings *s = &d->dealings;
    uint32_t i;

    pthread_mutex_lock(&d->lock);
    i = find_free(s);
    if (i == SETS && update(d) == 0)
        i = find_free(s);
    if (i < SETS)
        s->taken[i]++;
    pthread_mutex_unlock(&d->lock);
    return i < SETS ? (struct gq_dealing *)(uintptr_t)s->at + i : NULL;
}

void direct_dealing_give_back(struct gpunvme_direct *d, const struct gq_dealing *set)
{
    struct direct_dealings *s = &d->dealings;

    if (!set)
        return;
    pthread_mutex_lock(&d->lock);
    s->taken[set - (struct gq_dealing *)(uintptr_t)s->at]--;
    pthread_mutex_unlock(&d->lock);
}
