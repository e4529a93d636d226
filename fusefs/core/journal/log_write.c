/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Writes transactions to the log, a ring whose tail stands in every commit
 * (FORMAT.md 10). Positions from the tail to the head are in use.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <syslog.h>

#include "fusefs/core/state.h"

/*
 * Blocks that no transaction with images may use: the commit that ends a
 * checkpoint, and one commit for each of two mounts that do not get further
 * (R7d).
 */
#define LOG_ROOM 3u

uint64_t ffs_log_need(uint64_t images)
{
    uint64_t descriptors = (images + LAY_LOG_TAGS - 1) / LAY_LOG_TAGS;

    return images + descriptors + 1;
}

uint64_t ffs_log_free(const struct ffs *fs)
{
    uint64_t taken = fs->journal.used + LOG_ROOM;

    return taken < fs->geo.log_blocks ? fs->geo.log_blocks - taken : 0;
}

uint64_t ffs_log_room(const struct ffs *fs)
{
    uint64_t owed = atomic_load(&fs->journal.owed), free_blocks = ffs_log_free(fs);

    return owed < free_blocks ? free_blocks - owed : 0;
}

uint64_t ffs_log_most(const struct ffs *fs)
{
    return fs->geo.log_blocks - 1 - LOG_ROOM;
}

uint64_t ffs_log_after(const struct ffs *fs, uint64_t pos, uint64_t blocks)
{
    return (pos + blocks) % fs->geo.log_blocks;
}

/* --- Writing blocks --------------------------------------------------------------------------- */

struct writer {
    struct ffs *fs;
    const struct ffs_log_tx *tx;
    uint64_t first; /* log position of the first staged block */
    size_t staged;
    uint64_t pos; /* of the next block */
    uint64_t count;
    uint32_t chain;
    uint8_t lost[FFS_STAGING_BLOCKS]; /* of each staged block: the log that cannot hold it, a bit */
};

/* Staging memory is halved if blocks are read back into the other half. */
static size_t log_staging(const struct writer *w)
{
    return w->tx->verify ? FFS_STAGING_BLOCKS / 2 : FFS_STAGING_BLOCKS;
}

/*
 * Describes the transfer of the staged blocks of a log, in two parts where the
 * ring wraps, and returns the number of parts.
 */
static size_t log_parts(const struct writer *w, unsigned log, struct bd_io like, struct bd_io *ios)
{
    const struct lay_geometry *geo = &w->fs->geo;
    uint64_t to_end = geo->log_blocks - w->first;
    uint64_t a = min_u64(w->staged, to_end);

    ios[0] = ios[1] = like;
    ios[0].offset = ffs_bytes(lay_log_block(geo, log, w->first));
    ios[0].len = ffs_bytes(a);
    ios[1].offset = ffs_bytes(lay_log_block(geo, log, 0));
    ios[1].len = ffs_bytes(w->staged - a);
    ios[1].buf = (uint8_t *)like.buf + ffs_bytes(a);
    return w->staged > a ? 2 : 1;
}

/*
 * Goes on without a staged block that a log cannot hold, if the other one can
 * (R8). Returns `err` otherwise.
 */
static int log_lose(struct writer *w, unsigned log, size_t i, int err)
{
    const struct lay_geometry *geo = &w->fs->geo;

    if (err != -EIO || lay_logs(geo) == 1 || w->lost[i])
        return err;
    w->lost[i] = (uint8_t)(1u << log);
    ffs_checked_lose_place(w->fs, lay_log_block(geo, log, ffs_log_after(w->fs, w->first, i)));
    return 0;
}

/*
 * Transfers the staged blocks of a log one by one, except for those that the
 * log cannot hold. `like` has the operation and the memory of the first block.
 */
static int log_transfer_singly(struct writer *w, unsigned log, struct bd_io like)
{
    uint8_t *buf = like.buf;
    int err = 0;

    for (size_t i = 0; i < w->staged && !err; i++) {
        uint64_t pos = ffs_log_after(w->fs, w->first, i);
        if (w->lost[i] >> log & 1)
            continue;
        like.offset = ffs_bytes(lay_log_block(&w->fs->geo, log, pos));
        like.len = LAY_BLOCK_SIZE;
        like.buf = buf + ffs_bytes(i);
        err = bd_submit(w->fs->dev, &like, 1);
        if (err)
            err = log_lose(w, log, i, err);
    }
    return err;
}

/* Writes the staged blocks to all logs at the same time. */
static int log_write_all(struct writer *w, unsigned flags)
{
    const struct bd_io like = {.op = BD_WRITE, .flags = flags, .buf = w->fs->journal.staging};
    const unsigned logs = lay_logs(&w->fs->geo);
    struct bd_io ios[2 * LAY_LOGS];
    size_t n = 0;

    for (unsigned i = 0; i < logs; i++)
        n += log_parts(w, i, like, ios + n);
    int err = bd_submit(w->fs->dev, ios, n);
    if (err != -EIO || logs == 1)
        return err;
    err = 0;
    for (unsigned i = 0; i < logs && !err; i++)
        err = log_transfer_singly(w, i, like);
    return err;
}

/* Reads the staged blocks from a log. Returns -EUCLEAN if they differ. */
static int log_compare(struct writer *w, unsigned log)
{
    uint8_t *staging = w->fs->journal.staging, *back = staging + ffs_bytes(log_staging(w));
    const struct bd_io like = {.op = BD_READ, .buf = back};
    struct bd_io ios[2];
    size_t n = log_parts(w, log, like, ios);
    int err = bd_submit(w->fs->dev, ios, n);

    if (err == -EIO && lay_logs(&w->fs->geo) > 1)
        err = log_transfer_singly(w, log, like);
    for (size_t i = 0; i < w->staged && !err; i++) {
        bool lost = w->lost[i] >> log & 1;
        if (!lost && memcmp(staging + ffs_bytes(i), back + ffs_bytes(i), LAY_BLOCK_SIZE) != 0)
            err = -EUCLEAN;
    }
    return err;
}

/* Writes the staged blocks and reads them back. Returns -EUCLEAN if they differ. */
static int log_write_and_compare(struct writer *w, unsigned flags)
{
    int err = log_write_all(w, flags);

    if (!err && !(flags & BD_FUA))
        err = ffs_flush(w->fs);
    for (unsigned i = 0; i < lay_logs(&w->fs->geo) && !err; i++)
        err = log_compare(w, i);
    return err;
}

/* A write that the device has acknowledged and lost is repeated once. */
static int log_write_verified(struct writer *w, unsigned flags)
{
    int err = log_write_and_compare(w, flags);

    if (err != -EUCLEAN)
        return err;
    ffs_log(w->fs, LOG_ERR, "the log does not read back as it was written at position %llu",
            (unsigned long long)w->first);
    err = log_write_and_compare(w, flags);
    return err == -EUCLEAN ? -EIO : err;
}

static int log_write_staged(struct writer *w, unsigned flags)
{
    int err;

    if (w->staged == 0)
        return 0;
    if (w->tx->verify)
        err = log_write_verified(w, flags);
    else
        err = log_write_all(w, flags);
    if (err == -EIO)
        w->fs->journal.unwritable = true;
    w->first = w->pos;
    w->staged = 0;
    memset(w->lost, 0, sizeof(w->lost));
    return err;
}

/* --- Records ---------------------------------------------------------------------------------- */

/* Copies a block to staging memory; its position in the log is w->pos. */
static int log_put(struct writer *w, const void *block)
{
    uint8_t *staging = w->fs->journal.staging;

    memcpy(staging + ffs_bytes(w->staged), block, LAY_BLOCK_SIZE);
    w->staged++;
    w->count++;
    w->pos = lay_log_after(&w->fs->geo, w->pos);
    return w->staged < log_staging(w) ? 0 : log_write_staged(w, 0);
}

static void log_start_record(const struct writer *w, void *block, uint32_t magic)
{
    lay_log_init(block, magic, &w->fs->geo, &w->fs->label.incarnation, w->pos);
}

static int log_put_images(struct writer *w, struct ffs_image **images, size_t n)
{
    struct lay_log_descriptor d;

    log_start_record(w, &d, LAY_MAGIC_JDESC);
    d.count = lay_put32((uint32_t)n);
    for (size_t i = 0; i < n; i++) {
        d.tags[i].block = lay_put64(images[i]->item.number);
        d.tags[i].age = lay_put32(lay_age(images[i]->data));
    }
    lay_seal(&d, w->fs->journal.tid);
    w->chain = lay_log_chain(w->chain, &d);
    int err = log_put(w, &d);
    for (size_t i = 0; i < n && !err; i++)
        err = log_put(w, images[i]->data);
    return err;
}

static int log_put_all(struct writer *w)
{
    const struct ffs_log_tx *tx = w->tx;
    int err = 0;

    for (size_t i = 0; i < tx->n && !err; i += LAY_LOG_TAGS) {
        size_t n = tx->n - i < LAY_LOG_TAGS ? tx->n - i : LAY_LOG_TAGS;
        err = log_put_images(w, tx->images + i, n);
    }
    return err ? err : log_write_staged(w, 0);
}

static int log_put_commit(struct writer *w)
{
    const struct ffs_journal *j = &w->fs->journal;
    struct lay_log_commit c;

    log_start_record(w, &c, LAY_MAGIC_JCOMMIT);
    c.blocks = lay_put32((uint32_t)(w->count + 1));
    c.crc = lay_put32(w->chain);
    c.tail_tid = lay_put64(w->tx->begins ? j->tid : j->tail_tid);
    c.tail_pos = lay_put64(w->tx->begins ? j->head : j->tail_pos);
    c.super_age = lay_put32(j->super_age);
    c.time = ffs_now();
    lay_seal(&c, j->tid);
    int err = log_put(w, &c);
    return err ? err : log_write_staged(w, BD_FUA);
}

/* The blocks that the commit before has freed may be used again (R9a). */
static void log_release(struct ffs *fs)
{
    struct ffs_ranges *freed = &fs->journal.freed;

    if (freed->n > 0) {
        ffs_discard_freed(fs, freed);
        ffs_alloc_release(fs, freed);
    }
    ffs_ranges_free(freed);
    *freed = (struct ffs_ranges){.v = NULL};
}

static void log_advance(const struct writer *w)
{
    struct ffs_journal *j = &w->fs->journal;

    if (w->tx->begins) {
        j->tail_tid = j->tid;
        j->tail_pos = j->head;
        j->used = 0;
    }
    j->head = w->pos;
    j->used += w->count;
    atomic_store(&j->taken, j->used);
    j->tid++;
    log_release(w->fs);
}

int ffs_log_write(struct ffs *fs, const struct ffs_log_tx *tx)
{
    struct ffs_journal *j = &fs->journal;
    struct writer w = {.fs = fs, .tx = tx, .first = j->head, .pos = j->head};

    assert(j->used + ffs_log_need(tx->n) <= fs->geo.log_blocks);
    /* Nobody would read a later number. Only a crafted log gets there. */
    int err = j->tid <= LAY_MAX_TID ? log_put_all(&w) : -EOVERFLOW;
    /* An empty transaction makes nothing reachable that a flush would have to precede. */
    if (!err && w.count > 0)
        err = ffs_flush(fs);
    if (!err)
        err = log_put_commit(&w);
    if (!err)
        log_advance(&w);
    return err;
}
