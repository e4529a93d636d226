/* SPDX-License-Identifier: BSD-2-Clause */
/* Stores checksums of data on disk, and keeps those that are not stored yet. */
#include "fusefs/core/data/sums.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "fusefs/core/inode/tx.h"
#include "fusefs/core/journal/ops.h"
#include "fusefs/core/map/extents.h"
#include "fusefs/core/state.h"

/*
 * Holds a checksum that is not stored yet. Its index is its block number modulo
 * SLOTS. If two blocks have the same index, the checksum of the later block is
 * kept. The other block remains without a checksum.
 */
struct ffs_waiting {
    uint64_t block; /* 0 if empty; block 0 never holds data */
    uint32_t sum;
    uint32_t round; /* round in which it was added */
};
#define SLOTS  (1u << 18) /* covers 1 GiB of data */
#define GROUP  64u        /* slots per counter, so that empty groups are skipped quickly */
#define GROUPS (SLOTS / GROUP)

/* Maximum number of checksum blocks that one handle changes. */
#define BATCH 64u

void ffs_sums_destroy(struct ffs_sums *sums)
{
    free(sums->waiting);
    free(sums->in_group);
    pthread_mutex_destroy(&sums->lock);
}

/* --- Entries on disk ------------------------------------------------------------------------- */

/*
 * Gets the checksum block of `block`. The caller holds ffs.meta. Returns -EIO if it
 * is damaged: the file is not, but its data cannot be verified.
 */
static int sums_get_block(struct ffs *fs, uint64_t block, struct ffs_buf **out)
{
    uint64_t index = block / LAY_SUMS_ENTRIES;
    struct lay_expect expect = {.magic = LAY_MAGIC_SUMS};
    int err = ffs_buf_get(fs, LAY_ADDR(LAY_KIND_SUMS, index), &expect, out);

    return err == -EUCLEAN ? -EIO : err;
}

/*
 * Returns the number of blocks of the range whose entries lie in the checksum
 * block of the first one.
 */
static uint64_t sums_in_one(uint64_t block, uint64_t n)
{
    uint64_t left = LAY_SUMS_ENTRIES - block % LAY_SUMS_ENTRIES;

    return n < left ? n : left;
}

/*
 * Reads the entries of a range that lie in one checksum block. Takes ffs.meta.
 */
static int sums_read_entries(struct ffs *fs, uint64_t block, uint64_t n, le32 *entries)
{
    struct ffs_buf *buf;

    ffs_meta_read(fs);
    int err = sums_get_block(fs, block, &buf);
    if (!err) {
        const struct lay_sums *s = buf->data;
        memcpy(entries, &s->sums[block % LAY_SUMS_ENTRIES], n * sizeof(*entries));
        ffs_buf_put(buf);
    }
    ffs_meta_done(fs);
    return err;
}

int ffs_sums_verify(struct ffs *fs, uint64_t block, uint64_t n, const void *data, uint64_t *bad)
{
    le32 entries[LAY_SUMS_ENTRIES];
    const uint8_t *at = data;

    *bad = n;
    if (!ffs_has_sums(&fs->geo) || fs->sums.stale)
        return 0;
    for (uint64_t done = 0, part; done < n; done += part) {
        part = sums_in_one(block + done, n - done);
        int err = sums_read_entries(fs, block + done, part, entries);
        if (err)
            return err;
        for (uint64_t i = 0; i < part; i++, at += LAY_BLOCK_SIZE) {
            uint32_t sum = lay_get32(entries[i]);
            if (sum != LAY_NO_SUM && sum != lay_data_sum(at)) {
                *bad = done + i;
                return 0;
            }
        }
    }
    return 0;
}

/*
 * Stores the entries of a range that lie in one checksum block. Called in a
 * handle.
 */
static int sums_put_entries(struct ffs_tx *tx, struct ffs *fs, uint64_t block, uint64_t n,
                            const uint32_t *sums)
{
    struct ffs_buf *buf;
    int err = sums_get_block(fs, block, &buf);

    if (err)
        return err;
    err = ffs_tx_dirty(tx, buf);
    struct lay_sums *s = buf->data;
    le32 *entry = &s->sums[block % LAY_SUMS_ENTRIES];
    for (uint64_t i = 0; i < n && !err; i++)
        entry[i] = lay_put32(sums ? sums[i] : LAY_NO_SUM);
    ffs_buf_put(buf);
    return err;
}

/* --- Those that wait ------------------------------------------------------------------------- */

static struct ffs_waiting *sums_place_of(struct ffs_sums *s, uint64_t block)
{
    return &s->waiting[block % SLOTS];
}

static uint16_t *sums_group_of(struct ffs_sums *s, uint64_t block)
{
    return &s->in_group[block % SLOTS / GROUP];
}

/* Returns the end of the group of `block`, or `end` if that is lower. */
static uint64_t sums_group_end(uint64_t block, uint64_t end)
{
    uint64_t next = block - block % GROUP + GROUP;

    return next < end ? next : end;
}

/* Drops the pending checksums of these blocks, which are no longer valid. */
static void sums_cancel(struct ffs *fs, uint64_t block, uint64_t n)
{
    struct ffs_sums *s = &fs->sums;

    pthread_mutex_lock(&s->lock);
    for (uint64_t at = block, next; at < block + n && s->count > 0; at = next) {
        uint16_t *in = sums_group_of(s, at), left = *in;
        next = sums_group_end(at, block + n);
        for (; at < next && left > 0; at++) {
            bool waits = sums_place_of(s, at)->block == at;
            if (waits)
                sums_place_of(s, at)->block = 0;
            left = (uint16_t)(left - waits);
        }
        s->count -= *in - left;
        *in = left;
    }
    pthread_mutex_unlock(&s->lock);
}

static void sums_get_waiting(struct ffs *fs, uint64_t block, uint64_t n, uint32_t *sums)
{
    struct ffs_sums *s = &fs->sums;

    memset(sums, 0, n * sizeof(*sums));
    pthread_mutex_lock(&s->lock);
    for (uint64_t at = block, next; at < block + n && s->count > 0; at = next) {
        next = sums_group_end(at, block + n);
        if (*sums_group_of(s, at) == 0)
            continue;
        for (; at < next; at++) {
            if (sums_place_of(s, at)->block == at)
                sums[at - block] = sums_place_of(s, at)->sum;
        }
    }
    pthread_mutex_unlock(&s->lock);
}

/*
 * Reads the stored entries last: a pending checksum may be stored meanwhile,
 * but none is added.
 */
int ffs_sums_get(struct ffs *fs, uint64_t block, uint64_t n, uint32_t *sums)
{
    le32 entries[LAY_SUMS_ENTRIES];

    sums_get_waiting(fs, block, n, sums);
    for (uint64_t done = 0, part; done < n; done += part) {
        part = sums_in_one(block + done, n - done);
        int err = sums_read_entries(fs, block + done, part, entries);
        if (err)
            return err;
        for (uint64_t i = 0; i < part; i++) {
            if (sums[done + i] == LAY_NO_SUM)
                sums[done + i] = lay_get32(entries[i]);
        }
    }
    return 0;
}

/* The caller holds the lock. Returns false if memory is exhausted. */
static bool sums_alloc_places(struct ffs_sums *s)
{
    if (!s->in_group)
        s->in_group = calloc(GROUPS, sizeof(*s->in_group));
    if (!s->waiting && s->in_group)
        s->waiting = calloc(SLOTS, sizeof(*s->waiting));
    return s->waiting;
}

void ffs_sums_wait(struct ffs *fs, uint64_t block, uint64_t n, const uint32_t *sums)
{
    struct ffs_sums *s = &fs->sums;

    if (!ffs_has_sums(&fs->geo))
        return;
    pthread_mutex_lock(&s->lock);
    bool room = sums_alloc_places(s);
    for (uint64_t at = block, next; at < block + n && room; at = next) {
        uint16_t *in = sums_group_of(s, at), before = *in;
        next = sums_group_end(at, block + n);
        for (; at < next; at++) {
            struct ffs_waiting *w = sums_place_of(s, at);
            *in = (uint16_t)(*in + (w->block == 0));
            *w = (struct ffs_waiting){.block = at, .sum = sums[at - block], .round = s->round};
        }
        s->count += *in - before;
    }
    bool half_full = s->count > SLOTS / 2;
    pthread_mutex_unlock(&s->lock);
    if (half_full)
        ffs_background_hurry(fs);
}

/*
 * Takes a range of due checksums that lie in one checksum block, from slot
 * *slot on. Returns its length, or 0 if none is left up to the last slot.
 */
static uint64_t sums_take_range(struct ffs_sums *s, uint32_t *slot, bool all, uint64_t *first,
                                uint32_t *sums)
{
    uint64_t n = 0;

    pthread_mutex_lock(&s->lock);
    for (; *slot < SLOTS && s->waiting; (*slot)++) {
        struct ffs_waiting *w = &s->waiting[*slot];
        bool due = w->block != 0 && (all || w->round != s->round);
        if (n > 0 && (!due || w->block != *first + n || w->block % LAY_SUMS_ENTRIES == 0))
            break;
        if (!due)
            continue;
        if (n == 0)
            *first = w->block;
        sums[n++] = w->sum;
        --*sums_group_of(s, w->block);
        w->block = 0;
        s->count--;
    }
    pthread_mutex_unlock(&s->lock);
    return n;
}

/*
 * Stores one handle's share in ffs_sums_settle(). A handle excludes
 * ffs_sums_drop(), so each checksum taken is valid.
 */
static int sums_settle_some(struct ffs *fs, uint32_t *slot, bool all)
{
    uint32_t sums[LAY_SUMS_ENTRIES];
    uint64_t block, n = 1;
    struct ffs_tx *tx;
    int err = ffs_tx_begin(fs, BATCH, &tx);

    if (err)
        return err;
    for (unsigned i = 0; i < BATCH && n > 0 && !err; i++) {
        n = sums_take_range(&fs->sums, slot, all, &block, sums);
        if (n > 0)
            err = sums_put_entries(tx, fs, block, n, sums);
        if (err == -EIO)
            err = 0; /* a damaged checksum block costs only its own entries */
    }
    return ffs_tx_finish(tx, err);
}

void ffs_sums_settle(struct ffs *fs, bool all)
{
    struct ffs_sums *s = &fs->sums;

    pthread_mutex_lock(&s->lock);
    bool any = s->count > 0;
    pthread_mutex_unlock(&s->lock);
    for (uint32_t slot = 0; any && slot < SLOTS;) {
        if (sums_settle_some(fs, &slot, all))
            break;
    }
    pthread_mutex_lock(&s->lock);
    s->round++;
    pthread_mutex_unlock(&s->lock);
}

/* --- Changes --------------------------------------------------------------------------------- */

int ffs_sums_put(struct ffs_tx *tx, uint64_t block, uint64_t n, const uint32_t *sums)
{
    struct ffs *fs = tx->fs;
    int err = 0;

    if (!ffs_has_sums(&fs->geo))
        return 0;
    sums_cancel(fs, block, n);
    for (uint64_t done = 0, part; done < n && !err; done += part) {
        part = sums_in_one(block + done, n - done);
        err = sums_put_entries(tx, fs, block + done, part, sums ? sums + done : NULL);
    }
    return err;
}

/*
 * Drops the pending checksums of the range, and stores in *any whether a block
 * of it has a stored one. Takes ffs.meta for the former, so that a handle that
 * was storing one has ended. Returns 0 or -errno.
 */
static int sums_any(struct ffs *fs, uint64_t block, uint64_t n, bool *any)
{
    le32 entries[LAY_SUMS_ENTRIES];
    int err = 0;

    *any = false;
    ffs_meta_read(fs);
    sums_cancel(fs, block, n);
    ffs_meta_done(fs);
    for (uint64_t done = 0, part; done < n && !err && !*any; done += part) {
        part = sums_in_one(block + done, n - done);
        err = sums_read_entries(fs, block + done, part, entries);
        for (uint64_t i = 0; i < part && !err; i++)
            *any |= lay_get32(entries[i]) != LAY_NO_SUM;
    }
    return err;
}

int ffs_sums_drop(struct ffs *fs, uint64_t block, uint64_t n, uint64_t *tid)
{
    bool any = false;
    int err = ffs_has_sums(&fs->geo) ? sums_any(fs, block, n, &any) : 0;

    if (err || !any)
        return err;
    for (uint64_t done = 0, part; done < n && !err; done += part) {
        uint64_t most = (BATCH - 1) * (uint64_t)LAY_SUMS_ENTRIES;
        struct ffs_tx *tx;
        part = n - done < most ? n - done : most;
        err = ffs_tx_begin(fs, BATCH, &tx);
        if (err)
            break;
        *tid = ffs_running_tid(fs);
        err = ffs_tx_finish(tx, ffs_sums_put(tx, block + done, part, NULL));
    }
    return err;
}

/* --- Reading --------------------------------------------------------------------------------- */

/* Reads a block again that did not match its checksum. */
static int verify_read_again(struct ffs *fs, uint64_t block, void *data)
{
    uint64_t good;
    int err = bd_read(ffs_dev(fs), ffs_bytes(block), data, LAY_BLOCK_SIZE);

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
        err = ffs_sums_verify(fs, block + done, n - done, bytes + ffs_bytes(done), &good);
        if (err || good == n - done)
            break;
        *bad = done + good;
        err = verify_read_again(fs, block + *bad, bytes + ffs_bytes(*bad));
        if (err)
            break;
    }
    return err;
}

int ffs_read_block(struct ffs *fs, uint64_t block, void *data)
{
    uint64_t bad;
    int err = bd_read(ffs_dev(fs), ffs_bytes(block), data, LAY_BLOCK_SIZE);

    return err ? err : ffs_verify(fs, block, 1, data, &bad);
}

int ffs_bad_block(struct ffs_inode *inode, uint64_t file_block, uint64_t block)
{
    struct ffs *fs = inode->fs;

    ffs_log(fs, LOG_ERR,
            "inode %llu: block %llu of the file (block %llu of the device) does not match its "
            "checksum",
            (unsigned long long)inode->ino, (unsigned long long)file_block,
            (unsigned long long)block);
    return -EIO;
}

static_assert(FFS_NO_SUM == LAY_NO_SUM, "entries are what callers get");

/*
 * Gets the checksums of n blocks of a file from block `first` on. A block has
 * LAY_NO_SUM if it is a hole, is unwritten, or is not mapped to device block
 * `expected` + its distance from `first` (LAY_NONE matches any). The caller
 * holds inode->data; takes ffs.meta.
 */
static int sums_of_mapped(struct ffs_inode *inode, uint64_t first, uint64_t n, uint64_t expected,
                          uint32_t *sums)
{
    struct ffs_extent e;
    int err = 0;

    for (uint64_t done = 0, part; done < n && !err; done += part) {
        ffs_meta_read(inode->fs);
        err = ffs_extent_find(inode, first + done, &e);
        ffs_meta_done(inode->fs);
        part = err ? 0 : min_u64(e.len, n - done);
        if (err || !ffs_extent_is_data(&e) || (expected != LAY_NONE && e.block != expected + done))
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
        err = sums_of_mapped(inode, ffs_block_of(offset), n, LAY_NONE, sums);
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
        e.len = min_u64(e.len, end - first);
        if (ffs_extent_is_data(&e))
            err = ffs_sums_drop(inode->fs, e.block, e.len, &tid);
    }
    return err ? err : ffs_commit(inode->fs, tid);
}

int ffs_overwrite_block(struct ffs_inode *inode, uint64_t file_block, uint64_t block,
                        const void *data)
{
    struct ffs *fs = inode->fs;
    uint32_t sum = lay_data_sum(data);
    int err = ffs_drop_sums(inode, file_block, file_block + 1);

    if (!err)
        err = bd_write(ffs_dev(fs), ffs_bytes(block), data, LAY_BLOCK_SIZE, 0);
    if (!err)
        ffs_sums_wait(fs, block, 1, &sum);
    return err;
}

int ffs_overwrite_zeroes(struct ffs_inode *inode, uint64_t file_block, uint64_t block, uint64_t n)
{
    static const uint32_t sum = LAY_ZEROS_SUM;
    struct ffs *fs = inode->fs;
    int err = ffs_drop_sums(inode, file_block, file_block + n);

    if (!err)
        err = bd_write_zeroes(ffs_dev(fs), ffs_bytes(block), ffs_bytes(n));
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
        *len = min_u64(*len, fresh->first - block);
        return false;
    }
    if (block >= fresh->end)
        return false;
    *len = min_u64(*len, fresh->end - block);
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

    if (!e->unwritten && !e->damaged) {
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
        e.len = min_u64(e.len, *end - at);
        if (e.block == LAY_NONE)
            continue;
        e.len = min_u64(e.len, (uint64_t)(LAY_SUMS_ENTRIES - e.block % LAY_SUMS_ENTRIES));
        bool data = fresh && verify_is_data(fresh, at, &e.len);
        if (at > first && ffs_tx_left(tx) <= ffs_extent_credits(inode)) {
            *end = at;
            return 0;
        }
        if (fresh)
            err = verify_put_extent(tx, inode, &e, fresh, data);
        else if (e.unwritten || e.damaged)
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
    int err = sums_of_mapped(inode, first, n, block, sums);
    for (uint64_t i = 0; i < n && !err; i++)
        __atomic_store_n(&w->sums[first + i], sums[i], __ATOMIC_RELAXED);
    pthread_rwlock_unlock(&inode->data);
    return err;
}

static int verify_fill_segment(struct ffs_inode *inode, struct ffs_watch *w,
                               const struct ffs_segment *s)
{
    uint64_t first = ffs_block_of(s->offset), block = ffs_block_of(s->device);
    uint64_t n = first < w->n_sums ? min_u64(ffs_block_of(s->len), w->n_sums - first) : 0;
    int err = 0;

    for (uint64_t done = 0, part; done < n && !err; done += part) {
        part = min_u64(n - done, FILL);
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
