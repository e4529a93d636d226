/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares common parts of operations: checks, times and retries. The caller
 * holds ffs.meta unless a function says otherwise.
 */
#ifndef FUSEFS_CORE_JOURNAL_OPS_H
#define FUSEFS_CORE_JOURNAL_OPS_H

#include <errno.h>
#include <sys/stat.h>

#include "fusefs/core/storage.h"

/* Hard links of a file; a directory may have as many subdirectories as the field counts. */
#define FFS_LINK_MAX   65000u
#define FFS_SUBDIR_MAX 0x7fffffffu

/* Size of the largest file, limited by off_t. */
#define FFS_SIZE_MAX ((uint64_t)INT64_MAX)

/*
 * Credits of a name operation. It dirties at most two directories (an insertion
 * and a removal each cost a path, its siblings and bitmaps), four inodes, and
 * the neighbours of these in lists.
 */
#define FFS_NAME_CREDITS (FFS_TX_MAX_CREDITS - 8)

static inline uint32_t ffs_mode(const struct ffs_inode *inode)
{
    return lay_get32(inode->d.mode);
}
static inline uint64_t ffs_size(const struct ffs_inode *inode)
{
    return lay_get64(inode->d.size);
}
static inline uint32_t ffs_nlink(const struct ffs_inode *inode)
{
    return lay_get32(inode->d.nlink);
}
static inline bool ffs_is_dir(const struct ffs_inode *inode)
{
    return S_ISDIR(ffs_mode(inode));
}
static inline bool ffs_on_orphan_list(const struct ffs_inode *inode)
{
    return lay_get64(inode->d.next_orphan) != 0;
}

enum ffs_touch { FFS_ATIME = 1, FFS_MTIME = 2, FFS_CTIME = 4 };
/* Makes the inode dirty and sets the given times (enum ffs_touch) to the current time. */
int ffs_touch(struct ffs_tx *tx, struct ffs_inode *inode, unsigned times);
/* Like ffs_touch() after a change of the data or size of a regular file. */
int ffs_touch_data(struct ffs_tx *tx, struct ffs_inode *inode);
/*
 * Returns the mode after a write by another user or a change of the owner. `outsider` is as for
 * ffs_clear_setid().
 */
uint32_t ffs_without_setid(uint32_t mode, bool outsider);
void ffs_set_nlink(struct ffs_inode *inode, uint32_t nlink);

/*
 * Returns -EPERM if LAY_INODE_IMMUTABLE or LAY_INODE_APPEND forbids the change.
 */
static inline bool ffs_is_fixed(const struct ffs_inode *inode)
{
    return lay_get32(inode->d.flags) & (LAY_INODE_IMMUTABLE | LAY_INODE_APPEND);
}
static inline int ffs_may_add(const struct ffs_inode *dir)
{
    return lay_get32(dir->d.flags) & LAY_INODE_IMMUTABLE ? -EPERM : 0;
}
static inline int ffs_may_remove(const struct ffs_inode *dir, const struct ffs_inode *inode)
{
    return ffs_is_fixed(dir) || ffs_is_fixed(inode) ? -EPERM : 0;
}

/* Ends the handle if err is 0, else aborts it. Returns err. */
int ffs_tx_finish(struct ffs_tx *tx, int err);

/*
 * Called after an operation with its result. If it was -ENOSPC, commits, because freed blocks
 * can be allocated only after commits, and returns true: the caller tries again. *tried is false
 * before the first call. Takes ffs.meta; the caller has no open handle.
 */
bool ffs_retry_space(struct ffs *fs, int err, bool *tried);

#endif
