/* SPDX-License-Identifier: BSD-2-Clause */
/* Group commit, and the freezing of the file system. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "fusefs/core/state.h"

int ffs_journal_init(struct ffs *fs)
{
    struct ffs_journal *j = &fs->journal;

    j->staging = bd_dma_alloc(fs->dev, FFS_STAGING_BLOCKS * (size_t)LAY_BLOCK_SIZE);
    if (!j->staging)
        return -ENOMEM;
    pthread_mutex_init(&j->commit_lock, NULL);
    return 0;
}

void ffs_journal_destroy(struct ffs *fs)
{
    struct ffs_journal *j = &fs->journal;

    if (!j->staging)
        return;
    ffs_running_put(&j->running);
    ffs_running_put(&j->failed);
    ffs_ranges_free(&j->freed);
    ffs_naming_destroy(fs);
    bd_dma_free(fs->dev, j->staging, FFS_STAGING_BLOCKS * (size_t)LAY_BLOCK_SIZE);
    j->staging = NULL;
    pthread_mutex_destroy(&j->commit_lock);
}

/*
 * Commits the running transaction, with a checkpoint if the log has no room for
 * one without. The caller holds commit_lock.
 */
static int commit_running(struct ffs *fs)
{
    int err = ffs_running_commit(fs, FFS_COMMIT_PLAIN);

    if (err == -EAGAIN)
        err = ffs_checkpoint(fs);
    return err == -ENODATA ? 0 : err;
}

int ffs_commit(struct ffs *fs, uint64_t tid)
{
    struct ffs_journal *j = &fs->journal;

    if (atomic_load(&j->committed) >= tid)
        return 0;
    /*
     * The wait is bounded: the holder is writing, and every write ends. A waiter then finds its
     * transaction committed.
     */
    pthread_mutex_lock(&j->commit_lock);
    int err = 0;
    if (atomic_load(&j->committed) < tid)
        err = ffs_health(fs) & (FFS_FAILED | FFS_DOWN) ? -EIO : commit_running(fs);
    pthread_mutex_unlock(&j->commit_lock);
    return err;
}

int ffs_commit_for_room(struct ffs *fs, uint64_t tid)
{
    struct ffs_journal *j = &fs->journal;

    pthread_mutex_lock(&j->commit_lock);
    int err = ffs_health(fs) & (FFS_FAILED | FFS_DOWN) ? -EIO : 0;
    if (!err && atomic_load(&j->committed) < tid)
        err = ffs_running_commit(fs, FFS_COMMIT_PLAIN);
    if (err == -EAGAIN || err == -ENODATA)
        err = ffs_checkpoint(fs);
    pthread_mutex_unlock(&j->commit_lock);
    return err;
}

int ffs_commit_empty(struct ffs *fs)
{
    const struct ffs_log_tx tx = {.begins = false};
    int err = ffs_log_room(fs) == 0 ? ffs_checkpoint(fs) : 0;

    if (err)
        return err;
    err = ffs_log_write(fs, &tx);
    return err ? ffs_fail(fs, "commit", err) : 0;
}

int ffs_commit_freed(struct ffs *fs)
{
    struct ffs_journal *j = &fs->journal;

    pthread_mutex_lock(&j->commit_lock);
    int err = ffs_health(fs) & (FFS_FAILED | FFS_DOWN) ? -EIO : commit_running(fs);
    if (!err && j->freed.n > 0)
        err = ffs_commit_empty(fs);
    pthread_mutex_unlock(&j->commit_lock);
    return err;
}

int ffs_freeze(struct ffs *fs)
{
    struct ffs_journal *j = &fs->journal;

    pthread_rwlock_wrlock(&fs->shape_lock);
    pthread_mutex_lock(&j->commit_lock);
    pthread_rwlock_wrlock(&fs->meta);
    fs->frozen = true;
    int err = ffs_writable(fs);
    pthread_rwlock_unlock(&fs->meta);
    if (!err)
        err = ffs_checkpoint(fs);
    pthread_rwlock_wrlock(&fs->meta);
    assert(err || ffs_running_empty(&j->running));
    if (err)
        ffs_thaw(fs);
    return err;
}

void ffs_thaw(struct ffs *fs)
{
    fs->frozen = false;
    pthread_rwlock_unlock(&fs->meta);
    pthread_mutex_unlock(&fs->journal.commit_lock);
    pthread_rwlock_unlock(&fs->shape_lock);
}

uint64_t ffs_running_tid(struct ffs *fs)
{
    return atomic_load(&fs->journal.running_tid);
}

/* --- Checkpoints ----------------------------------------------------------------------------- */

/* Returns true if a checkpoint would change more than the newest commit. */
static bool commit_has_work(struct ffs_journal *j)
{
    return j->used > 1 || atomic_load(&j->owed) > ffs_log_need(1);
}

int ffs_checkpoint_above(struct ffs *fs, uint64_t log_blocks)
{
    struct ffs_journal *j = &fs->journal;
    int err = 0;

    pthread_mutex_lock(&j->commit_lock);
    if (ffs_health(fs) & (FFS_FAILED | FFS_DOWN))
        err = -EIO;
    else if (j->used > log_blocks && commit_has_work(j))
        err = ffs_checkpoint(fs);
    pthread_mutex_unlock(&j->commit_lock);
    return err;
}

int ffs_checkpoint_now(struct ffs *fs)
{
    return ffs_checkpoint_above(fs, 0);
}
