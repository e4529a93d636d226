/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Flushes of the device.
 */
#include <errno.h>

#include "fusefs/core/state.h"

/*
 * One flush at a time: each holds a queue pair for as long as it takes, and reads need the
 * remaining ones. A flush under way may have begun too early for the caller; the next one serves
 * all waiters. The kernel reports pages that it could not write, and dropped, once: a waiter for a
 * flush that fails finds the file system failed, and flushes no more.
 */
int ffs_flush(struct ffs *fs)
{
    struct ffs_flushes *f = &fs->flushes;
    uint64_t seen = atomic_load(&f->begun);

    pthread_mutex_lock(&f->lock);
    int err = ffs_health(fs) & FFS_FAILED ? -EIO : 0;
    if (!err && atomic_load(&f->begun) == seen) {
        atomic_store(&f->begun, seen + 1);
        err = bd_flush(fs->dev);
        if (err)
            err = ffs_fail(fs, "flush", err);
    }
    pthread_mutex_unlock(&f->lock);
    return err;
}
