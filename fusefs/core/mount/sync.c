/* SPDX-License-Identifier: BSD-2-Clause */
/* fsync(2), syncfs(2), the background thread that commits periodically, and shutdown. */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <time.h>

#include "fusefs/core/journal/ops.h"
#include "fusefs/core/state.h"
#include "support/clock.h"

/*
 * A commit flushes the device before it writes its last block. The flush covers the data only if
 * the commit began after the data was written. That is certain for the running transaction. An
 * older one may have begun to commit earlier, so data that was overwritten in place needs another
 * flush.
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

#define DEFAULT_COMMIT_MS 5000u

int ffs_sync(struct ffs *fs)
{
    uint64_t tid = ffs_running_tid(fs);
    int err = ffs_alive(fs);

    if (!err)
        err = ffs_commit(fs, tid);
    /*
     * The commit of the transaction that was running at the call flushes after the call. If that
     * transaction was empty, the last flush may be older than the last written data.
     */
    if (!err && atomic_load(&fs->journal.committed) < tid && !fs->dev->info.read_only)
        err = ffs_flush(fs);
    return err;
}

int ffs_shutdown(struct ffs *fs, bool flush)
{
    int err = flush ? ffs_sync(fs) : 0;

    atomic_fetch_or(&fs->health, FFS_DOWN);
    return err;
}

/* Waits until it is time to commit. Returns false if the thread has to stop. */
static bool sync_wait_turn(struct ffs_background *b, unsigned ms)
{
    uint64_t until = deadline_after_ms(ms);

    pthread_mutex_lock(&b->lock);
    while (!b->stop && !b->hurry) {
        if (cond_wait_until(&b->wake, &b->lock, until) == ETIMEDOUT)
            break;
    }
    b->hurry = false;
    bool go_on = !b->stop;
    pthread_mutex_unlock(&b->lock);
    return go_on;
}

static void *sync_run(void *arg)
{
    struct ffs *fs = arg;
    uint64_t last = UINT64_MAX;

    while (sync_wait_turn(&fs->background, atomic_load(&fs->commit_ms))) {
        /*
         * A failure has been logged, and every later call reports it. A checkpoint follows when the
         * log is half full, so that no fsync has to wait for one, and when no commit has followed
         * the last one for a turn, because only a later commit reveals that a commit block was
         * lost.
         */
        ffs_sums_settle(fs, false);
        if (ffs_commit(fs, ffs_running_tid(fs)))
            continue;
        uint64_t committed = atomic_load(&fs->journal.committed);
        ffs_checkpoint_above(fs, committed == last ? 0 : fs->geo.journal_blocks / 2);
        last = committed;
    }
    return NULL;
}

/* Ends the wait under way, so that the new interval applies at once. */
void ffs_set_commit(struct ffs *fs, unsigned commit_ms)
{
    atomic_store(&fs->commit_ms, commit_ms ? commit_ms : DEFAULT_COMMIT_MS);
    ffs_background_hurry(fs);
}

int ffs_background_start(struct ffs *fs)
{
    struct ffs_background *b = &fs->background;
    int err = -pthread_create(&b->thread, NULL, sync_run, fs);

    b->running = err == 0;
    return err;
}

void ffs_background_stop(struct ffs *fs)
{
    struct ffs_background *b = &fs->background;

    if (!b->running)
        return;
    pthread_mutex_lock(&b->lock);
    b->stop = true;
    pthread_cond_signal(&b->wake);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->thread, NULL);
    b->running = false;
}
