/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Access times.
 */
#include "fusefs/core/journal/ops.h"
#include "fusefs/core/state.h"

/* A day: relatime refreshes an access time that is older than this. */
#define ATIME_SECONDS 86400

void ffs_set_access(struct ffs *fs, unsigned access)
{
    atomic_store(&fs->access, access);
}

bool ffs_access_always(struct ffs *fs)
{
    return atomic_load(&fs->access) & FFS_ACCESS_ALWAYS;
}

static int attr_compare_times(struct lay_time a, struct lay_time b)
{
    int64_t sa = lay_time_sec(a), sb = lay_time_sec(b);

    if (sa != sb)
        return sa < sb ? -1 : 1;
    uint32_t na = lay_get32(a.nsec), nb = lay_get32(b.nsec);
    return na < nb ? -1 : na > nb;
}

/* relatime. Most reads find the time not due and need no handle. */
static bool attr_access_stale(const struct ffs_inode *inode)
{
    struct lay_time atime = inode->d.atime;

    return attr_compare_times(atime, inode->d.mtime) <= 0 ||
           attr_compare_times(atime, inode->d.ctime) <= 0 ||
           lay_time_sec(ffs_now()) - lay_time_sec(atime) >= ATIME_SECONDS;
}

static bool attr_access_due(struct ffs_inode *inode, unsigned access)
{
    if ((access & ~(unsigned)FFS_ACCESS_FILES_ONLY) == FFS_ACCESS_NEVER)
        return false;
    ffs_meta_read(inode->fs);
    bool counts = !(lay_get32(inode->d.flags) & LAY_INODE_NOATIME) &&
                  !((access & FFS_ACCESS_FILES_ONLY) && ffs_is_dir(inode));
    bool set = counts && ((access & FFS_ACCESS_ALWAYS) || attr_access_stale(inode));
    ffs_meta_done(inode->fs);
    return set;
}

void ffs_note_access(struct ffs_inode *inode)
{
    struct ffs_tx *tx;

    if (!attr_access_due(inode, atomic_load(&inode->fs->access)) || ffs_tx_begin(inode->fs, 8, &tx))
        return;
    ffs_tx_finish(tx, ffs_touch(tx, inode, FFS_ATIME));
}
