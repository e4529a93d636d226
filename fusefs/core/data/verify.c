/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checksums of file data (FORMAT.md 5.4): compares them on reads, changes them
 * on writes, and keeps the copies of watches.
 */
#include "fusefs/core/data/verify.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <syslog.h>

#include "fusefs/core/journal/ops.h"
#include "fusefs/core/map/extents.h"
#include "fusefs/core/state.h"

/* --- Reading --------------------------------------------------------------------------------- */

/* Reads a block again that did not match its checksum. */
static int verify_read_again(struct ffs *fs, uint64_t block, void *data)
{
    uint64_t good;
    int err = bd_read(ffs_dev(fs), ffs_offset_of(block), data, LAY_BLOCK_SIZE);

    if (!err)
        err = ffs_sums_verify(fs, block, 1, data, &good);
    if (err)
        return err;
    return good == 1 ? 0 : -EBADMSG;
}

int ffs_verify(struct ffs *fs, uint64_t block, uint64_t n, void *data, uint64_t *bad)
{
    uint8_t *bytes = data;
    int err = 0;

    for (uint64_t done = 0, good; done < n; done += good + 1) {
        err = ffs_sums_verify(fs, block + done, n - done, bytes + ffs_offset_of(done), &good);
        if (err || good == n - done)
            break;
        *bad = done + good;
        err = verify_read_again(fs, block + *bad, bytes + ffs_offset_of(*bad));
        if (err)
            break;
    }
    return err;
}

int ffs_read_block(struct ffs *fs, uint64_t block, void *data)
{
    uint64_t bad;
    int err = bd_read(ffs_dev(fs), ffs_offset_of(block), data, LAY_BLOCK_SIZE);

    return err ? err : ffs_verify(fs, block, 1, data, &bad);
}

int ffs_bad_block(struct ffs_inode *inode, uint64_t file_block, uint64_t block)
{
    struct ffs *fs = inode->fs;

    ffs_log(fs, LOG_ERR,
            "%s: inode %llu: block %llu of the file (block %llu of the device) does not match its "
            "checksum",
            ffs_dev(fs)->info.name, (unsigned long long)inode->ino, (unsigned long long)file_block,
            (unsigned long long)block);
    return -EIO;
}

static_assert(FFS_NO_SUM == LAY_NO_SUM, "entries are what callers get");

int ffs_mapped_sums(struct ffs_inode *inode, uint64_t first, uint64_t n, uint64_t expected,
                    uint32_t *sums)
{
    struct ffs_extent e;
    int err = 0;

    for (uint64_t done = 0, part; done < n && !err; done += part) {
        ffs_meta_read(inode->fs);
        err = ffs_extent_find(inode, first + done, &e);
        ffs_meta_done(inode->fs);
        part = err ? 0 : ffs_min(e.len, n - done);
        if (err || e.block == LAY_NONE || e.unwritten ||
            (expected != LAY_NONE && e.block != expected + done))
            memset(sums + done, 0, part * sizeof(*sums));
        else
            err = ffs_sums_get(inode->fs, e.block, part, sums + done);
    }
    return err;
}

uint32_t ffs_sum_of(uint32_t crc)
{
    return lay_sum_of(crc);
}

/* Called with the data lock held shared. Releases it. */
static int verify_file_sums(struct ffs_inode *inode, uint64_t offset, size_t n, uint32_t *sums)
{
    struct ffs *fs = inode->fs;
    int err = 0;

    if (!ffs_has_sums(ffs_geometry(fs)) || fs->sums.stale)
        memset(sums, 0, n * sizeof(*sums));
    else
        err = ffs_mapped_sums(inode, ffs_block_of(offset), n, LAY_NONE, sums);
    pthread_rwlock_unlock(&inode->data);
    return err;
}

int ffs_file_sums(struct ffs_inode *inode, uint64_t offset, size_t n, uint32_t *sums)
{
    pthread_rwlock_rdlock(&inode->data);
    return verify_file_sums(inode, offset, n, sums);
}

int ffs_file_sums_now(struct ffs_inode *inode, uint64_t offset, size_t n, uint32_t *sums)
{
    if (pthread_rwlock_tryrdlock(&inode->data))
        return -EAGAIN;
    return verify_file_sums(inode, offset, n, sums);
}

/* --- Overwriting in place -------------------------------------------------------------------- */

int ffs_drop_sums(struct ffs_inode *inode, uint64_t first, uint64_t end)
{
    struct ffs_extent e;
    uint64_t tid = 0;
    int err = 0;

    if (!ffs_has_sums(ffs_geometry(inode->fs)))
        return 0;
    ffs_watches_drop_sums(inode, first, end);
    for (; first < end && !err; first += e.len) {
        ffs_meta_read(inode->fs);
        err = ffs_extent_find(inode, first, &e);
        ffs_meta_done(inode->fs);
        if (err)
            break;
        e.len = ffs_min(e.len, end - first);
        if (e.block != LAY_NONE && !e.unwritten)
            err = ffs_sums_drop(inode->fs, e.block, e.len, &tid);
    }
    return err ? err : ffs_commit(inode->fs, tid);
}

static int verify_drop_range(struct ffs_inode *inode, uint64_t file_block, uint64_t block,
                             uint64_t n)
{
    struct ffs *fs = inode->fs;
    uint64_t tid = 0;

    if (ffs_has_sums(ffs_geometry(fs)))
        ffs_watches_drop_sums(inode, file_block, file_block + n);
    int err = ffs_sums_drop(fs, block, n, &tid);
    return err ? err : ffs_commit(fs, tid);
}

int ffs_overwrite_block(struct ffs_inode *inode, uint64_t file_block, uint64_t block,
                        const void *data)
{
    struct ffs *fs = inode->fs;
    uint32_t sum = lay_data_sum(data);
    int err = verify_drop_range(inode, file_block, block, 1);

    if (!err)
        err = bd_write(ffs_dev(fs), ffs_offset_of(block), data, LAY_BLOCK_SIZE, 0);
    if (!err)
        ffs_sums_wait(fs, block, 1, &sum);
    return err;
}

int ffs_overwrite_zeroes(struct ffs_inode *inode, uint64_t file_block, uint64_t block, uint64_t n)
{
    static const uint32_t sum = LAY_ZEROS_SUM;
    struct ffs *fs = inode->fs;
    int err = verify_drop_range(inode, file_block, block, n);

    if (!err)
        err = bd_write_zeroes(ffs_dev(fs), ffs_offset_of(block), ffs_offset_of(n));
    for (uint64_t i = 0; i < n && !err; i++)
        ffs_sums_wait(fs, block + i, 1, &sum);
    return err;
}

/* --- Data that becomes part of a file -------------------------------------------------------- */

/*
 * Returns true if `fresh` has the data of `block`. Cuts *len so that the answer is the same for all
 * of the range.
 */
static bool verify_is_data(const struct ffs_fresh *fresh, uint64_t block, uint64_t *len)
{
    if (block < fresh->first) {
        *len = ffs_min(*len, fresh->first - block);
        return false;
    }
    if (block >= fresh->end)
        return false;
    *len = ffs_min(*len, fresh->end - block);
    return true;
}

/*
 * Removes the checksums of the partially written blocks of an extent. The new
 * checksums stay pending, because these blocks are likely to be written again.
 */
static int verify_put_partial(struct ffs_tx *tx, struct ffs_inode *inode,
                              const struct ffs_extent *e, const struct ffs_fresh *fresh)
{
    int err = 0;

    for (unsigned i = 0; i < fresh->npartial && !err; i++) {
        uint64_t at = fresh->partial[i] - e->file_block;
        if (at >= e->len)
            continue;
        err = ffs_sums_put(tx, e->block + at, 1, NULL);
        ffs_sums_wait(inode->fs, e->block + at, 1, &fresh->sums[fresh->partial[i] - fresh->first]);
    }
    return err;
}

/*
 * Enters the checksums of an extent, or a part of one, whose entries lie in one checksum block. Its
 * blocks are data, or zeros around the data.
 */
static int verify_put_extent(struct ffs_tx *tx, struct ffs_inode *inode, const struct ffs_extent *e,
                             const struct ffs_fresh *fresh, bool data)
{
    uint32_t zeros[LAY_SUMS_ENTRIES];

    if (!e->unwritten) {
        if (data)
            ffs_sums_wait(inode->fs, e->block, e->len, &fresh->sums[e->file_block - fresh->first]);
        return 0;
    }
    if (!data) {
        for (uint64_t i = 0; i < e->len; i++)
            zeros[i] = LAY_ZEROS_SUM;
        return ffs_sums_put(tx, e->block, e->len, zeros);
    }
    int err = ffs_sums_put(tx, e->block, e->len, &fresh->sums[e->file_block - fresh->first]);
    return err ? err : verify_put_partial(tx, inode, e, fresh);
}

int ffs_fresh_put(struct ffs_tx *tx, struct ffs_inode *inode, uint64_t first, uint64_t *end,
                  const struct ffs_fresh *fresh)
{
    struct ffs_extent e;

    if (!ffs_has_sums(ffs_geometry(inode->fs)))
        return 0;
    for (uint64_t at = first; at < *end; at += e.len) {
        int err = ffs_extent_find(inode, at, &e);
        if (err)
            return err;
        e.len = ffs_min(e.len, *end - at);
        if (e.block == LAY_NONE)
            continue;
        e.len = ffs_min(e.len, (uint64_t)(LAY_SUMS_ENTRIES - e.block % LAY_SUMS_ENTRIES));
        bool data = fresh && verify_is_data(fresh, at, &e.len);
        if (at > first && ffs_tx_left(tx) <= ffs_extent_credits(inode)) {
            *end = at;
            return 0;
        }
        if (fresh)
            err = verify_put_extent(tx, inode, &e, fresh, data);
        else if (e.unwritten)
            err = ffs_sums_put(tx, e.block, e.len, NULL);
        if (err)
            return err;
    }
    return 0;
}

/* --- Checksums of a watch --------------------------------------------------------------------- */

/* Maximum number of checksums that are stored in one hold of the data lock. */
#define FILL 512u

static int verify_fill_some(struct ffs_inode *inode, struct ffs_watch *w, uint64_t first,
                            uint64_t block, uint64_t n)
{
    uint32_t sums[FILL];

    pthread_rwlock_rdlock(&inode->data);
    int err = ffs_mapped_sums(inode, first, n, block, sums);
    for (uint64_t i = 0; i < n && !err; i++)
        __atomic_store_n(&w->sums[first + i], sums[i], __ATOMIC_RELAXED);
    pthread_rwlock_unlock(&inode->data);
    return err;
}

static int verify_fill_segment(struct ffs_inode *inode, struct ffs_watch *w,
                               const struct ffs_segment *s)
{
    uint64_t first = ffs_block_of(s->offset), block = ffs_block_of(s->device);
    uint64_t n = first < w->n_sums ? ffs_min(ffs_block_of(s->len), w->n_sums - first) : 0;
    int err = 0;

    for (uint64_t done = 0, part; done < n && !err; done += part) {
        part = ffs_min(n - done, FILL);
        err = verify_fill_some(inode, w, first + done, block + done, part);
    }
    return err;
}

int ffs_watch_sums(struct ffs_inode *inode, struct ffs_watch *w, const struct ffs_map *map,
                   uint32_t *sums, uint64_t n)
{
    bool useless = !ffs_has_sums(ffs_geometry(inode->fs)) || inode->fs->sums.stale;
    int err = 0;

    memset(sums, 0, n * sizeof(*sums));
    if (useless)
        return 0;
    pthread_rwlock_wrlock(&inode->fs->meta);
    w->sums = sums;
    w->n_sums = n;
    pthread_rwlock_unlock(&inode->fs->meta);
    for (size_t i = 0; i < map->count && !err; i++) {
        const struct ffs_segment *s = &map->segments[i];
        if (s->device != FFS_HOLE && !s->unwritten)
            err = verify_fill_segment(inode, w, s);
    }
    return err;
}
