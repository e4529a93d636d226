/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Allocates IOVAs: first fit over the gaps of a sorted table. Mappings change
 * rarely, and commands do not search the table.
 */
#include "blockdev/nvme/nvme_iova.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "support/array.h"
#include "support/page.h"

/* Neither a range's end nor the page behind it overflows. */
#define LAST_ADDRESS (UINT64_MAX - 2 * PAGE_BYTES)

void nvme_iova_init(struct nvme_iova *v)
{
    *v = (struct nvme_iova){0};
}

void nvme_iova_destroy(struct nvme_iova *v)
{
    free(v->windows);
    free(v->used);
    nvme_iova_init(v);
}

static uint64_t end_of(const struct nvme_iova_range *r)
{
    return r->start + r->len;
}

int nvme_iova_allow(struct nvme_iova *v, uint64_t first, uint64_t last)
{
    uint64_t start, end;

    if (first > last || first > LAST_ADDRESS ||
        (v->n_windows && first < end_of(&v->windows[v->n_windows - 1])))
        return -EINVAL;
    last = last < LAST_ADDRESS ? last : LAST_ADDRESS;
    start = first ? page_whole(first) : PAGE_BYTES;
    end = (last + 1) & ~(PAGE_BYTES - 1);
    if (start >= end)
        return -EINVAL;
    if (array_grow((void **)&v->windows, v->n_windows, sizeof(*v->windows)))
        return -ENOMEM;
    v->windows[v->n_windows++] = (struct nvme_iova_range){.start = start, .len = end - start};
    return 0;
}

/* Gap i lies below range i, and leaves a page on both sides. */
static uint64_t gap_start(const struct nvme_iova *v, size_t i)
{
    return i ? end_of(&v->used[i - 1]) + PAGE_BYTES : 0;
}

static uint64_t gap_end(const struct nvme_iova *v, size_t i)
{
    return i < v->n_used ? v->used[i].start - PAGE_BYTES : UINT64_MAX;
}

/* Returns where len bytes fit into gap i in a window, or 0. */
static uint64_t fit(const struct nvme_iova *v, const struct nvme_iova_range *window, size_t i,
                    size_t len, size_t align)
{
    uint64_t start = gap_start(v, i), end = gap_end(v, i);

    if (start < window->start)
        start = window->start;
    if (end > end_of(window))
        end = end_of(window);
    if (start > UINT64_MAX - (align - 1))
        return 0;
    start = (start + align - 1) & ~((uint64_t)align - 1);
    return start < end && len <= end - start ? start : 0;
}

static bool has_page(const struct nvme_iova *v, size_t i)
{
    for (size_t w = 0; w < v->n_windows; w++)
        if (fit(v, &v->windows[w], i, PAGE_BYTES, PAGE_BYTES))
            return true;
    return false;
}

/*
 * Removes freed ranges from the table. nvme_iova_give() leaves them there,
 * because moving the table for each range would take quadratic time when all
 * ranges are freed.
 */
static void drop_freed(struct nvme_iova *v)
{
    size_t n = 0;

    for (size_t i = 0; i < v->n_places; i++)
        if (v->used[i].len)
            v->used[n++] = v->used[i];
    assert(n == v->n_used);
    v->n_places = n;
}

static uint64_t find_room(const struct nvme_iova *v, size_t len, size_t align, size_t *place)
{
    for (size_t w = 0; w < v->n_windows; w++) {
        for (*place = v->first; *place <= v->n_used; ++*place) {
            uint64_t start = fit(v, &v->windows[w], *place, len, align);

            if (start)
                return start;
        }
    }
    return 0;
}

int nvme_iova_take(struct nvme_iova *v, size_t len, size_t align, void *owner, uint64_t *iova)
{
    uint64_t start;
    size_t place;

    assert(len && len % PAGE_BYTES == 0);
    assert(align >= PAGE_BYTES && (align & (align - 1)) == 0);
    if (v->n_places != v->n_used)
        drop_freed(v);
    while (v->first < v->n_used && !has_page(v, v->first))
        v->first++;
    start = find_room(v, len, align, &place);
    if (!start)
        return -ENOSPC;
    if (array_grow((void **)&v->used, v->n_used, sizeof(*v->used)))
        return -ENOMEM;
    memmove(&v->used[place + 1], &v->used[place], (v->n_used - place) * sizeof(v->used[0]));
    v->n_places = ++v->n_used;
    v->used[place] = (struct nvme_iova_range){.start = start, .len = len, .owner = owner};
    *iova = start;
    return 0;
}

/* Returns the range that starts at iova, or NULL. */
static struct nvme_iova_range *range_at(const struct nvme_iova *v, uint64_t iova)
{
    size_t i = array_lower(v->used, v->n_places, sizeof(*v->used), iova);

    return i < v->n_places && v->used[i].start == iova && v->used[i].len ? &v->used[i] : NULL;
}

const struct nvme_iova_range *nvme_iova_find(const struct nvme_iova *v, uint64_t iova)
{
    return range_at(v, iova);
}

void nvme_iova_set_owner(struct nvme_iova *v, uint64_t iova, void *owner)
{
    struct nvme_iova_range *r = range_at(v, iova);

    assert(r);
    r->owner = owner;
}

int nvme_iova_give(struct nvme_iova *v, uint64_t iova)
{
    struct nvme_iova_range *r = range_at(v, iova);

    if (!r)
        return -ENOENT;
    r->len = 0;
    r->owner = NULL;
    v->n_used--;
    if ((size_t)(r - v->used) < v->first)
        v->first = (size_t)(r - v->used);
    return 0;
}
