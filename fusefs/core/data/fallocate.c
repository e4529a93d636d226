/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements fallocate(2): allocation, zeroing and holes. */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>

#include "fusefs/core/data/data.h"

/* Describes a range of bytes, and the whole units inside it. */
struct range {
    uint64_t offset, end;
    uint64_t first, last; /* blocks; first >= last if there is no whole unit */
};

static struct range fallocate_make_range(const struct ffs_file *f, uint64_t offset, uint64_t end)
{
    return (struct range){.offset = offset,
                          .end = end,
                          .first = ffs_unit_up(f, ffs_block_up(offset)),
                          .last = ffs_unit_down(f, ffs_block_of(end))};
}

/* Zeros the partial units on the device. */
static int fallocate_zero_edges(struct ffs_inode *inode, const struct range *r)
{
    if (r->first >= r->last)
        return ffs_zero(inode, r->offset, r->end, FFS_ZERO_WRITTEN);
    int err = ffs_zero(inode, r->offset, ffs_bytes(r->first), FFS_ZERO_WRITTEN);
    if (err)
        return err;
    return ffs_zero(inode, ffs_bytes(r->last), r->end, FFS_ZERO_WRITTEN);
}

/* Sets size and times at the end of a change. */
static int fallocate_finish(struct ffs_inode *inode, uint64_t size)
{
    struct ffs_tx *tx;
    int err = ffs_tx_begin(inode->fs, 8, &tx);

    if (err)
        return err;
    err = ffs_touch_data(tx, inode);
    if (!err && size > ffs_size(inode))
        inode->d.size = lay_put64(size);
    return ffs_tx_finish(tx, err);
}

/* Counts the blocks of holes in [first, end). */
static int fallocate_count_holes(struct ffs_inode *inode, uint64_t first, uint64_t end,
                                 uint64_t *holes)
{
    struct ffs_extent_window w;
    int err = 0;

    *holes = 0;
    for (; first < end && !err; first = w.end) {
        err = ffs_extent_window_get(inode, first, end, &w);
        for (size_t i = 0; i < w.n; i++)
            *holes += w.extent[i].block == LAY_NONE ? w.extent[i].len : 0;
    }
    return err;
}

static uint64_t fallocate_free_blocks(struct ffs *fs)
{
    ffs_meta_read(fs);
    uint64_t n = ffs_free_blocks(fs);
    ffs_meta_done(fs);
    return n;
}

/* A request that cannot fit is refused before it fills the device. */
static int fallocate_allocate(struct ffs_inode *inode, const struct ffs_file *f,
                              const struct range *r)
{
    uint64_t first = ffs_unit_down(f, ffs_block_of(r->offset));
    uint64_t end = ffs_unit_up(f, ffs_block_up(r->end));
    uint64_t holes, upto;
    bool tried = false;
    int err = fallocate_count_holes(inode, first, end, &holes);

    if (err)
        return err;
    while (holes > fallocate_free_blocks(inode->fs)) {
        if (!ffs_retry_space(inode->fs, -ENOSPC, &tried))
            return -ENOSPC;
    }
    return ffs_reserve(inode, f, first, end, &upto);
}

static int fallocate_mark_once(struct ffs_inode *inode, uint64_t *first, uint64_t last)
{
    struct ffs_tx *tx;
    uint64_t next = *first;
    int err = ffs_tx_begin(inode->fs, FFS_TX_MAX_CREDITS, &tx);

    if (err)
        return err;
    err = ffs_inode_dirty(tx, inode);
    if (!err)
        err = ffs_extent_mark(tx, inode, *first, last - *first, true, &next);
    err = ffs_tx_finish(tx, err);
    if (!err)
        *first = next;
    return err;
}

/*
 * Makes whole units unwritten, so that their zeros need no transfer, and zeros
 * the rest.
 */
static int fallocate_zero_range(struct ffs_inode *inode, const struct ffs_file *f,
                                const struct range *r)
{
    int err = fallocate_allocate(inode, f, r);

    if (!err)
        err = fallocate_zero_edges(inode, r);
    /* Writes to unwritten blocks do not remove checksums. */
    if (!err)
        ffs_watches_drop_sums(inode, r->first, r->last);
    for (uint64_t at = r->first; at < r->last && !err;)
        err = fallocate_mark_once(inode, &at, r->last);
    return err;
}

static int fallocate_punch(struct ffs_inode *inode, const struct range *r)
{
    int err = fallocate_zero_edges(inode, r);

    return err ? err : ffs_unmap(inode, r->first, r->last);
}

static int fallocate_change(struct ffs_inode *inode, uint32_t mode, uint64_t offset, uint64_t len)
{
    struct ffs_file f;
    bool changes = mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE);
    int err = ffs_file_open_rw(inode, changes ? 0 : FFS_SIZE_MAX, &f);

    if (err)
        return err;
    struct range r = fallocate_make_range(&f, offset, offset + len);
    uint64_t size = mode & FALLOC_FL_KEEP_SIZE ? 0 : r.end;

    err = ffs_zero_edge(inode, &f, size);
    if (err)
        return err;
    if (mode & FALLOC_FL_PUNCH_HOLE)
        err = fallocate_punch(inode, &r);
    else if (mode & FALLOC_FL_ZERO_RANGE)
        err = fallocate_zero_range(inode, &f, &r);
    else
        err = fallocate_allocate(inode, &f, &r);
    return err ? err : fallocate_finish(inode, size);
}

int ffs_fallocate(struct ffs_inode *inode, uint32_t mode, uint64_t offset, uint64_t len)
{
    switch (mode) {
    case 0:
    case FALLOC_FL_KEEP_SIZE:
    case FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE:
    case FALLOC_FL_ZERO_RANGE:
    case FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE:
        break;
    default:
        return -EOPNOTSUPP;
    }
    if (len == 0)
        return -EINVAL;
    if (offset > FFS_SIZE_MAX || len > FFS_SIZE_MAX - offset)
        return -EFBIG;
    pthread_rwlock_wrlock(&inode->data);
    int err = fallocate_change(inode, mode, offset, len);
    pthread_rwlock_unlock(&inode->data);
    return err;
}
