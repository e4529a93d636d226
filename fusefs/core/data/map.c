/* SPDX-License-Identifier: BSD-2-Clause */
/* Maps files for transfers that bypass ffs_read() and ffs_write(). */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include <syslog.h>

#include "fusefs/core/data/data.h"
#include "fusefs/core/data/sums.h"
#include "fusefs/core/state.h"
#include "support/array.h"

/* Resources that a map holds until it is released. */
struct held {
    struct ffs *fs;
    struct ffs_pin *pin;     /* for maps for reading */
    struct ffs_inode *inode; /* for maps for writing: referenced, data locked exclusively */
    struct ffs_file file;
    uint64_t offset, end; /* range of the request, bytes */
};

static struct ffs_segment map_segment_of(const struct ffs_extent *extent)
{
    bool hole = extent->block == LAY_NONE;

    return (struct ffs_segment){.offset = ffs_bytes(extent->file_block),
                                .len = ffs_bytes(extent->len),
                                .device = hole ? FFS_HOLE : ffs_bytes(extent->block),
                                .unwritten = extent->unwritten};
}

/*
 * Lists [first, end) in map, at most max segments of it. The caller holds ffs.meta.
 * A transfer by the map knows no damage, so one that a damaged extent reaches
 * into is refused.
 */
static int map_collect(struct ffs_inode *inode, uint64_t first, uint64_t end, size_t max,
                       struct ffs_map *map)
{
    struct ffs_extent extents[FFS_EXTENT_WINDOW];
    size_t room = 0;

    map->start = ffs_bytes(first);
    map->generation = atomic_load_explicit(&inode->map_generation, memory_order_relaxed);
    while (first < end && map->count < max) {
        size_t most = min_u64(max - map->count, FFS_EXTENT_WINDOW);
        ssize_t n = ffs_extent_list(inode, first, end, extents, most);
        int err = n < 0 ? (int)n
                        : array_reserve((void **)&map->segments, &room, map->count + (size_t)n,
                                        sizeof(*map->segments));
        if (err)
            return err;
        for (ssize_t i = 0; i < n; i++) {
            if (extents[i].damaged)
                return -EIO;
            map->segments[map->count++] = map_segment_of(&extents[i]);
        }
        first = extents[n - 1].file_block + extents[n - 1].len;
    }
    return 0;
}

static void map_discard(struct ffs_map *map)
{
    free(map->segments);
    free(map->internal);
    *map = (struct ffs_map){.segments = NULL};
}

/* --- For reading ----------------------------------------------------------------------------- */

/* Limits `len` to the range that the segments cover. */
static void map_clip(struct ffs_map *map, uint64_t offset)
{
    const struct ffs_segment *last = map->count ? &map->segments[map->count - 1] : NULL;

    if (last)
        map->len = min_u64(map->len, last->offset + last->len - offset);
}

static int map_read(struct ffs_inode *inode, uint64_t offset, uint64_t len, size_t max,
                    struct ffs_map *out)
{
    struct held *h = out->internal;
    int err = ffs_file_open(inode, &h->file);

    if (err)
        return err;
    out->size = h->file.size;
    if (offset < h->file.size)
        out->len = min_u64(len, h->file.size - offset);
    uint64_t end = out->len ? ffs_block_up(offset + out->len) : ffs_block_of(offset);

    /*
     * The extents are listed and pinned under one lock, so that no block is
     * freed in between.
     */
    ffs_meta_read(inode->fs);
    err = map_collect(inode, ffs_block_of(offset), end, max, out);
    if (!err)
        err = ffs_pin_add(inode->fs, out->segments, out->count, &h->pin);
    ffs_meta_done(inode->fs);
    if (!err)
        map_clip(out, offset);
    return err;
}

int ffs_map_read_some(struct ffs_inode *inode, uint64_t offset, uint64_t len, size_t max,
                      struct ffs_map *out)
{
    struct held *h = calloc(1, sizeof(*h));

    if (!h)
        return -ENOMEM;
    h->fs = inode->fs;
    *out = (struct ffs_map){.internal = h};
    /* Waits for writers, so that their data is on the device. */
    pthread_rwlock_rdlock(&inode->data);
    int err = map_read(inode, offset, len, max, out);
    pthread_rwlock_unlock(&inode->data);
    if (err)
        map_discard(out);
    return err;
}

int ffs_map_read(struct ffs_inode *inode, uint64_t offset, uint64_t len, struct ffs_map *out)
{
    return ffs_map_read_some(inode, offset, len, SIZE_MAX, out);
}

void ffs_map_release(struct ffs_map *map)
{
    struct held *h = map->internal;

    assert(h && !h->inode);
    ffs_pin_drop(h->fs, h->pin);
    map_discard(map);
}

/* --- For writing ----------------------------------------------------------------------------- */

/*
 * Zeros the unwritten parts of partially covered blocks and of their units, so
 * that they may be marked as written whatever part of the request is
 * transferred.
 */
static int map_zero_outside(struct ffs_inode *inode, const struct held *h)
{
    const struct ffs_file *f = &h->file;
    uint64_t first = ffs_unit_down(f, ffs_block_of(h->offset));
    uint64_t last = ffs_unit_up(f, ffs_block_up(h->end));
    uint64_t whole = ffs_block_up(h->offset), after = ffs_block_of(h->end);

    if (whole >= after)
        return ffs_zero(inode, ffs_bytes(first), ffs_bytes(last), FFS_ZERO_UNWRITTEN);
    int err = ffs_zero(inode, ffs_bytes(first), ffs_bytes(whole), FFS_ZERO_UNWRITTEN);
    if (err)
        return err;
    return ffs_zero(inode, ffs_bytes(after), ffs_bytes(last), FFS_ZERO_UNWRITTEN);
}

/*
 * Returns -EIO if [from, to) (bytes) touches a damaged extent. A transfer that
 * stops early would leave the rest of a block unknown but written; ffs_write()
 * ends damage.
 */
static int map_refuse_damage(struct ffs_inode *inode, uint64_t from, uint64_t to)
{
    struct ffs_extent_window w;

    for (uint64_t at = ffs_block_of(from); at < ffs_block_up(to); at = w.end) {
        int err = ffs_extent_window_get(inode, at, ffs_block_up(to), &w);
        for (size_t i = 0; i < w.n && !err; i++)
            err = w.extent[i].damaged ? -EIO : 0;
        if (err)
            return err;
    }
    return 0;
}

static int map_write(struct ffs_inode *inode, uint64_t offset, uint64_t len, struct ffs_map *out)
{
    struct held *h = out->internal;
    uint64_t upto;
    int err = ffs_file_open_rw(inode, offset, &h->file);

    if (!err)
        err = map_refuse_damage(inode, offset, offset + len);
    if (err)
        return err;
    h->offset = offset;
    h->end = offset + len;
    err = ffs_zero_edge(inode, &h->file, offset);
    if (err)
        return err;
    uint64_t first = ffs_block_of(offset), end = ffs_block_up(h->end);
    err = ffs_reserve(inode, &h->file, ffs_unit_down(&h->file, first), ffs_unit_up(&h->file, end),
                      &upto);
    if (!err)
        err = map_zero_outside(inode, h);
    if (!err)
        err = ffs_drop_sums(inode, first, end);
    if (err)
        return err;
    out->len = len;
    ffs_meta_read(inode->fs);
    err = map_collect(inode, first, end, SIZE_MAX, out);
    ffs_meta_done(inode->fs);
    return err;
}

int ffs_map_write(struct ffs_inode *inode, uint64_t offset, uint64_t len, struct ffs_map *out)
{
    if (len == 0)
        return -EINVAL;
    if (offset > FFS_SIZE_MAX || len > FFS_SIZE_MAX - offset)
        return -EFBIG;
    struct held *h = calloc(1, sizeof(*h));
    if (!h)
        return -ENOMEM;
    h->fs = inode->fs;
    h->inode = inode;
    *out = (struct ffs_map){.internal = h};
    ffs_iref(inode, 1);
    pthread_rwlock_wrlock(&inode->data);
    int err = map_write(inode, offset, len, out);
    if (err) {
        pthread_rwlock_unlock(&inode->data);
        ffs_iput(inode, 1);
        map_discard(out);
    }
    return err;
}

/*
 * Zeros the untransferred part of the last unit that was reached, and the end
 * of the file's last block.
 */
static int map_zero_rest(const struct held *h, uint64_t done)
{
    uint64_t block_end = ffs_block_up(done);
    uint64_t stop = min_u64(ffs_unit_up(&h->file, block_end), ffs_block_up(h->end));
    int err = ffs_zero(h->inode, done, ffs_bytes(stop), FFS_ZERO_UNWRITTEN);

    if (err || done <= h->file.size)
        return err;
    return ffs_zero(h->inode, done, ffs_bytes(block_end), FFS_ZERO_WRITTEN);
}

static int map_write_end(const struct held *h, uint64_t written, const uint32_t *sums)
{
    uint64_t done = h->offset + written;
    const struct ffs_fresh fresh = {
        .first = ffs_block_of(h->offset), .end = ffs_block_of(done), .sums = sums};
    int err = map_zero_rest(h, done);

    if (err)
        return err;
    uint64_t first = ffs_unit_down(&h->file, ffs_block_of(h->offset));
    return ffs_written(h->inode, first, ffs_unit_up(&h->file, ffs_block_up(done)), done,
                       sums ? &fresh : NULL);
}

int ffs_map_write_end(struct ffs_map *map, uint64_t written, const uint32_t *sums)
{
    struct held *h = map->internal;

    assert(h && h->inode && written <= h->end - h->offset);
    assert(!sums || (h->offset | written) % LAY_BLOCK_SIZE == 0);
    struct ffs_inode *inode = h->inode;
    int err = written ? map_write_end(h, written, sums) : 0;
    pthread_rwlock_unlock(&inode->data);
    map_discard(map);
    ffs_iput(inode, 1);
    return err;
}

/* --- When it does not end -------------------------------------------------------------------- */

void ffs_map_abandon(struct ffs_map *map)
{
    struct held *h = map->internal;
    struct ffs *fs = h->fs;
    struct ffs_inode *inode = h->inode;

    map_discard(map); /* a pin remains until the unmount */
    if (!inode)
        return;
    /*
     * Without handles no block is freed or allocated, so a late write affects
     * only this file.
     */
    if (!(atomic_fetch_or(&fs->health, FFS_STUCK) & FFS_STUCK))
        ffs_log(fs, LOG_ERR,
                "a write to inode %llu cannot be ended; the file system is read-only now",
                (unsigned long long)inode->ino);
    pthread_rwlock_unlock(&inode->data);
    ffs_iput(inode, 1);
}

/* --- Listing --------------------------------------------------------------------------------- */

/*
 * Ends the hole after the last extent at the end of the file. Returns false if
 * the file has no such hole.
 */
static bool map_end_hole(struct ffs_extent *last, uint64_t end)
{
    if (last->block != LAY_NONE || last->len != UINT64_MAX - last->file_block)
        return true;
    last->len = last->file_block < end ? end - last->file_block : 0;
    return last->len > 0;
}

/*
 * Lists extents from `block` to the end of the file or of the last extent,
 * whichever is later.
 */
static ssize_t map_list(struct ffs_inode *inode, uint64_t block, struct ffs_segment *out,
                        size_t max)
{
    uint64_t end = ffs_block_up(ffs_size(inode));
    struct ffs_extent extents[FFS_EXTENT_WINDOW];
    ssize_t got = 1;
    size_t n = 0;

    if (!S_ISREG(ffs_mode(inode)))
        return -EINVAL;
    while (n < max && block < UINT64_MAX && got > 0) {
        got =
            ffs_extent_list(inode, block, UINT64_MAX, extents, min_u64(max - n, FFS_EXTENT_WINDOW));
        for (ssize_t i = 0; i < got; i++) {
            block = extents[i].file_block + extents[i].len;
            if (extents[i].damaged)
                return n > 0 ? (ssize_t)n : -EIO;
            if (map_end_hole(&extents[i], end))
                out[n++] = map_segment_of(&extents[i]);
        }
    }
    return got < 0 ? got : (ssize_t)n;
}

ssize_t ffs_extents(struct ffs_inode *inode, uint64_t offset, struct ffs_segment *out, size_t max)
{
    int err = ffs_alive(inode->fs);

    if (err)
        return err;
    ffs_meta_read(inode->fs);
    ssize_t n = map_list(inode, ffs_block_of(offset), out, max);
    ffs_meta_done(inode->fs);
    return n;
}
