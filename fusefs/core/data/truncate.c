/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Shrinking files. One handle sets the size. Longer work follows with the inode on the orphan list,
 * so that a mount after a crash finishes it.
 */
#include <errno.h>

#include "fusefs/core/data/data.h"
#include "fusefs/core/state.h"

static uint64_t truncate_unit_bytes(const struct ffs_inode *inode)
{
    bool bound = lay_get32(inode->d.flags) & LAY_INODE_GPU_BOUND;

    return ffs_offset_of(bound ? LAY_GPU_ALIGN : 1);
}

/* Returns the first block past the unit that holds the end of the file. */
static uint64_t truncate_first_unneeded(const struct ffs_inode *inode)
{
    uint64_t unit = truncate_unit_bytes(inode);
    uint64_t units = ffs_size(inode) / unit + (ffs_size(inode) % unit != 0);

    return ffs_block_of(unit) * units;
}

/*
 * Sets *tail to true if the last unit has written data past the end of the file, which has to be
 * zeroed on the device.
 */
static int truncate_has_tail(struct ffs_inode *inode, bool *tail)
{
    struct ffs_extent extent;

    *tail = false;
    if (ffs_size(inode) % truncate_unit_bytes(inode) == 0)
        return 0;
    int err = ffs_extent_find(inode, ffs_block_of(ffs_size(inode)), &extent);
    if (!err)
        *tail = extent.block != LAY_NONE && !extent.unwritten;
    return err;
}

int ffs_size_set(struct ffs_tx *tx, struct ffs_inode *inode, uint64_t size, bool *unfinished)
{
    bool shrink = size <= ffs_size(inode), tail;

    *unfinished = false;
    if (shrink)
        ffs_tx_use_reserve(tx);
    int err = ffs_touch_data(tx, inode);
    if (err)
        return err;
    inode->d.size = lay_put64(size);
    if (!shrink)
        return 0;

    uint64_t first = truncate_first_unneeded(inode), next;
    err = ffs_extent_remove(tx, inode, first, UINT64_MAX - first, &next);
    if (!err)
        err = truncate_has_tail(inode, &tail);
    if (err)
        return err;
    *unfinished = tail || next != UINT64_MAX;
    if (!*unfinished || ffs_on_orphan_list(inode))
        return 0;
    return ffs_orphan_add(tx, inode);
}

/* Preloads the bitmaps that the next handle will change, so that it does no I/O. */
static int truncate_prepare_unmap(struct ffs_inode *inode, uint64_t first, uint64_t end)
{
    const uint64_t most = (uint64_t)FFS_TX_MAX_CREDITS * LAY_GROUP_BLOCKS;
    struct ffs_extent_window w;
    int err = 0;

    for (unsigned n = 0; n < FFS_TX_MAX_CREDITS && first < end && !err; n += FFS_EXTENT_WINDOW) {
        err = ffs_extent_window_get(inode, first, end, &w);
        for (size_t i = 0; i < w.n && !err; i++) {
            if (w.extent[i].block != LAY_NONE)
                err = ffs_sections_of(inode->fs, w.extent[i].block, ffs_min(w.extent[i].len, most));
        }
        if (w.n < FFS_EXTENT_WINDOW)
            break;
        first = w.end;
    }
    return err;
}

int ffs_prepare_shrink(struct ffs_inode *inode, uint64_t size)
{
    return truncate_prepare_unmap(inode, ffs_block_up(size), UINT64_MAX);
}

/* Runs one handle of ffs_unmap(), and moves *first to where the next one continues. */
static int truncate_unmap_once(struct ffs_inode *inode, uint64_t *first, uint64_t end)
{
    struct ffs_tx *tx;
    uint64_t next = *first;
    int err = truncate_prepare_unmap(inode, *first, end);

    if (!err)
        err = ffs_tx_begin(inode->fs, FFS_TX_MAX_CREDITS, &tx);
    if (err)
        return err;
    ffs_tx_use_reserve(tx);
    err = ffs_inode_dirty(tx, inode);
    if (!err)
        err = ffs_extent_remove(tx, inode, *first, end - *first, &next);
    err = ffs_tx_finish(tx, err);
    if (!err)
        *first = next;
    return err;
}

int ffs_unmap(struct ffs_inode *inode, uint64_t first, uint64_t end)
{
    int err = 0;

    while (first < end && !err) {
        err = ffs_interrupted(inode->fs);
        if (!err)
            err = truncate_unmap_once(inode, &first, end);
    }
    return err;
}

/* Removes the inode from the orphan list, unless it has no name. */
static int truncate_leave_orphans(struct ffs_inode *inode)
{
    struct ffs_tx *tx;
    int err = ffs_tx_begin(inode->fs, 16, &tx);

    if (err)
        return err;
    if (ffs_on_orphan_list(inode) && ffs_nlink(inode) > 0)
        err = ffs_orphan_del(tx, inode);
    return ffs_tx_finish(tx, err);
}

/* Called with inode->data held exclusively, or at mount, before any other thread. */
int ffs_truncate_finish(struct ffs_inode *inode)
{
    ffs_meta_read(inode->fs);
    bool regular = S_ISREG(ffs_mode(inode));
    uint64_t size = ffs_size(inode);
    uint64_t first = truncate_first_unneeded(inode);
    ffs_meta_done(inode->fs);

    int err = 0;
    if (regular)
        err = ffs_zero(inode, size, ffs_offset_of(first), FFS_ZERO_WRITTEN);
    if (regular && !err)
        err = ffs_unmap(inode, first, UINT64_MAX);
    return err ? err : truncate_leave_orphans(inode);
}

int ffs_truncate_resume(struct ffs_inode *inode)
{
    ffs_meta_read(inode->fs);
    bool unfinished = ffs_on_orphan_list(inode) && ffs_nlink(inode) > 0;
    ffs_meta_done(inode->fs);
    return unfinished ? ffs_truncate_finish(inode) : 0;
}

int ffs_file_open_rw(struct ffs_inode *inode, uint64_t from, struct ffs_file *out)
{
    int err = ffs_file_open(inode, out);

    if (!err && ((out->flags & LAY_INODE_IMMUTABLE) ||
                 ((out->flags & LAY_INODE_APPEND) && from < out->size)))
        err = -EPERM;
    if (!err)
        err = ffs_writable(inode->fs);
    return !err && out->unfinished ? ffs_truncate_finish(inode) : err;
}
