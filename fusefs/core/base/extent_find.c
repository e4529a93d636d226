/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds extents of an inode. */
#include "fusefs/core/base/extent_find.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "fusefs/core/base/ranges.h"
#include "support/array.h"

int ffs_leaf_open(struct ffs_inode *inode, uint64_t file_block, struct ffs_leaf *l)
{
    l->inode = inode;
    l->tree = lay_get16(inode->d.map_kind) == LAY_MAP_TREE;
    if (!l->tree) {
        if (lay_get16(inode->d.map_kind) != LAY_MAP_INLINE)
            return -EINVAL;
        l->e = inode->d.map.extents;
        l->count = lay_get16(inode->d.map_count);
        l->hi = UINT64_MAX;
        return 0;
    }
    int err = ffs_cursor_seek(inode, file_block, &l->c);
    if (err)
        return err;
    struct lay_node *node = ffs_cursor_node(&l->c, 0);
    l->e = node->u.extents;
    l->count = lay_get16(node->count);
    l->hi = l->c.step[0].hi;
    assert(l->count <= LAY_NODE_EXTENTS); /* lay_check_node() has compared it with the length */
    return 0;
}

void ffs_leaf_close(struct ffs_leaf *l)
{
    if (l->tree)
        ffs_cursor_drop(&l->c);
}

unsigned ffs_leaf_index(const struct ffs_leaf *l, uint64_t file_block)
{
    unsigned lo = 0, hi = l->count;

    while (lo < hi) {
        unsigned mid = (lo + hi) / 2;
        if (ffs_record_end(&l->e[mid]) <= file_block)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Sets *end to the end of the hole at file_block: the next extent, or UINT64_MAX. */
static int extent_find_hole_end(struct ffs_inode *inode, uint64_t file_block, uint64_t *end)
{
    struct ffs_leaf l;

    for (uint64_t from = file_block;; from = l.hi + 1) {
        int err = ffs_leaf_open(inode, from, &l);
        if (err)
            return err;
        unsigned i = ffs_leaf_index(&l, from);
        *end = i < l.count ? ffs_record_first(&l.e[i]) : UINT64_MAX;
        ffs_leaf_close(&l);
        if (i < l.count || l.hi == UINT64_MAX)
            return 0;
    }
}

/*
 * Returns the extent at file_block, which lies before the end of e: a part of e, or the hole in
 * front of it.
 */
static struct ffs_extent extent_at(const struct lay_extent *e, uint64_t file_block)
{
    struct ffs_extent extent = {.file_block = file_block, .block = LAY_NONE};

    if (ffs_record_first(e) > file_block) {
        extent.len = ffs_record_first(e) - file_block;
        return extent;
    }
    uint64_t skip = file_block - ffs_record_first(e);
    extent.block = ffs_block_after(lay_get64(e->block), skip);
    extent.len = lay_get32(e->len) - skip;
    extent.unwritten = ffs_record_unwritten(e);
    extent.damaged = ffs_record_damaged(e);
    return extent;
}

int ffs_extent_find(struct ffs_inode *inode, uint64_t file_block, struct ffs_extent *out)
{
    struct ffs_leaf l;
    int err = ffs_leaf_open(inode, file_block, &l);

    if (err)
        return err;

    unsigned i = ffs_leaf_index(&l, file_block);
    *out = (struct ffs_extent){.file_block = file_block, .block = LAY_NONE};
    if (i < l.count)
        *out = extent_at(&l.e[i], file_block);
    ffs_leaf_close(&l);
    if (out->len == 0) {
        uint64_t end = UINT64_MAX;
        err = extent_find_hole_end(inode, file_block, &end);
        out->len = end - file_block;
    }
    return err;
}

/* Stores the extents that this leaf describes, and moves *at to the end of the last one. */
static size_t extent_leaf_list(const struct ffs_leaf *l, uint64_t *at, uint64_t end,
                               struct ffs_extent *extents, size_t max)
{
    size_t n = 0;

    for (unsigned i = ffs_leaf_index(l, *at); i < l->count && n < max && *at < end;) {
        if (ffs_record_end(&l->e[i]) <= *at) {
            i++;
            continue;
        }
        extents[n] = extent_at(&l->e[i], *at);
        extents[n].len = min_u64(extents[n].len, end - *at);
        *at += extents[n++].len;
    }
    return n;
}

ssize_t ffs_extent_list(struct ffs_inode *inode, uint64_t first, uint64_t end,
                        struct ffs_extent *extents, size_t max)
{
    uint64_t at = first, from = first;
    size_t n = 0;

    while (n < max && at < end) {
        struct ffs_leaf l;
        int err = ffs_leaf_open(inode, from, &l);
        if (err)
            return err;
        n += extent_leaf_list(&l, &at, end, extents + n, max - n);
        ffs_leaf_close(&l);
        if (n == max || at >= end)
            break;
        if (l.hi >= end - 1) {
            extents[n++] =
                (struct ffs_extent){.file_block = at, .block = LAY_NONE, .len = end - at};
            break;
        }
        from = l.hi + 1;
    }
    return (ssize_t)n;
}

/* --- Ranges ---------------------------------------------------------------------------------- */

int ffs_ranges_reserve(struct ffs_ranges *r, size_t more)
{
    return array_reserve((void **)&r->v, &r->cap, r->n + more, sizeof(*r->v));
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
