/* SPDX-License-Identifier: BSD-2-Clause */
/* Changes the extents of an inode. */
#include "fusefs/core/map/extents.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "fusefs/core/map/tree.h"

/*
 * Maximum length of an extent: a multiple of 2 MiB units, and small enough that
 * joining two does not overflow 32 bits.
 */
#define EXTENT_MAX (1u << 30)

/* A tree with at most this many extents moves back into the inode. */
#define FOLD_AT (LAY_INLINE_EXTENTS / 2)

static struct lay_extent extents_pack(const struct ffs_extent *extent)
{
    uint16_t flags = 0;

    assert(extent->len > 0 && extent->len <= EXTENT_MAX);
    assert(!extent->unwritten || !extent->damaged);
    if (extent->unwritten)
        flags = LAY_EXTENT_UNWRITTEN;
    else if (extent->damaged)
        flags = LAY_EXTENT_DAMAGED;
    return (struct lay_extent){
        .file_block = lay_put64(extent->file_block),
        .block = lay_put64(extent->block),
        .len = lay_put32((uint32_t)extent->len),
        .flags = lay_put16(flags),
    };
}

/* --- Changes of one record ------------------------------------------------------------------- */

/* Closes the leaf if it fails. */
static int extents_leaf_dirty(struct ffs_tx *tx, struct ffs_leaf *l)
{
    int err = ffs_inode_dirty(tx, l->inode);

    if (!err && l->tree)
        err = ffs_tree_dirty(tx, &l->c);
    if (err)
        ffs_leaf_close(l);
    return err;
}

/*
 * Moves the extents from the full array in the inode to the root of a new tree.
 */
static int extents_unfold(struct ffs_tx *tx, struct ffs_inode *inode)
{
    struct lay_extent kept[LAY_INLINE_EXTENTS];
    unsigned count = lay_get16(inode->d.map_count);

    memcpy(kept, inode->d.map.extents, sizeof(kept));
    int err = ffs_tree_create(tx, inode, LAY_MAP_TREE);

    for (unsigned i = 0; i < count && !err; i++) {
        struct ffs_cursor c;
        err = ffs_cursor_seek(inode, ffs_record_first(&kept[i]), &c);
        if (!err)
            err = ffs_tree_insert(tx, &c, &kept[i], sizeof(kept[i]));
    }
    return err;
}

/*
 * Moves the few remaining extents of a tree with one node back into the inode.
 */
static int extents_fold(struct ffs_tx *tx, struct ffs_inode *inode)
{
    struct ffs_leaf l;
    struct lay_extent kept[LAY_INLINE_EXTENTS] = {{{0}, {0}, {0}, {0}, {0}}};

    if (lay_get16(inode->d.map_height) != 1)
        return 0;
    int err = ffs_leaf_open(inode, 0, &l);
    if (err)
        return err;
    unsigned count = l.count;
    if (count <= FOLD_AT)
        memcpy(kept, l.e, count * sizeof(kept[0]));
    ffs_leaf_close(&l);
    if (count > FOLD_AT)
        return 0;
    err = ffs_tree_free_root(tx, inode);
    if (err)
        return err;
    memset(&inode->d.map, 0, sizeof(inode->d.map));
    memcpy(inode->d.map.extents, kept, sizeof(kept));
    inode->d.map_kind = lay_put16(LAY_MAP_INLINE);
    inode->d.map_count = lay_put16((uint16_t)count);
    inode->d.map_height = lay_put16(0);
    return 0;
}

/* Inserts an extent before the i-th one. Closes the leaf. */
static int extents_leaf_insert(struct ffs_tx *tx, struct ffs_leaf *l, unsigned i,
                               const struct ffs_extent *extent)
{
    struct ffs_inode *inode = l->inode;
    struct lay_extent e = extents_pack(extent);
    int err = 0;

    if (!l->tree && l->count < LAY_INLINE_EXTENTS) {
        memmove(l->e + i + 1, l->e + i, (l->count - i) * sizeof(e));
        l->e[i] = e;
        inode->d.map_count = lay_put16((uint16_t)(l->count + 1));
        return 0;
    }
    if (!l->tree) {
        err = extents_unfold(tx, inode);
        if (!err)
            err = ffs_cursor_seek(inode, extent->file_block, &l->c);
    } else {
        l->c.step[0].at = i * (uint32_t)sizeof(e);
    }
    return err ? err : ffs_tree_insert(tx, &l->c, &e, sizeof(e));
}

/* Removes the i-th extent. Closes the leaf. */
static int extents_leaf_delete(struct ffs_tx *tx, struct ffs_leaf *l, unsigned i)
{
    if (!l->tree) {
        l->count--;
        memmove(l->e + i, l->e + i + 1, (l->count - i) * sizeof(l->e[0]));
        memset(l->e + l->count, 0, sizeof(l->e[0]));
        l->inode->d.map_count = lay_put16((uint16_t)l->count);
        return 0;
    }
    l->c.step[0].at = i * (uint32_t)sizeof(l->e[0]);
    int err = ffs_tree_remove(tx, &l->c);
    return err ? err : extents_fold(tx, l->inode);
}

/* Returns true if the second extent, which follows the first, can be joined to it. */
static bool extents_joins(const struct lay_extent *a, const struct lay_extent *b)
{
    uint64_t next = ffs_block_after(lay_get64(a->block), lay_get32(a->len));

    return ffs_record_end(a) == ffs_record_first(b) && lay_get16(a->flags) == lay_get16(b->flags) &&
           next == lay_get64(b->block) && lay_get32(a->len) + lay_get32(b->len) <= EXTENT_MAX;
}

static void extents_lengthen(struct lay_extent *e, const struct lay_extent *by)
{
    e->len = lay_put32(lay_get32(e->len) + lay_get32(by->len));
}

/*
 * Adds an extent that fits into the range of the leaf, which is open and dirty.
 * Closes it.
 */
static int extents_leaf_add(struct ffs_tx *tx, struct ffs_leaf *l, const struct ffs_extent *extent)
{
    struct lay_extent e = extents_pack(extent);
    unsigned i = ffs_leaf_index(l, extent->file_block);
    bool left = i > 0 && extents_joins(&l->e[i - 1], &e);
    bool right = i < l->count && extents_joins(&e, &l->e[i]);

    if (i < l->count && ffs_record_first(&l->e[i]) < extent->file_block + extent->len) {
        ffs_leaf_close(l);
        return ffs_corrupt(l->inode->fs, LAY_NONE, l->inode->ino, "extents overlap");
    }
    if (left) {
        extents_lengthen(&l->e[i - 1], &e);
        if (i < l->count && extents_joins(&l->e[i - 1], &l->e[i])) {
            extents_lengthen(&l->e[i - 1], &l->e[i]);
            return extents_leaf_delete(tx, l, i);
        }
    } else if (right) {
        extents_lengthen(&e, &l->e[i]);
        l->e[i] = e;
    } else {
        return extents_leaf_insert(tx, l, i, extent);
    }
    ffs_leaf_close(l);
    return 0;
}

/* Adds an extent of any length, in one part for each leaf that it reaches. */
static int extents_add_extent(struct ffs_tx *tx, struct ffs_inode *inode, struct ffs_extent extent)
{
    while (extent.len > 0) {
        struct ffs_leaf l;
        int err = ffs_leaf_open(inode, extent.file_block, &l);
        if (err)
            return err;
        struct ffs_extent part = extent;
        part.len = min_u64(part.len, EXTENT_MAX);
        if (part.len - 1 > l.hi - part.file_block)
            part.len = l.hi - part.file_block + 1;
        err = extents_leaf_dirty(tx, &l);
        if (!err)
            err = extents_leaf_add(tx, &l, &part);
        if (err)
            return err;
        extent.file_block += part.len;
        extent.block = ffs_block_after(extent.block, part.len);
        extent.len -= part.len;
    }
    return 0;
}

/*
 * Removes [from, to) from the i-th extent, which covers it. Closes the leaf,
 * which is dirty.
 */
static int extents_leaf_cut(struct ffs_tx *tx, struct ffs_leaf *l, unsigned i, uint64_t from,
                            uint64_t to)
{
    struct lay_extent *e = &l->e[i];
    uint64_t first = ffs_record_first(e), end = ffs_record_end(e);
    struct ffs_extent rest = {.file_block = to,
                              .block = ffs_block_after(lay_get64(e->block), to - first),
                              .len = end - to,
                              .unwritten = ffs_record_unwritten(e),
                              .damaged = ffs_record_damaged(e)};

    if (from == first && to == end)
        return extents_leaf_delete(tx, l, i);
    if (from > first) {
        e->len = lay_put32((uint32_t)(from - first));
        if (to < end)
            return extents_leaf_insert(tx, l, i + 1, &rest);
    } else {
        *e = extents_pack(&rest);
    }
    ffs_leaf_close(l);
    return 0;
}

/* --- Changes of ranges ----------------------------------------------------------------------- */

unsigned ffs_extent_credits(const struct ffs_inode *inode)
{
    return 8 + 2 * ffs_tree_credits(inode);
}

static void extents_changed(struct ffs_inode *inode)
{
    /*
     * The value is only compared, and readers rely on no other memory being
     * visible with it.
     */
    atomic_fetch_add_explicit(&inode->map_generation, 1, memory_order_relaxed);
}

int ffs_extent_add(struct ffs_tx *tx, struct ffs_inode *inode, const struct ffs_extent *extent)
{
    assert(extent->block != LAY_NONE && extent->len > 0);
    int err = ffs_inode_dirty(tx, inode);
    if (!err)
        err = extents_add_extent(tx, inode, *extent);
    if (err)
        return err;
    /* The inode file has no data. */
    if (inode->ino != 0)
        inode->d.blocks = lay_put64(lay_get64(inode->d.blocks) + extent->len);
    extents_changed(inode);
    return 0;
}

/*
 * Opens the leaf with the first extent that reaches into [from, end). Stores
 * its index, and the part of it that lies in the range, [*from, *to). Returns
 * -ENOENT, with nothing open, if there is none.
 */
static int extents_next_part(struct ffs_inode *inode, uint64_t *from, uint64_t end,
                             struct ffs_leaf *l, unsigned *index, uint64_t *to)
{
    while (*from < end) {
        int err = ffs_leaf_open(inode, *from, l);
        if (err)
            return err;
        unsigned i = ffs_leaf_index(l, *from);
        if (i < l->count && ffs_record_first(&l->e[i]) < end) {
            if (ffs_record_first(&l->e[i]) > *from)
                *from = ffs_record_first(&l->e[i]);
            *to = ffs_record_end(&l->e[i]) < end ? ffs_record_end(&l->e[i]) : end;
            *index = i;
            return 0;
        }
        bool more = i == l->count && l->hi < end - 1;
        *from = l->hi + 1;
        ffs_leaf_close(l);
        if (!more)
            break;
    }
    return -ENOENT;
}

static int extents_uncharge(struct ffs_inode *inode, uint64_t n)
{
    uint64_t blocks = lay_get64(inode->d.blocks);

    if (blocks < n)
        return ffs_corrupt(inode->fs, LAY_NONE, inode->ino, "inode.blocks");
    inode->d.blocks = lay_put64(blocks - n);
    return 0;
}

/*
 * Unmaps [from, to), which lies in the i-th extent, and frees its blocks if it
 * has any. Closes the leaf.
 */
static int extents_remove_part(struct ffs_tx *tx, struct ffs_leaf *l, unsigned i, uint64_t from,
                               uint64_t to)
{
    struct ffs_inode *inode = l->inode;
    uint64_t block = ffs_block_after(lay_get64(l->e[i].block), from - ffs_record_first(&l->e[i]));
    int err = extents_leaf_dirty(tx, l);

    if (!err)
        err = extents_leaf_cut(tx, l, i, from, to);
    if (err || block == LAY_NONE)
        return err;
    err = extents_uncharge(inode, to - from);
    return err ? err : ffs_free(tx, block, to - from);
}

int ffs_extent_remove(struct ffs_tx *tx, struct ffs_inode *inode, uint64_t file_block, uint64_t len,
                      uint64_t *next)
{
    uint64_t end = len > UINT64_MAX - file_block ? UINT64_MAX : file_block + len;
    uint64_t from = file_block, to;
    struct ffs_leaf l;
    unsigned i;

    extents_changed(inode);
    for (;;) {
        int err = extents_next_part(inode, &from, end, &l, &i, &to);
        if (err == -ENOENT)
            break;
        if (err)
            return err;
        /*
         * Each group in which blocks are freed costs the block of its bitmap.
         */
        unsigned left = ffs_tx_left(tx), step = ffs_extent_credits(inode);
        if (left < step + 2) {
            ffs_leaf_close(&l);
            *next = from;
            return 0;
        }
        uint64_t most = (uint64_t)(left - step) * LAY_GROUP_BLOCKS / 2;
        if (to - from > most)
            to = from + most / LAY_GPU_ALIGN * LAY_GPU_ALIGN;
        err = extents_remove_part(tx, &l, i, from, to);
        if (err)
            return err;
        from = to;
    }
    *next = end;
    return 0;
}

/* Changes the state of [from, to) in the i-th extent. Closes the leaf. */
static int extents_mark_part(struct ffs_tx *tx, struct ffs_leaf *l, unsigned i, uint64_t from,
                             uint64_t to, bool unwritten)
{
    struct ffs_inode *inode = l->inode;
    struct ffs_extent extent = {.file_block = from,
                                .block =
                                    lay_get64(l->e[i].block) + (from - ffs_record_first(&l->e[i])),
                                .len = to - from,
                                .unwritten = unwritten};
    int err = extents_leaf_dirty(tx, l);

    if (!err)
        err = extents_leaf_cut(tx, l, i, from, to);
    return err ? err : extents_add_extent(tx, inode, extent);
}

int ffs_extent_mark(struct ffs_tx *tx, struct ffs_inode *inode, uint64_t file_block, uint64_t len,
                    bool unwritten, uint64_t *next)
{
    uint64_t end = len > UINT64_MAX - file_block ? UINT64_MAX : file_block + len;
    uint64_t from = file_block, to;
    struct ffs_leaf l;
    unsigned i;

    for (;; from = to) {
        int err = extents_next_part(inode, &from, end, &l, &i, &to);
        if (err == -ENOENT)
            break;
        if (err)
            return err;
        bool same = ffs_record_unwritten(&l.e[i]) == unwritten && !ffs_record_damaged(&l.e[i]);
        if (same || lay_get64(l.e[i].block) == LAY_NONE) {
            ffs_leaf_close(&l);
            continue;
        }
        if (ffs_tx_left(tx) < ffs_extent_credits(inode)) {
            ffs_leaf_close(&l);
            *next = from;
            return 0;
        }
        err = extents_mark_part(tx, &l, i, from, to, unwritten);
        if (err)
            return err;
        extents_changed(inode);
    }
    *next = end;
    return 0;
}

int ffs_extent_move(struct ffs_tx *tx, struct ffs_inode *inode, const struct ffs_extent *to)
{
    uint64_t from = to->file_block, end = to->file_block + to->len, upto;
    struct ffs_leaf l;
    unsigned i;
    int err = extents_next_part(inode, &from, end, &l, &i, &upto);

    if (err)
        return err;
    if (from != to->file_block || upto != end) {
        ffs_leaf_close(&l);
        return -EINVAL;
    }
    err = extents_leaf_dirty(tx, &l);
    if (!err)
        err = extents_leaf_cut(tx, &l, i, from, end);
    if (!err)
        err = extents_add_extent(tx, inode, *to);
    extents_changed(inode);
    return err;
}

int ffs_extent_fill(struct ffs_tx *tx, struct ffs_inode *inode, const struct ffs_extent *to)
{
    assert(to->damaged && to->block != LAY_NONE);
    int err = ffs_extent_move(tx, inode, to);

    if (!err)
        inode->d.blocks = lay_put64(lay_get64(inode->d.blocks) + to->len);
    return err;
}
