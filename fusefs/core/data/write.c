/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements write(2). */
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "fusefs/core/data/data.h"
#include "fusefs/core/data/sums.h"
#include "fusefs/core/state.h"

/*
 * Bytes of one round, which limits the duration of a handle and of a transfer.
 */
#define ROUND (4u << 20)

/*
 * A round writes [offset, end) of the file. It has the blocks of that range and
 * the units that contain them.
 */
struct round {
    struct ffs_inode *inode;
    const struct ffs_file *f;
    uint64_t offset, end;
    const uint8_t *buf;
    struct ffs_extent_window extents; /* all units */
    uint8_t edge[2][LAY_BLOCK_SIZE];
    uint64_t edge_block[2]; /* file blocks */
    unsigned edges;
    uint32_t sums[ROUND / LAY_BLOCK_SIZE + 1]; /* of its blocks, if data has checksums */
};

static const struct ffs_extent *write_extent_of(const struct round *r, uint64_t file_block)
{
    for (size_t i = 0; i < r->extents.n; i++) {
        const struct ffs_extent *extent = &r->extents.extent[i];
        if (file_block - extent->file_block < extent->len)
            return extent;
    }
    return NULL;
}

/*
 * Reads the old content of a partially written block, which is zeros if it is
 * unwritten or past the end of the file, and copies the new bytes over it. A
 * damaged block has no old content; only its bytes past the end are known.
 */
static int write_fill_edge(struct round *r, uint64_t file_block)
{
    const struct ffs_extent *extent = write_extent_of(r, file_block);
    uint8_t *edge = r->edge[r->edges];
    uint64_t start = ffs_bytes(file_block);
    uint64_t from = max_u64(r->offset, start);
    uint64_t to = min_u64(r->end, start + LAY_BLOCK_SIZE);
    int err = 0;

    memset(edge, 0, LAY_BLOCK_SIZE);
    bool whole = from == start && to >= min_u64(start + LAY_BLOCK_SIZE, r->f->size);
    if (extent->damaged && !whole && start < r->f->size)
        return -EIO;
    if (ffs_extent_is_data(extent) && start < r->f->size) {
        uint64_t block = extent->block + (file_block - extent->file_block);
        err = ffs_read_block(r->inode->fs, block, edge);
        if (err == -EBADMSG)
            return ffs_bad_block(r->inode, file_block, block);
        uint64_t valid = min_u64(r->f->size - start, LAY_BLOCK_SIZE);
        memset(edge + valid, 0, LAY_BLOCK_SIZE - valid);
    }
    memcpy(edge + (from - start), r->buf + (from - r->offset), to - from);
    r->edge_block[r->edges++] = file_block;
    return err;
}

static int write_fill_edges(struct round *r)
{
    uint64_t first = ffs_block_of(r->offset), last = ffs_block_of(r->end - 1);
    int err = 0;

    if (r->offset % LAY_BLOCK_SIZE != 0 || r->end < ffs_bytes(first + 1))
        err = write_fill_edge(r, first);
    if (!err && r->end % LAY_BLOCK_SIZE != 0 && (last != first || r->edges == 0))
        err = write_fill_edge(r, last);
    return err;
}

/* Returns the edge buffer of this block, or NULL. */
static uint8_t *write_edge_of(struct round *r, uint64_t file_block)
{
    for (unsigned i = 0; i < r->edges; i++) {
        if (r->edge_block[i] == file_block)
            return r->edge[i];
    }
    return NULL;
}

/*
 * Adds transfers for the blocks [from, to) of one extent, from the caller's
 * buffer or from edges.
 */
static void data_write_write_blocks(struct round *r, struct ffs_batch *b,
                                    const struct ffs_extent *extent, uint64_t from, uint64_t to)
{
    while (from < to) {
        uint64_t block = extent->block + (from - extent->file_block);
        uint8_t *edge = write_edge_of(r, from);
        uint64_t n = 1;
        if (edge) {
            ffs_batch_add(b, BD_WRITE, block, edge, LAY_BLOCK_SIZE);
        } else {
            n = to - from - (write_edge_of(r, to - 1) != NULL);
            /*
             * The interface has one pointer type for both directions; a write
             * only reads from it.
             */
            void *data = (void *)(uintptr_t)(r->buf + (ffs_bytes(from) - r->offset));
            ffs_batch_add(b, BD_WRITE, block, data, ffs_bytes(n));
        }
        from += n;
    }
}

static int write_transfer(struct round *r)
{
    struct ffs_batch b;
    uint64_t first = ffs_block_of(r->offset), end = ffs_block_up(r->end);

    ffs_batch_init(&b, r->inode->fs);
    for (size_t i = 0; i < r->extents.n; i++) {
        const struct ffs_extent *extent = &r->extents.extent[i];
        uint64_t from = max_u64(first, extent->file_block);
        uint64_t to = min_u64(end, extent->file_block + extent->len);
        data_write_write_blocks(r, &b, extent, from, to);
    }
    return ffs_batch_run(&b);
}

/* Zeros the rest of partially written units, which then count as written. */
static int write_zero_around(struct round *r)
{
    uint64_t first = ffs_block_of(r->offset), end = ffs_block_up(r->end);
    uint64_t unit_first = ffs_unit_down(r->f, first), unit_end = ffs_unit_up(r->f, end);
    int err = ffs_zero(r->inode, ffs_bytes(unit_first), ffs_bytes(first), FFS_ZERO_UNWRITTEN);

    if (err)
        return err;
    return ffs_zero(r->inode, ffs_bytes(end), ffs_bytes(unit_end), FFS_ZERO_UNWRITTEN);
}

/* Computes the checksums of the round's blocks. */
static void write_sum_blocks(struct round *r)
{
    uint64_t first = ffs_block_of(r->offset), end = ffs_block_up(r->end);

    for (uint64_t block = first; block < end; block++) {
        const uint8_t *edge = write_edge_of(r, block);
        /*
         * A block that begins before the round is an edge, because the buffer
         * does not contain it.
         */
        r->sums[block - first] =
            lay_data_sum(edge ? edge : r->buf + (ffs_bytes(block) - r->offset));
    }
}

/*
 * Returns true if only data has changed: the blocks were written before, the
 * file has not grown, and its time is that of an earlier write. The commit of
 * that write is still to come and also flushes this one.
 */
static bool write_is_settled(const struct round *r)
{
    struct ffs_inode *inode = r->inode;

    for (size_t i = 0; i < r->extents.n; i++) {
        if (!ffs_extent_is_data(&r->extents.extent[i]))
            return false;
    }
    if (r->end > r->f->size)
        return false;
    ffs_meta_read(inode->fs);
    bool settled = atomic_load(&inode->tid) == ffs_running_tid(inode->fs) && ffs_stamp_stays(inode);
    ffs_meta_done(inode->fs);
    return settled;
}

/* Called after the transfer. [first, end) are the units of the round. */
static int write_make_written(struct round *r, uint64_t first, uint64_t end)
{
    struct ffs_fresh fresh = {.first = ffs_block_of(r->offset),
                              .end = ffs_block_up(r->end),
                              .sums = r->sums,
                              .partial = r->edge_block,
                              .npartial = r->edges};

    if (!ffs_has_sums(ffs_geometry(r->inode->fs)))
        return write_is_settled(r) ? 0 : ffs_written(r->inode, first, end, r->end, NULL);
    write_sum_blocks(r);
    return ffs_written(r->inode, first, end, r->end, &fresh);
}

static bool write_has_hole(const struct ffs_extent_window *extents)
{
    for (size_t i = 0; i < extents->n; i++) {
        if (extents->extent[i].block == LAY_NONE)
            return true;
    }
    return false;
}

/*
 * Gets the extents of [first, end), whole units, after filling holes as far as
 * space allows.
 */
static int write_map_units(struct round *r, uint64_t first, uint64_t end)
{
    uint64_t upto;
    int err = ffs_extent_window_get(r->inode, first, end, &r->extents);

    if (err || (r->extents.end == end && !write_has_hole(&r->extents)))
        return err;
    err = ffs_reserve(r->inode, r->f, first, end, &upto);
    if (err && (err != -ENOSPC || ffs_bytes(upto) <= r->offset))
        return err;
    return ffs_extent_window_get(r->inode, first, upto, &r->extents);
}

/* Writes r->offset to r->end, which is lowered if space runs out. */
static int write_round(struct round *r)
{
    uint64_t first = ffs_unit_down(r->f, ffs_block_of(r->offset));
    uint64_t end = ffs_unit_up(r->f, ffs_block_up(r->end));
    int err = write_map_units(r, first, end);

    if (err)
        return err;
    end = r->extents.end;
    r->end = min_u64(r->end, ffs_bytes(end));
    if (r->end <= r->offset)
        return ffs_corrupt(r->inode->fs, LAY_NONE, r->inode->ino, "extents inside a 2 MiB unit");

    err = write_fill_edges(r);
    if (!err)
        err = write_zero_around(r);
    if (!err)
        err = ffs_drop_sums(r->inode, ffs_block_of(r->offset), ffs_block_up(r->end));
    if (!err)
        err = write_transfer(r);
    return err ? err : write_make_written(r, first, end);
}

static ssize_t write_locked(struct ffs_inode *inode, uint64_t offset, const uint8_t *buf,
                            size_t len)
{
    struct ffs_file f;
    int err = ffs_file_open_rw(inode, offset, &f);

    if (err)
        return err;
    if (len == 0)
        return 0;
    if (offset >= FFS_SIZE_MAX)
        return -EFBIG;
    /* write_fill_edge() handles the block that contains `offset`. */
    err = ffs_zero_edge(inode, &f, ffs_bytes(ffs_block_of(offset)));
    if (err)
        return err;
    uint64_t end = offset + min_u64(min_u64(len, SSIZE_MAX), FFS_SIZE_MAX - offset);
    struct round r; /* large, so each round initialises only the parts that it uses */
    r.inode = inode;
    r.f = &f;
    for (uint64_t at = offset; at < end; at = r.end) {
        r.offset = at;
        r.end = min_u64(end, at - at % ROUND + ROUND);
        r.buf = buf + (at - offset);
        r.edges = 0;
        err = write_round(&r);
        if (err)
            return at > offset ? (ssize_t)(at - offset) : err;
        f.size = max_u64(f.size, r.end);
    }
    return (ssize_t)(end - offset);
}

ssize_t ffs_write(struct ffs_inode *inode, uint64_t offset, const void *buf, size_t len)
{
    pthread_rwlock_wrlock(&inode->data);
    ssize_t done = write_locked(inode, offset, buf, len);
    pthread_rwlock_unlock(&inode->data);
    return done;
}

/* --- Truncation ------------------------------------------------------------------------------ */

/* Returns the first block past the unit that holds the end of the file. */
static uint64_t truncate_first_unneeded(const struct ffs_file *f)
{
    return ffs_unit_up(f, ffs_block_up(f->size));
}

/*
 * Sets *tail to true if the last unit has written data past the end of the file, which has to be
 * zeroed on the device.
 */
static int truncate_has_tail(struct ffs_inode *inode, const struct ffs_file *f, bool *tail)
{
    struct ffs_extent extent;

    *tail = false;
    if (f->size % ffs_bytes(f->unit) == 0)
        return 0;
    int err = ffs_extent_find(inode, ffs_block_of(f->size), &extent);
    if (!err)
        *tail = ffs_extent_is_data(&extent);
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

    struct ffs_file f = ffs_file_of(inode);
    uint64_t first = truncate_first_unneeded(&f), next;
    err = ffs_extent_remove(tx, inode, first, UINT64_MAX - first, &next);
    if (!err)
        err = truncate_has_tail(inode, &f, &tail);
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
                err = ffs_sections_of(inode->fs, w.extent[i].block, min_u64(w.extent[i].len, most));
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

    while (first < end && !err)
        err = truncate_unmap_once(inode, &first, end);
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
    struct ffs_file f = ffs_file_of(inode);
    ffs_meta_done(inode->fs);

    uint64_t first = truncate_first_unneeded(&f);
    int err = 0;
    if (regular)
        err = ffs_zero(inode, f.size, ffs_bytes(first), FFS_ZERO_WRITTEN);
    if (regular && !err)
        err = ffs_unmap(inode, first, UINT64_MAX);
    return err ? err : truncate_leave_orphans(inode);
}

int ffs_truncate_resume(struct ffs_inode *inode)
{
    ffs_meta_read(inode->fs);
    struct ffs_file f = ffs_file_of(inode);
    ffs_meta_done(inode->fs);
    return f.unfinished ? ffs_truncate_finish(inode) : 0;
}

int ffs_file_open_rw(struct ffs_inode *inode, uint64_t from, struct ffs_file *out)
{
    int err = ffs_file_open(inode, out);

    if (!err && ((out->flags & LAY_INODE_IMMUTABLE) ||
                 ((out->flags & LAY_INODE_APPEND) && from < out->size)))
        err = -EPERM;
    if (!err)
        err = ffs_writable(inode->fs);
    if (!err)
        err = bd_may_write(ffs_dev(inode->fs), true);
    return !err && out->unfinished ? ffs_truncate_finish(inode) : err;
}
