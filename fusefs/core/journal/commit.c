/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Commits transactions to the log, makes checkpoints, and freezes the file
 * system. A commit copies the running transaction, so that the next one can
 * begin meanwhile. A checkpoint writes committed blocks to their homes, so that
 * the log can reuse the space of their images. The steps are:
 *
 *     commit with naming blocks -> images in place -> flush -> read back
 *     -> commit with the later tail -> read back
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "fusefs/core/state.h"
#include "support/trace.h"

/*
 * Holds the committing transaction. `from` is the state of the running
 * transaction when the commit began. `images` are copies of its blocks.
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
 * Records in the dirty superblock the place of the commit that will end the checkpoint after this
 * transaction, which is the last one of the mount (R7f).
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
 * Completes the running transaction. Adds its naming blocks if a checkpoint
 * follows. Returns -EAGAIN if the log has no room for the transaction.
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
    /* After a checkpoint the ages of all blocks are named. */
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
 * Drops the images of chunks that the committed map does not have. The space of these chunks may be
 * used for data when another commit is durable. After a crash, recovery drops their images in the
 * log.
 */
static void snapshot_drop_unmapped(struct ffs *fs, const struct ffs_ranges *unmapped)
{
    for (size_t i = 0; i < unmapped->n; i++) {
        for (uint64_t b = 0; b < unmapped->v[i].len; b++)
            ffs_home_drop(&fs->home, unmapped->v[i].block + b);
    }
}

/*
 * Called when the transaction is durable. Updates ffs.home, so that the changed blocks may leave
 * the cache. The blocks that the transaction freed wait for the next commit.
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

/* Describes a block of the device that is a place of an image. */
struct home_place {
    uint64_t block;
    const struct ffs_image *image;
    bool lost; /* the block cannot be written or read, and the image has another place */
};

/* Holds the places of all images, sorted by block. */
struct homes {
    struct home_place *places;
    size_t n;
};

/* Adds the places of an image and returns their number. */
static size_t checkpoint_add_places(const struct ffs *fs, const struct ffs_image *image,
                                    struct home_place *list)
{
    uint64_t places[FFS_PLACES];
    unsigned n = ffs_homes_of(fs, image->item.number, places);

    assert(n > 0);

    for (unsigned i = 0; i < n; i++)
        list[i] = (struct home_place){places[i], image, false};
    return n;
}

/*
 * Collects the places of all images. Returns 0 or -ENOMEM. The list stays valid
 * because only commits and checkpoints change the set.
 */
static int checkpoint_sort(struct ffs *fs, struct homes *h)
{
    struct ffs_home *home = &fs->home;
    const struct ffs_image *image = NULL;

    pthread_mutex_lock(&home->lock);
    h->n = 0;
    h->places = malloc((FFS_PLACES * home->table.n + 1) * sizeof(*h->places));
    while (h->places && (image = ffs_home_next(home, image)))
        h->n += checkpoint_add_places(fs, image, h->places + h->n);
    pthread_mutex_unlock(&home->lock);
    if (!h->places)
        return -ENOMEM;
    qsort(h->places, h->n, sizeof(*h->places), by_u64);
    return 0;
}

/*
 * Stores the transfers between staging memory and the places of a batch in
 * `ios`. Adjacent blocks share a transfer. Returns the number of transfers.
 */
static size_t checkpoint_gather(struct ffs *fs, enum bd_op op, const struct home_place *list,
                                size_t n, struct bd_io *ios)
{
    size_t nios = 0;
    uint8_t *at = fs->journal.staging;

    for (size_t i = 0; i < n; i++, at += LAY_BLOCK_SIZE) {
        if (i > 0 && list[i].block == list[i - 1].block + 1) {
            ios[nios - 1].len += LAY_BLOCK_SIZE;
            continue;
        }
        ios[nios++] = (struct bd_io){
            .op = op, .offset = ffs_bytes(list[i].block), .len = LAY_BLOCK_SIZE, .buf = at};
    }
    return nios;
}

/*
 * Marks a failed place as lost and returns 0 if the image has another place
 * that is not lost. Returns `err` otherwise.
 */
static int checkpoint_lose(struct ffs *fs, const struct homes *h, struct home_place *place, int err)
{
    uint64_t places[FFS_PLACES];
    unsigned n = ffs_homes_of(fs, place->image->item.number, places);

    for (unsigned i = 0; i < n && err == -EIO && !place->lost; i++) {
        const struct home_place *other =
            bsearch(&places[i], h->places, h->n, sizeof(*other), by_u64);
        place->lost = other && other != place && !other->lost;
    }
    if (!place->lost)
        return err;
    ffs_checked_lose_place(fs, place->block);
    return 0;
}

/* Transfers one block of a batch. The staging memory of the block is at `at`. */
static int checkpoint_one(struct ffs *fs, enum bd_op op, const struct home_place *place, void *at)
{
    return op == BD_READ ? bd_read(fs->dev, ffs_bytes(place->block), at, LAY_BLOCK_SIZE)
                         : bd_write(fs->dev, ffs_bytes(place->block), at, LAY_BLOCK_SIZE, 0);
}

/*
 * Transfers a batch in one call of bd_submit(). If that call fails with -EIO,
 * or a place is already lost, transfers each remaining place alone.
 */
static int checkpoint_transfer(struct ffs *fs, enum bd_op op, const struct homes *h,
                               struct home_place *list, size_t n)
{
    struct bd_io ios[FFS_STAGING_BLOCKS];
    uint8_t *at = fs->journal.staging;
    bool all = true;

    for (size_t i = 0; i < n; i++)
        all &= !list[i].lost;
    int err = all ? bd_submit(fs->dev, ios, checkpoint_gather(fs, op, list, n, ios)) : -EIO;
    if (err != -EIO)
        return err;
    err = 0;
    for (size_t i = 0; i < n && !err; i++, at += LAY_BLOCK_SIZE) {
        if (!list[i].lost)
            err = checkpoint_one(fs, op, &list[i], at);
        if (err)
            err = checkpoint_lose(fs, h, &list[i], err);
    }
    return err;
}

static int checkpoint_write_batch(struct ffs *fs, const struct homes *h, struct home_place *list,
                                  size_t n)
{
    uint8_t *at = fs->journal.staging;

    for (size_t i = 0; i < n; i++, at += LAY_BLOCK_SIZE)
        memcpy(at, list[i].image->data, LAY_BLOCK_SIZE);
    return checkpoint_transfer(fs, BD_WRITE, h, list, n);
}

/* Returns -EUCLEAN if a block does not read back as it was written. */
static int checkpoint_verify_batch(struct ffs *fs, const struct homes *h, struct home_place *list,
                                   size_t n)
{
    const uint8_t *at = fs->journal.staging;
    int err = checkpoint_transfer(fs, BD_READ, h, list, n);

    for (size_t i = 0; i < n && !err; i++, at += LAY_BLOCK_SIZE) {
        if (list[i].lost || memcmp(at, list[i].image->data, LAY_BLOCK_SIZE) == 0)
            continue;
        ffs_log(fs, LOG_ERR, "block %llu does not read back as it was written",
                (unsigned long long)list[i].block);
        err = -EUCLEAN;
    }
    return err;
}

typedef int (*batch_fn)(struct ffs *fs, const struct homes *h, struct home_place *list, size_t n);

static int checkpoint_in_batches(struct ffs *fs, const struct homes *h, batch_fn body)
{
    int err = 0;

    for (size_t i = 0; i < h->n && !err; i += FFS_STAGING_BLOCKS) {
        size_t left = h->n - i;
        err = body(fs, h, h->places + i, min_u64(left, FFS_STAGING_BLOCKS));
    }
    return err;
}

/*
 * Writes the images in place, makes them durable and reads them back before the
 * log forgets them. If the device has lost an acknowledged write, all writes
 * are repeated once.
 */
static int checkpoint_put_in_place(struct ffs *fs)
{
    struct homes h;
    int err = checkpoint_sort(fs, &h);

    if (err)
        return err;
    err = h.n > 0 ? -EUCLEAN : 0;
    for (unsigned attempt = 0; attempt < 2 && err == -EUCLEAN; attempt++) {
        err = checkpoint_in_batches(fs, &h, checkpoint_write_batch);
        if (!err)
            err = ffs_flush(fs);
        if (!err)
            err = checkpoint_in_batches(fs, &h, checkpoint_verify_batch);
    }
    free(h.places);
    return err == -EUCLEAN ? -EIO : err;
}

/* The commit with the later tail names the superblock that is in place now. */
static int checkpoint_commit_tail(struct ffs *fs)
{
    const struct ffs_log_tx tx = {.begins = true, .verify = true};
    uint32_t age = ffs_home_age(&fs->home, LAY_ADDR_SUPER);

    if (age != 0)
        fs->journal.super_age = age;
    return ffs_log_write(fs, &tx);
}

static int checkpoint_run(struct ffs *fs, enum ffs_commit_how how)
{
    int err = ffs_running_commit(fs, how);

    if (err == -EAGAIN)
        return ffs_fail(fs, "checkpoint: the log has no room", -ENOSPC);
    if (!err || err == -ENODATA)
        err = checkpoint_put_in_place(fs);

    /* The log still has all images, and a later checkpoint writes them. */
    if (err == -ENOMEM)
        return err;
    if (!err)
        err = checkpoint_commit_tail(fs);
    if (err)
        return ffs_fail(fs, "checkpoint", err);
    ffs_home_filter(&fs->home, NULL, NULL);
    atomic_store(&fs->journal.in_place, atomic_load(&fs->journal.committed));
    return 0;
}

int ffs_checkpoint(struct ffs *fs)
{
    return checkpoint_run(fs, FFS_COMMIT_NAMES);
}

int ffs_checkpoint_frozen(struct ffs *fs)
{
    return checkpoint_run(fs, FFS_COMMIT_FROZEN);
}

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

/*
 * A commit flushes the device before it writes its last block. The flush covers the data only if
 * the commit began after the data was written. That is certain for the running transaction. An
 * older transaction may have begun to commit earlier, so data that was overwritten in place needs
 * another flush.
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
