/* SPDX-License-Identifier: BSD-2-Clause */
/* fsync(2) and fdatasync(2). */
#include "fusefs/core/journal/ops.h"

/*
 * A commit flushes the device before its last block, so it carries the data along, but only if it
 * began after the data was written. The transaction still running has not begun to commit;
 * whatever is older may have, and the data that was overwritten in place needs a flush of its own.
 */
int ffs_fsync(struct ffs_inode *inode, bool data_only)
{
    struct ffs *fs = inode->fs;
    int err = ffs_alive(fs);

    if (err)
        return err;
    uint64_t tid = atomic_load(data_only ? &inode->data_tid : &inode->tid);
    bool flushes = tid == ffs_running_tid(fs);
    err = ffs_commit(fs, tid);
    return err || flushes ? err : ffs_flush(fs);
}
