/* SPDX-License-Identifier: BSD-2-Clause */
/* lseek(2) with SEEK_DATA and SEEK_HOLE. */
#include <errno.h>
#include <unistd.h>

#include "fusefs/core/data/data.h"

/* Unwritten blocks count as a hole: they read as zeros and hold no data. */
static bool read_seek_is_data(const struct ffs_extent *extent)
{
    return extent->block != LAY_NONE && !extent->unwritten;
}

/*
 * The first offset not below `offset` whose block is data, or is not; f->size when there is none.
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
    if (offset >= f.size)
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
