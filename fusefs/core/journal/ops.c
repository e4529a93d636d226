/* SPDX-License-Identifier: BSD-2-Clause */
/* Common parts of operations: checks, times, retries. */
#include "fusefs/core/journal/ops.h"

#include <errno.h>

#include "fusefs/core/state.h"

int ffs_touch(struct ffs_tx *tx, struct ffs_inode *inode, unsigned times)
{
    int err = ffs_inode_dirty(tx, inode);

    if (err)
        return err;
    /* relatime compares an access time with mtime and ctime: it is exact. */
    struct lay_time now = times == FFS_ATIME ? ffs_stamp_exact(inode->fs) : ffs_stamp(inode);
    if (times & FFS_ATIME)
        inode->d.atime = now;
    if (times & FFS_MTIME)
        inode->d.mtime = now;
    if (times & FFS_CTIME)
        inode->d.ctime = now;
    return 0;
}

int ffs_touch_data(struct ffs_tx *tx, struct ffs_inode *inode)
{
    if (atomic_load_explicit(&inode->fs->times_by_caller, memory_order_relaxed))
        return ffs_inode_dirty(tx, inode);
    return ffs_touch(tx, inode, FFS_MTIME | FFS_CTIME);
}

uint32_t ffs_without_setid(uint32_t mode, bool outsider)
{
    if (S_ISDIR(mode))
        return mode;
    mode &= ~(uint32_t)S_ISUID;
    return outsider || (mode & S_IXGRP) ? mode & ~(uint32_t)S_ISGID : mode;
}

void ffs_set_nlink(struct ffs_inode *inode, uint32_t nlink)
{
    inode->d.nlink = lay_put32(nlink);
}

int ffs_need_feature(struct ffs_tx *tx, uint64_t incompat)
{
    struct lay_super *sb = ffs_super(tx->fs);

    if ((lay_get64(sb->incompat) & incompat) == incompat)
        return 0;
    int err = ffs_tx_dirty(tx, tx->fs->super);
    if (err)
        return err;
    sb->incompat = lay_put64(lay_get64(sb->incompat) | incompat);
    sb->version_minor = lay_put16(LAY_VERSION_MINOR);
    return 0;
}

int ffs_tx_finish(struct ffs_tx *tx, int err)
{
    if (err)
        ffs_tx_abort(tx);
    else
        ffs_tx_end(tx);
    return err;
}

bool ffs_retry_space(struct ffs *fs, int err, bool *tried)
{
    if (err != -ENOSPC)
        return false;
    /* Each time another section is read, so that ends. */
    if (atomic_load(&fs->alloc.wanted))
        return ffs_sections_look(fs, true) == 0;
    if (*tried)
        return false;
    *tried = true;
    ffs_trim_wait(fs);
    return ffs_commit(fs, ffs_running_tid(fs)) == 0;
}
