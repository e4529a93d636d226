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

static uint64_t commit_log_blocks(const struct ffs *fs)
{
    return fs->geo.journal_blocks - 1;
}

static uint64_t commit_count(const struct ffs_ranges *ranges)
{
    uint64_t blocks = 0;

    for (size_t i = 0; i < ranges->n; i++)
        blocks += ranges->v[i].len;
    return blocks;
}

bool ffs_running_has_room(struct ffs *fs, unsigned blocks)
{
    const struct ffs_running *r = &fs->journal.running;
    /*
     * A handle fills at most one revoke block. One more block is the superblock, if an error is
     * marked in it.
     */
    uint64_t revokes = commit_count(&r->revoked) + LAY_JREVOKE_MAX;

    return ffs_log_need(r->n + blocks + 1, revokes) <= commit_log_blocks(fs);
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
    if (r->n == commit_log_blocks(fs) / 4)
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
 * Removes a freed block from the transaction and the cache. It may hold file data soon, which an
 * image must not overwrite.
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

void ffs_running_free(struct ffs *fs, const struct ffs_ranges *freed,
                      const struct ffs_ranges *revoked)
{
    struct ffs_running *r = &fs->journal.running;

    for (size_t i = 0; i < revoked->n; i++) {
        for (uint64_t b = 0; b < revoked->v[i].len; b++)
            commit_forget(fs, revoked->v[i].block + b);
    }
    ffs_ranges_join(&r->freed, freed);
    ffs_ranges_join(&r->revoked, revoked);
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
    ffs_ranges_free(&r->revoked);
}

void ffs_journal_destroy(struct ffs *fs)
{
    struct ffs_journal *j = &fs->journal;

    if (!j->staging)
        return;
    commit_put_running(&j->running);
    commit_put_running(&j->failed);
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
    uint64_t *revoked; /* of those freed, the ones the log has images of */
    size_t nrevoked;
};

/* Marks the superblock when a corruption was found, so that the last commit asks for fsck. */
static void commit_mark_error(struct ffs *fs)
{
    struct lay_super *sb = ffs_super(fs);
    struct ffs_cbuf *cb = ffs_cbuf(fs->super);
    uint32_t state = lay_get32(sb->state);

    if (!(ffs_health(fs) & FFS_CORRUPT) || (state & LAY_STATE_ERROR))
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

static int commit_copy_revokes(struct ffs *fs, struct snapshot *s)
{
    uint64_t n = 0;

    for (size_t i = 0; i < s->from.revoked.n; i++)
        n += s->from.revoked.v[i].len;
    s->revoked = malloc((n + 1) * sizeof(*s->revoked));
    if (!s->revoked)
        return -ENOMEM;
    for (size_t i = 0; i < s->from.revoked.n; i++) {
        const struct ffs_range *r = &s->from.revoked.v[i];
        for (uint64_t b = r->block; b < r->block + r->len; b++) {
            if (ffs_home_has(&fs->home, b))
                s->revoked[s->nrevoked++] = b;
        }
    }
    return 0;
}

static void commit_drop_snapshot(struct snapshot *s)
{
    for (size_t i = 0; s->images && i < s->from.n; i++)
        ffs_image_free(s->images[i]);
    free(s->images);
    free(s->revoked);
}

/*
 * Copies the running transaction and starts the next one. Returns -EAGAIN if the log needs a
 * checkpoint first, and -ENODATA if there is nothing to commit.
 */
static int commit_take_snapshot(struct ffs *fs, struct snapshot *s)
{
    struct ffs_running *r = &fs->journal.running;
    uint64_t log_free = fs->geo.journal_blocks - 1 - fs->journal.used;
    int err = 0;

    pthread_rwlock_wrlock(&fs->meta);
    commit_mark_error(fs);
    *s = (struct snapshot){.from = *r};
    if (ffs_running_empty(r)) {
        err = -ENODATA;
        goto unlock;
    }
    err = commit_copy_revokes(fs, s);
    if (!err && ffs_log_need(r->n, s->nrevoked) > log_free)
        err = -EAGAIN;
    if (!err)
        err = commit_copy_images(s);
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
    struct ffs_log_tx tx = {
        .tid = s->from.tid,
        .images = s->images,
        .n = s->from.n,
        .revoked = s->revoked,
        .nrevoked = s->nrevoked,
    };

    for (size_t i = 0; i < s->from.n; i++) {
        assert(s->images[i]); /* all of them, or there is no snapshot */
        lay_seal(s->images[i]->data, s->from.tid);
    }
    return ffs_log_write(fs, &tx);
}

/*
 * Called when the transaction is durable. Updates ffs.home first: afterwards the blocks may leave
 * the cache, and freed blocks may be used again.
 */
static void commit_done(struct ffs *fs, struct snapshot *s)
{
    for (size_t i = 0; i < s->nrevoked; i++)
        ffs_home_drop(&fs->home, s->revoked[i]);
    for (size_t i = 0; i < s->from.n; i++) {
        ffs_home_put(&fs->home, s->images[i]);
        s->images[i] = NULL;
    }
    ffs_discard_freed(fs, &s->from.freed);
    ffs_alloc_release(fs, &s->from.freed);
    atomic_store(&fs->journal.committed, s->from.tid);
}

/* Commits the running transaction. The caller holds commit_lock. */
static int commit_running(struct ffs *fs)
{
    struct snapshot s;
    int err = commit_take_snapshot(fs, &s);

    if (err == -EAGAIN) {
        /*
         * The checkpoint makes the log begin with the running transaction, none of which is in the
         * log yet.
         */
        err = ffs_checkpoint(fs, atomic_load(&fs->journal.committed) + 1);
        /* Every transaction that ffs_tx_begin() allows fits into an empty log. */
        if (!err)
            err = commit_take_snapshot(fs, &s);
    }
    if (err)
        return err == -ENODATA ? 0 : err;
    trace(TRACE_COMMIT, 0, s.from.tid, 0, s.from.n, 0);
    err = commit_write_snapshot(fs, &s);
    trace(TRACE_COMMIT_DONE, 0, s.from.tid, 0, s.from.n, err);
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
        err = ffs_checkpoint(fs, atomic_load(&j->committed) + 1);
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

static int checkpoint_by_block(const void *a, const void *b)
{
    const struct ffs_image *x = *(struct ffs_image *const *)a;
    const struct ffs_image *y = *(struct ffs_image *const *)b;

    return x->block < y->block ? -1 : x->block > y->block;
}

/*
 * Returns all images, sorted by address, or NULL if memory is short. The list stays valid because
 * only commits and checkpoints change the set.
 */
static struct ffs_image **checkpoint_sorted(struct ffs_home *home, size_t *n)
{
    pthread_mutex_lock(&home->lock);
    size_t count = 0;
    struct ffs_image **list = malloc((home->n + 1) * sizeof(struct ffs_image *));
    for (size_t i = 0; list && i < home->bucket_count; i++) {
        for (struct ffs_image *image = home->buckets[i]; image; image = image->next)
            list[count++] = image;
    }
    pthread_mutex_unlock(&home->lock);
    if (list)
        qsort(list, count, sizeof(struct ffs_image *), checkpoint_by_block);
    *n = count;
    return list;
}

/*
 * Stores the transfers between staging memory and the places of a batch. Adjacent blocks share a
 * transfer.
 */
static size_t checkpoint_gather(struct ffs *fs, enum bd_op op, struct ffs_image **list, size_t n,
                                struct bd_io *ios)
{
    size_t nios = 0;
    uint8_t *at = fs->journal.staging;

    for (size_t i = 0; i < n; i++, at += LAY_BLOCK_SIZE) {
        if (i > 0 && list[i]->block == list[i - 1]->block + 1) {
            ios[nios - 1].len += LAY_BLOCK_SIZE;
            continue;
        }
        ios[nios++] = (struct bd_io){
            .op = op, .offset = ffs_bytes(list[i]->block), .len = LAY_BLOCK_SIZE, .buf = at};
    }
    return nios;
}

static int checkpoint_write_batch(struct ffs *fs, struct ffs_image **list, size_t n)
{
    struct bd_io ios[FFS_STAGING_BLOCKS];
    uint8_t *at = fs->journal.staging;

    for (size_t i = 0; i < n; i++, at += LAY_BLOCK_SIZE)
        memcpy(at, list[i]->data, LAY_BLOCK_SIZE);
    return bd_submit(fs->dev, ios, checkpoint_gather(fs, BD_WRITE, list, n, ios));
}

/* Returns -EUCLEAN if a block does not read back as it was written. */
static int checkpoint_verify_batch(struct ffs *fs, struct ffs_image **list, size_t n)
{
    struct bd_io ios[FFS_STAGING_BLOCKS];
    const uint8_t *at = fs->journal.staging;
    int err = bd_submit(fs->dev, ios, checkpoint_gather(fs, BD_READ, list, n, ios));

    for (size_t i = 0; i < n && !err; i++, at += LAY_BLOCK_SIZE) {
        if (memcmp(at, list[i]->data, LAY_BLOCK_SIZE) == 0)
            continue;
        ffs_log(fs, LOG_ERR, "%s: block %llu does not read back as it was written",
                fs->dev->info.name, (unsigned long long)list[i]->block);
        err = -EUCLEAN;
    }
    return err;
}

typedef int (*batch_fn)(struct ffs *fs, struct ffs_image **list, size_t n);

static int checkpoint_in_batches(struct ffs *fs, struct ffs_image **list, size_t n, batch_fn body)
{
    int err = 0;

    for (size_t i = 0; i < n && !err; i += FFS_STAGING_BLOCKS) {
        size_t left = n - i;
        err = ffs_interrupted(fs);
        if (!err)
            err = body(fs, list + i, left < FFS_STAGING_BLOCKS ? left : FFS_STAGING_BLOCKS);
    }
    return err;
}

/*
 * Writes the images in place, makes them durable and reads them back before the log is emptied. A
 * write that the device has acknowledged and lost is repeated once.
 */
static int checkpoint_put_in_place(struct ffs *fs)
{
    size_t n;
    struct ffs_image **list = checkpoint_sorted(&fs->home, &n);

    if (!list)
        return -ENOMEM;
    int err = -EUCLEAN;
    for (unsigned attempt = 0; attempt < 2 && err == -EUCLEAN; attempt++) {
        err = checkpoint_in_batches(fs, list, n, checkpoint_write_batch);
        if (!err)
            err = ffs_flush(fs);
        if (!err)
            err = checkpoint_in_batches(fs, list, n, checkpoint_verify_batch);
    }
    free(list);
    return err == -EUCLEAN ? -EIO : err;
}

/*
 * Writes the superblock copies before the log loses its image of block 0, so that a copy and the
 * log can replace block 0 at any time.
 */
static int checkpoint_write_copies(struct ffs *fs)
{
    struct bd_io ios[LAY_SUPER_COPIES];
    struct lay_super *copy = fs->journal.staging;

    if (!ffs_home_read(&fs->home, 0, copy))
        return 0;
    uint64_t tid = lay_get64(copy->head.tid);
    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++) {
        if (i > 0)
            copy[i] = copy[0];
        lay_head_init(&copy[i].head, LAY_MAGIC_SUPER, fs->geo.uuid, fs->geo.copies[i], 0);
        lay_seal(&copy[i], tid);
        ios[i] = (struct bd_io){.op = BD_WRITE,
                                .flags = BD_FUA,
                                .offset = ffs_bytes(fs->geo.copies[i]),
                                .len = LAY_BLOCK_SIZE,
                                .buf = &copy[i]};
    }
    int err = bd_submit(fs->dev, ios, LAY_SUPER_COPIES);
    if (!err)
        fs->journal.super_tid = tid;
    return err;
}

int ffs_checkpoint(struct ffs *fs, uint64_t next_tid)
{
    int err = checkpoint_put_in_place(fs);

    if (!err)
        err = checkpoint_write_copies(fs);
    if (!err)
        err = ffs_log_reset(fs, next_tid);
    if (err == -EINTR)
        return err;
    if (err)
        return ffs_fail(fs, "checkpoint", err);
    ffs_home_clear(&fs->home);
    return 0;
}

int ffs_checkpoint_above(struct ffs *fs, uint64_t log_blocks)
{
    struct ffs_journal *j = &fs->journal;
    int err = 0;

    pthread_mutex_lock(&j->commit_lock);
    if (ffs_health(fs) & (FFS_FAILED | FFS_DOWN))
        err = -EIO;
    else if (j->used > log_blocks)
        err = ffs_checkpoint(fs, atomic_load(&j->committed) + 1);
    pthread_mutex_unlock(&j->commit_lock);
    return err;
}

int ffs_checkpoint_now(struct ffs *fs)
{
    return ffs_checkpoint_above(fs, 0);
}

/* --- The log --------------------------------------------------------------------------------- */

/* --- Flushes ---------------------------------------------------------------------------------- */

/*
 * Runs one flush at a time. A flush holds a queue pair until it ends, and reads need the other
 * ones. A flush under way may have begun too early for the caller; the next one serves all waiters.
 * The kernel reports pages that it could not write only once, and drops them. A waiter whose
 * predecessor failed therefore finds the file system failed, and does not flush again.
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

/* --- Transactions ----------------------------------------------------------------------------- */

uint64_t ffs_log_need(uint64_t images, uint64_t revokes)
{
    uint64_t descs = (images + LAY_JDESC_TAGS - 1) / LAY_JDESC_TAGS;
    uint64_t revoke_blocks = (revokes + LAY_JREVOKE_MAX - 1) / LAY_JREVOKE_MAX;

    return images + descs + revoke_blocks + 1;
}

struct writer {
    struct ffs *fs;
    uint64_t first; /* log position of the first staged block */
    size_t staged;
    uint64_t pos; /* of the next block */
    uint64_t count;
    uint32_t chain;
};

static uint64_t log_address(const struct ffs *fs, uint64_t pos)
{
    return fs->geo.journal_start + pos;
}

/* Writes the staged blocks in one transfer, or in two where the ring wraps. */
static int log_flush_staged(struct writer *w)
{
    struct ffs *fs = w->fs;
    uint64_t to_end = fs->geo.journal_blocks - w->first;
    uint64_t a = w->staged < to_end ? w->staged : to_end;
    uint8_t *staging = fs->journal.staging;
    struct bd_io ios[2] = {
        {.op = BD_WRITE,
         .offset = ffs_bytes(log_address(fs, w->first)),
         .len = ffs_bytes(a),
         .buf = staging},
        {.op = BD_WRITE,
         .offset = ffs_bytes(log_address(fs, 1)),
         .len = ffs_bytes(w->staged - a),
         .buf = staging + ffs_bytes(a)},
    };

    if (w->staged == 0)
        return 0;
    int err = bd_submit(fs->dev, ios, w->staged > a ? 2 : 1);
    w->first = w->pos;
    w->staged = 0;
    return err;
}

static int log_put(struct writer *w, const void *block)
{
    uint8_t *staging = w->fs->journal.staging;

    memcpy(staging + ffs_bytes(w->staged), block, LAY_BLOCK_SIZE);
    w->staged++;
    w->count++;
    w->pos = lay_journal_next(&w->fs->geo, w->pos);
    return w->staged < FFS_STAGING_BLOCKS ? 0 : log_flush_staged(w);
}

static void log_start_block(struct writer *w, void *block, uint32_t magic)
{
    memset(block, 0, LAY_BLOCK_SIZE);
    lay_head_init(block, magic, w->fs->geo.uuid, log_address(w->fs, w->pos), 0);
}

static int log_put_revokes(struct writer *w, const struct ffs_log_tx *tx)
{
    struct lay_journal_revoke r;
    int err = 0;

    for (size_t i = 0; i < tx->nrevoked && !err;) {
        size_t n = tx->nrevoked - i < LAY_JREVOKE_MAX ? tx->nrevoked - i : LAY_JREVOKE_MAX;
        log_start_block(w, &r, LAY_MAGIC_JREVOKE);
        r.count = lay_put32((uint32_t)n);
        for (size_t k = 0; k < n; k++)
            r.blocks[k] = lay_put64(tx->revoked[i + k]);
        lay_seal(&r, tx->tid);
        w->chain = lay_journal_chain(w->chain, &r);
        err = log_put(w, &r);
        i += n;
    }
    return err;
}

static int log_put_images(struct writer *w, struct ffs_image **images, size_t n, uint64_t tid)
{
    struct lay_journal_desc d;
    uint64_t pos = w->pos;

    log_start_block(w, &d, LAY_MAGIC_JDESC);
    d.count = lay_put32((uint32_t)n);
    for (size_t i = 0; i < n; i++) {
        pos = lay_journal_next(&w->fs->geo, pos);
        uint32_t crc = lay_block_crc(w->fs->geo.uuid, log_address(w->fs, pos), images[i]->data);
        d.tags[i].block = lay_put64(images[i]->block);
        d.tags[i].crc = lay_put32(crc);
    }
    lay_seal(&d, tid);
    w->chain = lay_journal_chain(w->chain, &d);
    int err = log_put(w, &d);
    for (size_t i = 0; i < n && !err; i++)
        err = log_put(w, images[i]->data);
    return err;
}

static int log_put_commit(struct writer *w, uint64_t tid)
{
    struct lay_journal_commit *c = w->fs->journal.staging;
    uint64_t at = log_address(w->fs, w->pos);

    log_start_block(w, c, LAY_MAGIC_JCOMMIT);
    c->blocks = lay_put32((uint32_t)(w->count + 1));
    c->crc = lay_put32(w->chain);
    c->time = ffs_now();
    lay_seal(c, tid);
    w->count++;
    w->pos = lay_journal_next(&w->fs->geo, w->pos);
    return bd_write(w->fs->dev, ffs_bytes(at), c, LAY_BLOCK_SIZE, BD_FUA);
}

int ffs_log_write(struct ffs *fs, const struct ffs_log_tx *tx)
{
    struct ffs_journal *j = &fs->journal;
    struct writer w = {.fs = fs, .first = j->head, .pos = j->head};

    assert(j->used + ffs_log_need(tx->n, tx->nrevoked) <= fs->geo.journal_blocks - 1);

    int err = log_put_revokes(&w, tx);
    for (size_t i = 0; i < tx->n && !err; i += LAY_JDESC_TAGS) {
        size_t n = tx->n - i < LAY_JDESC_TAGS ? tx->n - i : LAY_JDESC_TAGS;
        err = log_put_images(&w, tx->images + i, n, tx->tid);
    }
    if (!err)
        err = log_flush_staged(&w);
    if (!err)
        err = ffs_flush(fs);
    if (!err)
        err = log_put_commit(&w, tx->tid);
    if (err)
        return err;
    j->head = w.pos;
    j->used += w.count;
    return 0;
}

/*
 * The block may be overwritten in place: all changes lie in its first 512 bytes, and every device
 * writes those as a whole.
 */
int ffs_log_reset(struct ffs *fs, uint64_t tail_tid)
{
    struct lay_journal *header = fs->journal.staging;

    memset(header, 0, sizeof(*header));
    lay_head_init(&header->head, LAY_MAGIC_JOURNAL, fs->geo.uuid, fs->geo.journal_start, 0);
    header->tail_tid = lay_put64(tail_tid);
    header->tail_pos = lay_put64(fs->journal.head);
    header->super_tid = lay_put64(fs->journal.super_tid);
    lay_seal(header, tail_tid);
    int err = bd_write(fs->dev, ffs_bytes(fs->geo.journal_start), header, LAY_BLOCK_SIZE, BD_FUA);
    if (!err)
        fs->journal.used = 0;
    return err;
}
