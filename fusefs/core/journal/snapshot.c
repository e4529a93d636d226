/* SPDX-License-Identifier: BSD-2-Clause */
/* Commits the running transaction: copies it, so that the next one can begin, and writes it. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "fusefs/core/state.h"
#include "support/trace.h"

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
static void snapshot_mark_error(struct ffs *fs)
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

static int snapshot_copy_images(struct snapshot *s)
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

static void snapshot_drop(struct snapshot *s)
{
    for (size_t i = 0; s->images && i < s->from.n; i++)
        free(s->images[i]);
    free(s->images);
}

/*
 * Notes in the superblock, which is dirty, where the commit will be that ends the checkpoint after
 * this transaction, the last one of the mount (R7f).
 */
static void snapshot_note_clean(struct ffs *fs, const struct snapshot *s)
{
    const struct ffs_journal *j = &fs->journal;
    struct lay_super *sb = ffs_super(fs);
    uint64_t blocks = ffs_log_need(s->from.n);

    sb->clean_incarnation = fs->label.incarnation;
    sb->clean_tid = lay_put64(j->tid + 1);
    sb->clean_pos = lay_put64(ffs_log_after(fs, j->head, blocks));
}

/*
 * Completes the running transaction: with its naming blocks, if a checkpoint
 * follows it. Returns -EAGAIN if the log has no room for it.
 */
static int snapshot_complete(struct ffs *fs, struct snapshot *s, bool names)
{
    struct ffs_journal *j = &fs->journal;
    int err = names ? ffs_naming_gather(fs) : 0;
    uint64_t need = ffs_log_need(j->running.n), room = ffs_log_free(fs);

    if (err)
        return err;
    s->from = j->running;
    if (ffs_running_empty(&j->running))
        return -ENODATA;
    if (names)
        room = fs->geo.log_blocks - j->used - 1; /* one block is the commit of the tail */
    else
        need += ffs_log_need(j->naming.n + 1);
    if (need > room)
        return -EAGAIN;
    if (ffs_cbuf(fs->super)->running_at)
        ffs_section_hints(fs);
    if (j->closing && names)
        snapshot_note_clean(fs, s);
    if (names)
        ffs_naming_seal(fs);
    return snapshot_copy_images(s);
}

/*
 * Copies the running transaction and starts the next one. Returns -ENODATA if
 * there is nothing to commit. The caller holds ffs.meta exclusively.
 */
static int snapshot_take(struct ffs *fs, struct snapshot *s, bool names)
{
    struct ffs_journal *j = &fs->journal;
    struct ffs_running *r = &j->running;

    *s = (struct snapshot){.images = NULL};
    snapshot_mark_error(fs);
    int err = snapshot_complete(fs, s, names);
    if (err) {
        snapshot_drop(s);
        return err;
    }
    for (size_t i = 0; i < r->n; i++)
        r->bufs[i]->running_at = 0;
    atomic_store(&j->taken, j->used + ffs_log_need(r->n));
    *r = (struct ffs_running){.tid = r->tid + 1};
    atomic_store(&j->running_tid, r->tid);
    /* A checkpoint leaves no block whose age is not named. */
    if (names)
        ffs_naming_clear(fs);
    ffs_naming_note(fs);
    return 0;
}

static int snapshot_write(struct ffs *fs, struct snapshot *s, bool verify)
{
    const struct ffs_log_tx tx = {.images = s->images, .n = s->from.n, .verify = verify};

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
static void snapshot_drop_unmapped(struct ffs *fs, const struct ffs_ranges *unmapped)
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
static void snapshot_done(struct ffs *fs, struct snapshot *s)
{
    snapshot_drop_unmapped(fs, &s->from.unmapped);
    for (size_t i = 0; i < s->from.n; i++) {
        ffs_home_put(&fs->home, s->images[i]);
        s->images[i] = NULL;
    }
    fs->journal.freed = s->from.freed;
    s->from.freed = (struct ffs_ranges){.v = NULL};
    atomic_store(&fs->journal.committed, s->from.tid);
}

int ffs_running_commit(struct ffs *fs, enum ffs_commit_how how)
{
    struct snapshot s;
    bool names = how != FFS_COMMIT_PLAIN;

    if (how != FFS_COMMIT_FROZEN)
        pthread_rwlock_wrlock(&fs->meta);
    int err = snapshot_take(fs, &s, names);
    if (how != FFS_COMMIT_FROZEN)
        pthread_rwlock_unlock(&fs->meta);
    if (err)
        return err;
    uint64_t tid = fs->journal.tid;
    trace(TRACE_COMMIT, 0, tid, 0, s.from.n, 0);
    err = snapshot_write(fs, &s, names);
    trace(TRACE_COMMIT_DONE, 0, tid, 0, s.from.n, err);
    if (err) {
        err = ffs_fail(fs, "commit", err);
        fs->journal.failed = s.from;
    } else {
        snapshot_done(fs, &s);
        ffs_running_put(&s.from);
    }
    snapshot_drop(&s);
    return err;
}
