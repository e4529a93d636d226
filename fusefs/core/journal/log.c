/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Writes transactions to the log.
 *
 * The order on the device is: all blocks of a transaction but the last, in large batches; a flush;
 * the commit block, with FUA. Images may be written in place after that. The flush makes file data
 * durable, too: it was written before the end of the handles that map it.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/core/state.h"

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
