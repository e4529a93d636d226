/* SPDX-License-Identifier: BSD-2-Clause */
/* The running transaction, which has all changes since the last commit, and group commit. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "fusefs/core/state.h"
#include "support/trace.h"

/* --- The running transaction ------------------------------------------------------------------ */

bool ffs_running_has_room(struct ffs *fs, unsigned blocks)
{
    const struct ffs_running *r = &fs->journal.running;

    /* One more block is the superblock, if an error is marked in it. */
    return ffs_log_need(r->n + blocks + 1) <= ffs_log_most(fs);
}

int ffs_running_reserve(struct ffs *fs, unsigned blocks)
{
    struct ffs_running *r = &fs->journal.running;
    size_t need = r->n + blocks + 1;

    if (need <= r->cap)
        return 0;
    size_t cap = need * 2;
    struct ffs_cbuf **bufs = realloc(r->bufs, cap * sizeof(struct ffs_cbuf *));
    if (!bufs)
        return -ENOMEM;
    r->bufs = bufs;
    r->cap = cap;
    return 0;
}

void ffs_running_add(struct ffs *fs, struct ffs_cbuf *cb)
{
    struct ffs_running *r = &fs->journal.running;

    if (cb->running_at) {
        ffs_buf_put(&cb->pub);
        return;
    }
    assert(r->n < r->cap);
    r->bufs[r->n++] = cb;
    cb->running_at = r->n;
    if (r->n == fs->geo.log_blocks / 4)
        ffs_background_hurry(fs);
}

static void commit_remove_buf(struct ffs_running *r, struct ffs_cbuf *cb)
{
    struct ffs_cbuf *last = r->bufs[--r->n];

    r->bufs[cb->running_at - 1] = last;
    last->running_at = cb->running_at;
    cb->running_at = 0;
    ffs_buf_put(&cb->pub);
}

/*
 * Removes a freed block from the transaction and the cache, where a new block may take its address.
 */
static void commit_forget(struct ffs *fs, uint64_t block)
{
    struct ffs_cbuf *cb = ffs_cache_find(fs, block);

    if (!cb)
        return;
    if (cb->running_at)
        commit_remove_buf(&fs->journal.running, cb);
    ffs_cache_forget(cb);
    ffs_buf_put(&cb->pub);
}

void ffs_running_free(struct ffs *fs, const struct ffs_tx *tx)
{
    struct ffs_running *r = &fs->journal.running;

    for (size_t i = 0; i < tx->forgotten.n; i++) {
        for (uint64_t b = 0; b < tx->forgotten.v[i].len; b++)
            commit_forget(fs, tx->forgotten.v[i].block + b);
    }
    ffs_ranges_join(&r->freed, &tx->freed);
    ffs_ranges_join(&r->unmapped, &tx->unmapped);
    ffs_chunks_leave(fs, &tx->unmapped);
}

bool ffs_running_empty(const struct ffs_running *r)
{
    return r->n == 0;
}

/* --- Commits ---------------------------------------------------------------------------------- */

int ffs_journal_init(struct ffs *fs)
{
    struct ffs_journal *j = &fs->journal;

    j->staging = bd_dma_alloc(fs->dev, FFS_STAGING_BLOCKS * (size_t)LAY_BLOCK_SIZE);
    if (!j->staging)
        return -ENOMEM;
    pthread_mutex_init(&j->commit_lock, NULL);
    return 0;
}

/* Drops the references of a transaction to its blocks, and frees its arrays. */
static void commit_put_running(struct ffs_running *r)
{
    for (size_t i = 0; i < r->n; i++)
        ffs_buf_put(&r->bufs[i]->pub);
    free(r->bufs);
    ffs_ranges_free(&r->freed);
    ffs_ranges_free(&r->unmapped);
}

void ffs_journal_destroy(struct ffs *fs)
{
    struct ffs_journal *j = &fs->journal;

    if (!j->staging)
        return;
    commit_put_running(&j->running);
    commit_put_running(&j->failed);
    ffs_ranges_free(&j->freed);
    bd_dma_free(fs->dev, j->staging, FFS_STAGING_BLOCKS * (size_t)LAY_BLOCK_SIZE);
    j->staging = NULL;
    pthread_mutex_destroy(&j->commit_lock);
}

/*
 * The committing transaction: the state of the running one when the commit began, and copies of its
 * blocks.
 */
struct snapshot {
    struct ffs_running from;
    struct ffs_image **images;
};

/*
 * Marks the superblock when damage was found, so that the last commit asks for fsck. A read-only
 * mount writes nothing.
 */
static void commit_mark_error(struct ffs *fs)
{
    struct lay_super *sb = ffs_super(fs);
    struct ffs_cbuf *cb = ffs_cbuf(fs->super);
    uint32_t state = lay_get32(sb->state);
    unsigned health = ffs_health(fs);
    bool found = (health & FFS_CORRUPT) || atomic_load(&fs->checked.any_damaged);

    if (!found || (health & FFS_READ_ONLY) || (state & LAY_STATE_ERROR))
        return;
    if (ffs_running_reserve(fs, 1))
        return;
    sb->state = lay_put32(state | LAY_STATE_ERROR);
    ffs_cache_ref(cb);
    ffs_running_add(fs, cb);
}

static int commit_copy_images(struct snapshot *s)
{
    s->images = calloc(s->from.n, sizeof(struct ffs_image *));
    if (!s->images)
        return -ENOMEM;
    for (size_t i = 0; i < s->from.n; i++) {
        const struct ffs_buf *buf = &s->from.bufs[i]->pub;
        s->images[i] = ffs_image_new(buf->block, buf->data);
        if (!s->images[i])
            return -ENOMEM;
    }
    return 0;
}

static void commit_drop_snapshot(struct snapshot *s)
{
    for (size_t i = 0; s->images && i < s->from.n; i++)
        ffs_image_free(s->images[i]);
    free(s->images);
}

/*
 * Enters the number of the transaction in its bitmaps and in the sums of the superblock, which is
 * dirty if a bitmap is (FORMAT.md 5.1). The number is known only now, because an empty transaction
 * may have taken the one before.
 */
static void commit_stamp_bitmaps(struct ffs *fs)
{
    const struct ffs_running *r = &fs->journal.running;

    for (size_t i = 0; i < r->n; i++) {
        struct lay_bitmap *bm = r->bufs[i]->pub.data;
        if (lay_get32(bm->head.magic) == LAY_MAGIC_BITMAP)
            ffs_section_stamp(fs, bm, fs->journal.tid);
    }
}

/*
 * Notes in the superblock, which is dirty, where the commit will be that ends the checkpoint after
 * this transaction, the last one of the mount (R7f).
 */
static void commit_note_clean(struct ffs *fs, const struct snapshot *s)
{
    const struct ffs_journal *j = &fs->journal;
    struct lay_super *sb = ffs_super(fs);
    uint64_t blocks = ffs_log_need(s->from.n);

    sb->clean_incarnation = fs->label.incarnation;
    sb->clean_tid = lay_put64(j->tid + 1);
    sb->clean_pos = lay_put64(ffs_log_after(fs, j->head, blocks));
}

/*
 * Copies the running transaction and starts the next one. Returns -EAGAIN if the log needs a
 * checkpoint first, and -ENODATA if there is nothing to commit.
 */
static int commit_take_snapshot(struct ffs *fs, struct snapshot *s)
{
    struct ffs_running *r = &fs->journal.running;
    int err = 0;

    pthread_rwlock_wrlock(&fs->meta);
    commit_mark_error(fs);
    *s = (struct snapshot){.from = *r};
    if (ffs_running_empty(r)) {
        err = -ENODATA;
        goto unlock;
    }
    if (ffs_log_need(r->n) > ffs_log_room(fs))
        err = -EAGAIN;
    if (!err) {
        commit_stamp_bitmaps(fs);
        if (ffs_cbuf(fs->super)->running_at)
            ffs_section_hints(fs);
        if (fs->journal.closing)
            commit_note_clean(fs, s);
        err = commit_copy_images(s);
    }
    if (err) {
        commit_drop_snapshot(s);
        goto unlock;
    }
    for (size_t i = 0; i < r->n; i++)
        r->bufs[i]->running_at = 0;
    *r = (struct ffs_running){.tid = r->tid + 1};
    atomic_store(&fs->journal.running_tid, r->tid);
unlock:
    pthread_rwlock_unlock(&fs->meta);
    return err;
}

static int commit_write_snapshot(struct ffs *fs, struct snapshot *s)
{
    struct ffs_log_tx tx = {.images = s->images, .n = s->from.n};

    for (size_t i = 0; i < s->from.n; i++) {
        assert(s->images[i]); /* all of them, or there is no snapshot */
        lay_seal(s->images[i]->data, fs->journal.tid);
    }
    return ffs_log_write(fs, &tx);
}

/*
 * Drops the images of chunks that the committed map does not have. Their space may be used for data
 * when another commit is durable. After a crash recovery drops the images in the log.
 */
static void commit_drop_unmapped(struct ffs *fs, const struct ffs_ranges *unmapped)
{
    for (size_t i = 0; i < unmapped->n; i++) {
        for (uint64_t b = 0; b < unmapped->v[i].len; b++)
            ffs_home_drop(&fs->home, unmapped->v[i].block + b);
    }
}

/*
 * Called when the transaction is durable. Updates ffs.home: afterwards the blocks may leave the
 * cache. The blocks that it freed wait for the next commit.
 */
static void commit_done(struct ffs *fs, struct snapshot *s)
{
    commit_drop_unmapped(fs, &s->from.unmapped);
    for (size_t i = 0; i < s->from.n; i++) {
        ffs_home_put(&fs->home, s->images[i]);
        s->images[i] = NULL;
    }
    fs->journal.freed = s->from.freed;
    s->from.freed = (struct ffs_ranges){.v = NULL};
    atomic_store(&fs->journal.committed, s->from.tid);
}

/* Commits the running transaction. The caller holds commit_lock. */
static int commit_running(struct ffs *fs)
{
    struct snapshot s;
    int err = commit_take_snapshot(fs, &s);

    if (err == -EAGAIN) {
        err = ffs_checkpoint(fs);
        /* Every transaction that ffs_tx_begin() allows fits into an empty log. */
        if (!err)
            err = commit_take_snapshot(fs, &s);
    }
    if (err)
        return err == -ENODATA ? 0 : err;
    uint64_t tid = fs->journal.tid;
    trace(TRACE_COMMIT, 0, tid, 0, s.from.n, 0);
    err = commit_write_snapshot(fs, &s);
    trace(TRACE_COMMIT_DONE, 0, tid, 0, s.from.n, err);
    if (err) {
        err = ffs_fail(fs, "commit", err);
        fs->journal.failed = s.from;
    } else {
        commit_done(fs, &s);
        commit_put_running(&s.from);
    }
    commit_drop_snapshot(&s);
    return err;
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
        err = commit_running(fs);
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

int ffs_checkpoint_above(struct ffs *fs, uint64_t log_blocks)
{
    struct ffs_journal *j = &fs->journal;
    int err = 0;

    pthread_mutex_lock(&j->commit_lock);
    if (ffs_health(fs) & (FFS_FAILED | FFS_DOWN))
        err = -EIO;
    else if (j->used > 1 && j->used > log_blocks)
        err = ffs_checkpoint(fs);
    pthread_mutex_unlock(&j->commit_lock);
    return err;
}

int ffs_checkpoint_now(struct ffs *fs)
{
    return ffs_checkpoint_above(fs, 0);
}
