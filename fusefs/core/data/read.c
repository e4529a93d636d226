/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements read(2), lseek(2) with SEEK_DATA and SEEK_HOLE, and access times.
 */
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

#include "fusefs/core/data/data.h"
#include "fusefs/core/data/sums.h"
#include "fusefs/core/state.h"

/*
 * Copies of the first and last block of a request that does not begin or end at a block boundary.
 */
struct edges {
    uint8_t data[2][LAY_BLOCK_SIZE];
    struct {
        void *to;
        uint32_t skip, len;
    } copy[2];
    unsigned n;
};

/* Adds the transfers for the bytes [from, to) of the file, which lie in a written extent. */
static void read_extent(struct ffs_batch *b, struct edges *e, const struct ffs_extent *extent,
                        uint64_t from, uint64_t to, uint8_t *buf)
{
    while (from < to) {
        uint64_t block = extent->block + (ffs_block_of(from) - extent->file_block);
        uint32_t skip = (uint32_t)(from % LAY_BLOCK_SIZE);
        uint64_t len = min_u64(to - from, LAY_BLOCK_SIZE - skip);
        if (len < LAY_BLOCK_SIZE) {
            ffs_batch_add(b, BD_READ, block, e->data[e->n], LAY_BLOCK_SIZE);
            e->copy[e->n].to = buf;
            e->copy[e->n].skip = skip;
            e->copy[e->n++].len = (uint32_t)len;
        } else {
            len = (to - from) / LAY_BLOCK_SIZE * LAY_BLOCK_SIZE;
            ffs_batch_add(b, BD_READ, block, buf, len);
        }
        from += len;
        buf += len;
    }
}

/* Returns the file block that is mapped to a device block, or LAY_NONE if no extent has it. */
static uint64_t read_file_block_of(const struct ffs_extent_window *extents, uint64_t block)
{
    for (size_t i = 0; i < extents->n; i++) {
        const struct ffs_extent *e = &extents->extent[i];
        if (e->block != LAY_NONE && block >= e->block && block - e->block < e->len)
            return e->file_block + (block - e->block);
    }
    return LAY_NONE;
}

/* Runs the batch and compares the blocks with their checksums. */
static int read_run(struct ffs_inode *inode, struct ffs_batch *b,
                    const struct ffs_extent_window *extents)
{
    size_t n = b->n;
    int err = ffs_batch_run(b);

    for (size_t i = 0; i < n && !err; i++) {
        uint64_t block = ffs_block_of(b->ios[i].offset), bad;
        err = ffs_verify(b->fs, block, ffs_block_of(b->ios[i].len), b->ios[i].buf, &bad);
        if (err == -EBADMSG)
            return ffs_bad_block(inode, read_file_block_of(extents, block + bad), block + bad);
    }
    return err;
}

/* Logs that a block of a file lies in a damaged extent. Returns -EIO. */
static int read_damaged(struct ffs_inode *inode, uint64_t file_block)
{
    ffs_log(inode->fs, LOG_ERR,
            "inode %llu: block %llu of the file is damaged: a repair could not find its data",
            (unsigned long long)inode->ino, (unsigned long long)file_block);
    return -EIO;
}

/* Sets *damage to the first file block of the window that is damaged, or to its end. */
static bool read_has_damage(const struct ffs_extent_window *extents, uint64_t *damage)
{
    *damage = extents->end;
    for (size_t i = 0; i < extents->n; i++) {
        if (!extents->extent[i].damaged)
            continue;
        *damage = extents->extent[i].file_block;
        return true;
    }
    return false;
}

/*
 * Reads [offset, *end), which lies within the file. Lowers *end to what one
 * batch can hold, and to the first damaged block.
 */
static int read_some(struct ffs_inode *inode, uint64_t offset, uint64_t *end, uint8_t *buf)
{
    struct ffs_batch b;
    struct edges e;
    struct ffs_extent_window extents;
    uint64_t damage;
    int err = ffs_extent_window_get(inode, ffs_block_of(offset), ffs_block_up(*end), &extents);

    if (err)
        return err;
    if (read_has_damage(&extents, &damage) && damage <= ffs_block_of(offset))
        return read_damaged(inode, damage);
    *end = min_u64(*end, ffs_bytes(damage));
    ffs_batch_init(&b, inode->fs);
    e.n = 0;

    for (size_t i = 0; i < extents.n && extents.extent[i].file_block < damage; i++) {
        const struct ffs_extent *extent = &extents.extent[i];
        uint64_t from = max_u64(offset, ffs_bytes(extent->file_block));
        uint64_t to = min_u64(*end, ffs_bytes(extent->file_block + extent->len));
        if (extent->block == LAY_NONE || extent->unwritten)
            memset(buf + (from - offset), 0, to - from);
        else
            read_extent(&b, &e, extent, from, to, buf + (from - offset));
    }
    err = read_run(inode, &b, &extents);
    for (unsigned i = 0; i < e.n && !err; i++)
        memcpy(e.copy[i].to, e.data[i] + e.copy[i].skip, e.copy[i].len);
    return err;
}

static ssize_t read_locked(struct ffs_inode *inode, uint64_t offset, uint8_t *buf, size_t len)
{
    struct ffs_file f;
    int err = ffs_file_open(inode, &f);

    if (err)
        return err;
    if (offset >= f.size)
        return 0;
    uint64_t end = offset + min_u64(min_u64(len, SSIZE_MAX), f.size - offset);
    for (uint64_t at = offset; at < end;) {
        uint64_t to = end;
        err = read_some(inode, at, &to, buf + (at - offset));
        if (err)
            return at > offset ? (ssize_t)(at - offset) : err;
        at = to;
    }
    return (ssize_t)(end - offset);
}

ssize_t ffs_read(struct ffs_inode *inode, uint64_t offset, void *buf, size_t len)
{
    pthread_rwlock_rdlock(&inode->data);
    ssize_t got = read_locked(inode, offset, buf, len);
    pthread_rwlock_unlock(&inode->data);
    return got;
}

/* --- lseek(2) --------------------------------------------------------------------------------- */

/* Returns false for holes and for unwritten blocks, which read as zeros. */
static bool read_seek_is_data(const struct ffs_extent *extent)
{
    return ffs_extent_is_data(extent) || extent->damaged;
}

/*
 * Sets *out to the first offset at or past `offset` whose block is data if
 * `data` is true, or a hole if it is false, or to f->size if there is none.
 */
static int read_seek_scan(struct ffs_inode *inode, const struct ffs_file *f, uint64_t offset,
                          bool data, uint64_t *out)
{
    uint64_t end = ffs_block_up(f->size);
    struct ffs_extent_window extents;

    for (uint64_t at = ffs_block_of(offset); at < end; at = extents.end) {
        int err = ffs_extent_window_get(inode, at, end, &extents);
        if (err)
            return err;
        for (size_t i = 0; i < extents.n; i++) {
            if (read_seek_is_data(&extents.extent[i]) != data)
                continue;
            *out = max_u64(offset, ffs_bytes(extents.extent[i].file_block));
            return 0;
        }
    }
    *out = f->size;
    return 0;
}

static int64_t read_seek_locked(struct ffs_inode *inode, uint64_t offset, bool data)
{
    struct ffs_file f;
    uint64_t found;
    int err = ffs_file_open(inode, &f);

    if (err)
        return err;
    if (f.size <= offset)
        return -ENXIO;
    err = read_seek_scan(inode, &f, offset, data, &found);
    if (err)
        return err;
    return data && found >= f.size ? -ENXIO : (int64_t)found;
}

int64_t ffs_seek(struct ffs_inode *inode, uint64_t offset, int whence)
{
    if (whence != SEEK_DATA && whence != SEEK_HOLE)
        return -EINVAL;
    pthread_rwlock_rdlock(&inode->data);
    int64_t found = read_seek_locked(inode, offset, whence == SEEK_DATA);
    pthread_rwlock_unlock(&inode->data);
    return found;
}

/* --- Blocks ---------------------------------------------------------------------------------- */

int ffs_extent_window_get(struct ffs_inode *inode, uint64_t first, uint64_t end,
                          struct ffs_extent_window *out)
{
    ffs_meta_read(inode->fs);
    ssize_t n = ffs_extent_list(inode, first, end, out->extent, FFS_EXTENT_WINDOW);
    ffs_meta_done(inode->fs);
    out->n = n > 0 ? (size_t)n : 0;
    out->end = out->n ? out->extent[out->n - 1].file_block + out->extent[out->n - 1].len : first;
    return n < 0 ? (int)n : 0;
}

/* --- Transfers ------------------------------------------------------------------------------- */

void ffs_batch_add(struct ffs_batch *b, enum bd_op op, uint64_t block, void *buf, uint64_t len)
{
    assert(b->n < FFS_BATCH_MAX);
    b->ios[b->n++] = (struct bd_io){.op = op, .offset = ffs_bytes(block), .len = len, .buf = buf};
}

int ffs_batch_run(struct ffs_batch *b)
{
    int err = b->n ? bd_submit(ffs_dev(b->fs), b->ios, b->n) : 0;

    b->n = 0;
    return err;
}

/* --- Allocation ------------------------------------------------------------------------------ */

/*
 * Returns the preferred place of the next extent, directly after the preceding
 * blocks.
 */
static uint64_t data_goal_for(struct ffs_inode *inode, uint64_t file_block)
{
    struct ffs_extent before;

    if (file_block == 0 || ffs_extent_find(inode, file_block - 1, &before))
        return 0;
    return before.block == LAY_NONE ? 0 : before.block + 1;
}

/*
 * Gives blocks to the hole or damaged extent, or to its first part, and stores
 * the length in *len. Damage stays until the data is written.
 */
static int data_fill_hole(struct ffs_tx *tx, struct ffs_inode *inode, uint64_t unit,
                          struct ffs_extent extent, uint64_t *len)
{
    /* The rest of a unit would count as written. */
    if (extent.damaged && unit > 1)
        return -EIO;
    if (extent.file_block % unit != 0 || extent.len < unit)
        return ffs_corrupt(inode->fs, LAY_NONE, inode->ino, "hole inside a 2 MiB unit");
    uint64_t goal = data_goal_for(inode, extent.file_block);
    int err = ffs_alloc(tx, goal, unit, extent.len, (unsigned)unit, &extent.block, &extent.len);
    if (err)
        return err;
    extent.unwritten = !extent.damaged;
    *len = extent.len;
    return extent.damaged ? ffs_extent_fill(tx, inode, &extent)
                          : ffs_extent_add(tx, inode, &extent);
}

/* Maximum credits of one more allocation: tree, bitmap, inode. */
#define FILL_CREDITS 48u

/*
 * Fills holes from *at to the end, or until the handle should end so that
 * others can run.
 */
static int data_reserve_in(struct ffs_tx *tx, struct ffs_inode *inode, uint64_t unit, uint64_t *at,
                           uint64_t end)
{
    uint64_t from = *at;

    do {
        struct ffs_extent extent;
        int err = ffs_extent_find(inode, *at, &extent);
        if (err)
            return err;
        /* Damage is replaced, which takes two changes of the tree. */
        if (extent.damaged && ffs_tx_left(tx) < ffs_extent_credits(inode))
            return *at > from ? 0 : -ENOSPC;
        uint64_t len = extent.len = min_u64(extent.len, end - *at);
        if (extent.block == LAY_NONE)
            err = data_fill_hole(tx, inode, unit, extent, &len);
        if (err)
            return err;
        *at += len;
    } while (*at < end && ffs_tx_left(tx) >= FILL_CREDITS);
    return 0;
}

/*
 * Allocates in one handle. If space runs out after some allocations, the handle
 * is aborted and they are lost; so after a first failure each handle makes one
 * allocation.
 */
static int data_reserve_once(struct ffs_inode *inode, uint64_t unit, uint64_t *at, uint64_t end,
                             unsigned credits)
{
    struct ffs_tx *tx;
    uint64_t from = *at;
    int err = ffs_tx_begin(inode->fs, credits, &tx);

    if (err)
        return err;
    err = ffs_inode_dirty(tx, inode);
    if (!err)
        err = data_reserve_in(tx, inode, unit, at, end);
    if (err)
        *at = from;
    return ffs_tx_finish(tx, err);
}

/* Skips mapped blocks, without a handle. */
static int data_skip_mapped(struct ffs_inode *inode, uint64_t *at, uint64_t end)
{
    int err = 0;

    ffs_meta_read(inode->fs);
    while (*at < end) {
        struct ffs_extent extent;
        err = ffs_extent_find(inode, *at, &extent);
        if (err || extent.block == LAY_NONE)
            break;
        *at += min_u64(extent.len, end - *at);
    }
    ffs_meta_done(inode->fs);
    return err;
}

int ffs_reserve(struct ffs_inode *inode, const struct ffs_file *f, uint64_t first, uint64_t end,
                uint64_t *upto)
{
    unsigned credits = FFS_TX_MAX_CREDITS;
    bool tried = false;
    int err;

    assert(first % f->unit == 0 && end % f->unit == 0);
    *upto = first;
    for (;;) {
        err = data_skip_mapped(inode, upto, end);
        if (err || *upto == end)
            return err;
        err = data_reserve_once(inode, f->unit, upto, end, credits);
        if (err == -ENOSPC && credits > FILL_CREDITS)
            credits = FILL_CREDITS;
        else if (err && !ffs_retry_space(inode->fs, err, &tried))
            return err;
    }
}

/* --- After the data is there ----------------------------------------------------------------- */

static int data_written_in(struct ffs_tx *tx, struct ffs_inode *inode, uint64_t first, uint64_t end,
                           uint64_t size, const struct ffs_fresh *fresh, uint64_t *next)
{
    int err = ffs_touch_data(tx, inode);

    if (!err)
        err = ffs_fresh_put(tx, inode, first, &end, fresh);
    if (!err)
        err = ffs_extent_mark(tx, inode, first, end - first, false, next);
    if (err)
        return err;
    /*
     * A handle that could not mark everything does not extend the file beyond
     * the part that it marked.
     */
    uint64_t reach = min_u64(size, ffs_bytes(*next));
    if (reach > ffs_size(inode))
        inode->d.size = lay_put64(reach);
    return 0;
}

int ffs_written(struct ffs_inode *inode, uint64_t first, uint64_t end, uint64_t size,
                const struct ffs_fresh *fresh)
{
    while (first < end) {
        struct ffs_tx *tx;
        uint64_t next = first;
        int err = ffs_tx_begin(inode->fs, FFS_TX_MAX_CREDITS, &tx);
        if (err)
            return err;
        /* The blocks exist already; only extents may have to be split. */
        ffs_tx_use_reserve(tx);
        err = ffs_tx_finish(tx, data_written_in(tx, inode, first, end, size, fresh, &next));
        if (err)
            return err;
        first = next;
    }
    return 0;
}

/* --- Zeroing --------------------------------------------------------------------------------- */

/*
 * Zeros [from, to) of one block on the device and keeps the rest. Usually the
 * range is zero already. A block that does not match its checksum keeps the
 * checksum and so remains unreadable.
 */
static int data_zero_in_block(struct ffs_inode *inode, const struct ffs_extent *e,
                              uint64_t file_block, uint32_t from, uint32_t to)
{
    static const uint8_t zeros[LAY_BLOCK_SIZE];
    uint8_t data[LAY_BLOCK_SIZE];
    struct ffs *fs = inode->fs;
    uint64_t block = e->block + (file_block - e->file_block), at = ffs_bytes(block);
    int err = e->unwritten ? bd_read(ffs_dev(fs), at, data, sizeof(data))
                           : ffs_read_block(fs, block, data);
    bool plain = e->unwritten || err == -EBADMSG;

    if ((err && err != -EBADMSG) || memcmp(data + from, zeros, to - from) == 0)
        return err == -EBADMSG ? 0 : err;
    memset(data + from, 0, to - from);
    return plain ? bd_write(ffs_dev(fs), at, data, sizeof(data), 0)
                 : ffs_overwrite_block(inode, file_block, block, data);
}

static int data_zero_blocks(struct ffs_inode *inode, const struct ffs_extent *e,
                            uint64_t file_block, uint64_t n)
{
    uint64_t block = e->block + (file_block - e->file_block);

    return e->unwritten ? bd_write_zeroes(ffs_dev(inode->fs), ffs_bytes(block), ffs_bytes(n))
                        : ffs_overwrite_zeroes(inode, file_block, block, n);
}

/*
 * Zeros [from, to) of the file, which one extent covers. Whole blocks are
 * zeroed by a command, partial ones by reading and writing.
 */
static int data_zero_extent(struct ffs_inode *inode, const struct ffs_extent *extent, uint64_t from,
                            uint64_t to)
{
    while (from < to) {
        uint64_t block = ffs_block_of(from);
        uint32_t skip = (uint32_t)(from % LAY_BLOCK_SIZE);
        uint64_t len = min_u64(to - from, LAY_BLOCK_SIZE - skip);
        int err;
        if (len < LAY_BLOCK_SIZE) {
            err = data_zero_in_block(inode, extent, block, skip, skip + (uint32_t)len);
        } else {
            len = (to - from) / LAY_BLOCK_SIZE * LAY_BLOCK_SIZE;
            err = data_zero_blocks(inode, extent, block, ffs_block_of(len));
        }
        if (err)
            return err;
        from += len;
    }
    return 0;
}

int ffs_zero(struct ffs_inode *inode, uint64_t from, uint64_t to, enum ffs_zero_what what)
{
    bool unwritten = what == FFS_ZERO_UNWRITTEN;
    uint64_t end = ffs_block_up(to);
    struct ffs_extent_window extents;

    for (uint64_t at = ffs_block_of(from); from < to && at < end; at = extents.end) {
        int err = ffs_extent_window_get(inode, at, end, &extents);
        for (size_t i = 0; i < extents.n && !err; i++) {
            const struct ffs_extent *extent = &extents.extent[i];
            if (extent->block == LAY_NONE || extent->damaged || extent->unwritten != unwritten)
                continue;
            err = data_zero_extent(inode, extent, max_u64(from, ffs_bytes(extent->file_block)),
                                   min_u64(to, ffs_bytes(extent->file_block + extent->len)));
        }
        if (err)
            return err;
    }
    return 0;
}

int ffs_zero_edge(struct ffs_inode *inode, const struct ffs_file *f, uint64_t end)
{
    uint64_t unit_end = ffs_bytes(ffs_unit_up(f, ffs_block_up(f->size)));

    return ffs_zero(inode, f->size, min_u64(end, unit_end), FFS_ZERO_WRITTEN);
}

/* --- Access times ----------------------------------------------------------------------------- */

/* relatime updates an access time that is older than a day. */
#define ATIME_SECONDS 86400

void ffs_set_access(struct ffs *fs, unsigned access)
{
    atomic_store(&fs->access, access);
}

bool ffs_access_always(struct ffs *fs)
{
    return atomic_load(&fs->access) & FFS_ACCESS_ALWAYS;
}

static int read_compare_times(struct lay_time a, struct lay_time b)
{
    int64_t sa = lay_time_sec(a), sb = lay_time_sec(b);

    if (sa != sb)
        return sa < sb ? -1 : 1;
    uint32_t na = lay_get32(a.nsec), nb = lay_get32(b.nsec);
    return na < nb ? -1 : na > nb;
}

/*
 * Returns true if relatime updates the access time. In most reads the access time is recent enough,
 * so they need no handle.
 */
static bool read_access_stale(const struct ffs_inode *inode)
{
    struct lay_time atime = inode->d.atime;

    return read_compare_times(atime, inode->d.mtime) <= 0 ||
           read_compare_times(atime, inode->d.ctime) <= 0 ||
           lay_time_sec(ffs_now()) - lay_time_sec(atime) >= ATIME_SECONDS;
}

static bool read_access_due(struct ffs_inode *inode, unsigned access)
{
    if ((access & ~(unsigned)FFS_ACCESS_FILES_ONLY) == FFS_ACCESS_NEVER)
        return false;
    ffs_meta_read(inode->fs);
    bool counts = !(lay_get32(inode->d.flags) & LAY_INODE_NOATIME) &&
                  !((access & FFS_ACCESS_FILES_ONLY) && ffs_is_dir(inode));
    bool set = counts && ((access & FFS_ACCESS_ALWAYS) || read_access_stale(inode));
    ffs_meta_done(inode->fs);
    return set;
}

void ffs_note_access(struct ffs_inode *inode)
{
    struct ffs_tx *tx;

    if (!read_access_due(inode, atomic_load(&inode->fs->access)) || ffs_tx_begin(inode->fs, 8, &tx))
        return;
    ffs_tx_finish(tx, ffs_touch(tx, inode, FFS_ATIME));
}
