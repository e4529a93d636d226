/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * read(2), and lseek(2) with SEEK_DATA and SEEK_HOLE.
 */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "fusefs/core/data/data.h"
#include "fusefs/core/data/verify.h"

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
        uint64_t len = ffs_min(to - from, LAY_BLOCK_SIZE - skip);
        if (len < LAY_BLOCK_SIZE) {
            ffs_batch_add(b, BD_READ, block, 0, e->data[e->n], LAY_BLOCK_SIZE);
            e->copy[e->n].to = buf;
            e->copy[e->n].skip = skip;
            e->copy[e->n++].len = (uint32_t)len;
        } else {
            len = (to - from) / LAY_BLOCK_SIZE * LAY_BLOCK_SIZE;
            ffs_batch_add(b, BD_READ, block, 0, buf, len);
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

/* Reads [offset, *end), which lies within the file. Lowers *end to what one batch can hold. */
static int read_some(struct ffs_inode *inode, uint64_t offset, uint64_t *end, uint8_t *buf)
{
    struct ffs_batch b;
    struct edges e;
    struct ffs_extent_window extents;
    int err = ffs_extent_window_get(inode, ffs_block_of(offset), ffs_block_up(*end), &extents);

    if (err)
        return err;
    *end = ffs_min(*end, ffs_offset_of(extents.end));
    ffs_batch_init(&b, inode->fs);
    e.n = 0;

    for (size_t i = 0; i < extents.n; i++) {
        const struct ffs_extent *extent = &extents.extent[i];
        uint64_t from = ffs_max(offset, ffs_offset_of(extent->file_block));
        uint64_t to = ffs_min(*end, ffs_offset_of(extent->file_block + extent->len));
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
    uint64_t end = offset + ffs_min(ffs_min(len, SSIZE_MAX), f.size - offset);
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
    return extent->block != LAY_NONE && !extent->unwritten;
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
            *out = ffs_max(offset, ffs_offset_of(extents.extent[i].file_block));
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
