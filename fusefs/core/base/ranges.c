/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Lists of ranges of blocks.
 */
#include "fusefs/core/base/ranges.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

int ffs_ranges_reserve(struct ffs_ranges *r, size_t more)
{
    if (r->cap - r->n >= more)
        return 0;
    size_t cap = r->cap ? r->cap * 2 : 16;
    while (cap - r->n < more)
        cap *= 2;
    struct ffs_range *v = realloc(r->v, cap * sizeof(*v));
    if (!v)
        return -ENOMEM;
    r->v = v;
    r->cap = cap;
    return 0;
}

void ffs_ranges_add(struct ffs_ranges *r, uint64_t block, uint64_t len)
{
    struct ffs_range *last = r->n ? &r->v[r->n - 1] : NULL;

    if (last && last->block + last->len == block) {
        last->len += len;
        return;
    }
    assert(r->v && r->n < r->cap);
    r->v[r->n++] = (struct ffs_range){block, len};
}

void ffs_ranges_join(struct ffs_ranges *r, const struct ffs_ranges *from)
{
    for (size_t i = 0; i < from->n; i++)
        ffs_ranges_add(r, from->v[i].block, from->v[i].len);
}

void ffs_ranges_free(struct ffs_ranges *r)
{
    free(r->v);
    *r = (struct ffs_ranges){0};
}
