/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements the table of mappings. */
#include <errno.h>
#include <string.h>

#include "sim/sim_internal.h"
#include "support/array.h"

#define IOVA_FIRST 0x100000000ull
#define IOVA_GUARD 0x10000ull

size_t sim_mapping_below(const struct sim_iova_table *t, uint64_t iova)
{
    size_t above = array_lower(t->at, t->n, sizeof(*t->at), iova + 1);

    return above ? above - 1 : t->n;
}

unsigned char *sim_host_at(struct sim_thread *th, uint64_t iova, size_t len)
{
    const struct sim_mapping *m = sim_lookup(th->s, &th->last_mapping, iova, len);

    return m && m->host ? m->host + (iova - m->iova) : NULL;
}

static uint64_t after(uint64_t iova, size_t len)
{
    return (iova + len + IOVA_GUARD) & ~(IOVA_GUARD - 1);
}

/* Finds the first gap for len bytes from an address on, and its index. */
static bool find_gap(const struct sim_iova_table *t, uint64_t from, size_t len, uint64_t *iova,
                     size_t *place)
{
    const struct sim_mapping *last = t->n ? &t->at[t->n - 1] : NULL;
    bool at_end = !last || after(last->iova, last->len) <= from;

    for (*place = at_end ? t->n : 0; *place < t->n; ++*place) {
        const struct sim_mapping *m = &t->at[*place];

        if (m->iova < from && after(m->iova, m->len) <= from)
            continue;
        if (m->iova > from && m->iova - from >= len + IOVA_GUARD)
            break;
        from = after(m->iova, m->len);
    }
    *iova = from;
    return from <= SIM_IOVA_END - IOVA_GUARD && len <= SIM_IOVA_END - IOVA_GUARD - from;
}

static int iova_table_insert(struct sim_iova_table *t, size_t place, const struct nvme_mem *mem,
                             uint64_t iova)
{
    assert(place <= t->n && (place == 0 || t->at[place - 1].iova < iova) &&
           (place == t->n || t->at[place].iova > iova));
    if (array_grow((void **)&t->at, t->n, sizeof(*t->at)))
        return -ENOMEM;
    memmove(&t->at[place + 1], &t->at[place], (t->n++ - place) * sizeof(t->at[0]));
    t->at[place] = (struct sim_mapping){
        .iova = iova, .len = mem->len, .host = mem->addr, .device = mem->device};
    return 0;
}

int sim_iova_add(struct sim_iova_table *t, const struct nvme_mem *mem, uint64_t *iova)
{
    size_t place;

    if (mem->len > SIM_IOVA_END ||
        (!find_gap(t, t->next ? t->next : IOVA_FIRST, mem->len, iova, &place) &&
         !find_gap(t, IOVA_FIRST, mem->len, iova, &place)))
        return -ENOSPC;
    int rc = iova_table_insert(t, place, mem, *iova);
    if (rc == 0)
        t->next = after(*iova, mem->len);
    return rc;
}

int sim_iova_add_at(struct sim_iova_table *t, const struct nvme_mem *mem, uint64_t iova)
{
    size_t place = 0;

    while (place < t->n && t->at[place].iova + t->at[place].len <= iova)
        place++;
    if (place < t->n && t->at[place].iova < iova + mem->len)
        return -EEXIST;
    return iova_table_insert(t, place, mem, iova);
}

struct sim_mapping *sim_iova_find(const struct sim_iova_table *t, uint64_t iova)
{
    size_t i = sim_mapping_below(t, iova);

    return i < t->n && t->at[i].iova == iova ? &t->at[i] : NULL;
}

void sim_iova_remove(struct sim_iova_table *t, uint64_t iova)
{
    struct sim_mapping *m = sim_iova_find(t, iova);
    size_t i = (size_t)(m - t->at);

    memmove(m, m + 1, (t->n - i - 1) * sizeof(*m));
    t->n--;
}
