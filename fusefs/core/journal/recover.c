/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Replays the journal at mount.
 *
 * The reader of the log (layout/journal_reader.h) checks each transaction as a
 * whole before any part of it counts. The images of a whole transaction go to
 * ffs.home as if it had just been committed, and a checkpoint writes them in
 * place. Recovery can therefore be interrupted at any point; the next mount
 * begins it again.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "fusefs/core/state.h"
#include "layout/journal_reader.h"

struct recovery {
    struct ffs *fs;
    struct lay_log log;
    /* Images and revoked blocks of the transaction that is being read. */
    struct ffs_image **images;
    size_t n, cap;
    uint64_t *revoked;
    size_t nrevoked, revoked_cap;
    /*
     * Read-ahead: staging memory holds `ready` blocks of the log, from position
     * `first` on.
     */
    uint64_t first, ready;
};

/* Implements lay_log_calls.block. */
static int recover_block(void *arg, uint64_t pos, const void **block)
{
    struct recovery *r = arg;
    struct ffs *fs = r->fs;

    if (pos < r->first || pos - r->first >= r->ready) {
        uint64_t n = fs->geo.journal_blocks - pos;
        if (n > FFS_STAGING_BLOCKS)
            n = FFS_STAGING_BLOCKS;
        r->ready = 0;
        int err = ffs_interrupted(fs);
        if (err)
            return err;
        err = bd_read(fs->dev, ffs_bytes(fs->geo.journal_start + pos), fs->journal.staging,
                      ffs_bytes(n));
        if (err)
            return err;
        r->first = pos;
        r->ready = n;
    }
    *block = (const uint8_t *)fs->journal.staging + ffs_bytes(pos - r->first);
    return 0;
}

/* Makes room for one more element of an array. The capacity doubles. */
static int recover_grow(void **array, size_t *cap, size_t used, size_t size)
{
    if (used < *cap)
        return 0;
    size_t want = *cap ? 2 * *cap : 64;
    void *bigger = realloc(*array, want * size);
    if (!bigger)
        return -ENOMEM;
    *array = bigger;
    *cap = want;
    return 0;
}

/* Implements lay_log_calls.image. */
static int recover_image(void *arg, uint64_t home, uint64_t at, const void *data)
{
    struct recovery *r = arg;
    int err = recover_grow((void **)&r->images, &r->cap, r->n, sizeof(*r->images));

    (void)at;
    if (err)
        return err;
    struct ffs_image *image = ffs_image_new(home, data);
    if (!image)
        return -ENOMEM;
    r->images[r->n++] = image;
    return 0;
}

/* Implements lay_log_calls.revoke. */
static int recover_revoke(void *arg, uint64_t home)
{
    struct recovery *r = arg;
    int err = recover_grow((void **)&r->revoked, &r->revoked_cap, r->nrevoked, sizeof(*r->revoked));

    if (!err)
        r->revoked[r->nrevoked++] = home;
    return err;
}

static const struct lay_log_calls recover_calls = {recover_block, recover_image, recover_revoke};

/*
 * Applies a whole transaction. Images replace older ones; a revoke removes the
 * image so far.
 */
static void recover_apply(struct recovery *r)
{
    struct ffs_home *home = &r->fs->home;

    for (size_t i = 0; i < r->n; i++)
        ffs_home_put(home, r->images[i]);
    for (size_t i = 0; i < r->nrevoked; i++)
        ffs_home_drop(home, r->revoked[i]);
    r->n = 0;
    r->nrevoked = 0;
}

/*
 * Applies all whole transactions. The log then begins its next transaction
 * behind them.
 */
static int recover_scan(struct recovery *r)
{
    struct lay_log_tx tx;
    int more;

    while ((more = lay_log_next(&r->log, &tx)) > 0)
        recover_apply(r);
    r->fs->journal.head = r->log.pos;
    for (size_t i = 0; i < r->n; i++)
        ffs_image_free(r->images[i]);
    free(r->images);
    free(r->revoked);
    return more;
}

/*
 * A commit block is written when everything before it is durable. Therefore a
 * crash leaves no commit block of the first transaction that is not whole, or
 * of a later one, but damage does.
 */
static int recover_check_damage(struct recovery *r, bool *damaged)
{
    uint64_t newest;
    int err = lay_log_newest(&r->log, &newest);

    *damaged = !err && newest >= r->log.tid;
    return err;
}

static int recover_read_header(struct recovery *r, const char **why)
{
    struct ffs *fs = r->fs;
    struct lay_journal *header = fs->journal.staging;
    int err = bd_read(fs->dev, ffs_bytes(fs->geo.journal_start), header, LAY_BLOCK_SIZE);

    if (err) {
        *why = "cannot read the journal";
        return err;
    }
    err = lay_check_journal(&fs->geo, header, why);
    if (err)
        return err;
    fs->journal.super_tid = lay_get64(header->super_tid);
    lay_log_begin(&r->log, &fs->geo, header, &recover_calls, r);
    return 0;
}

static const char *recover_explain(int err)
{
    switch (err) {
    case -ENOMEM:
        return "out of memory for the journal";
    case -EINTR:
        return "recovery was interrupted, the next mount begins it again";
    default:
        return "cannot read the journal";
    }
}

/* Sets the next transaction. Everything up to `last` is durable. */
static void recover_begin_after(struct ffs *fs, uint64_t last)
{
    struct ffs_journal *j = &fs->journal;

    j->running.tid = last + 1;
    atomic_store(&j->running_tid, last + 1);
    atomic_store(&j->committed, last);
}

/* The state of a copy is ignored: the copy may be older than the last mount. */
static bool recover_is_clean(const struct ffs_super_found *super)
{
    return super->at == 0 && lay_get32(super->sb.state) & LAY_STATE_CLEAN;
}

/*
 * The log cannot be read without a header. It is not needed after an orderly
 * unmount: the last transaction of all has changed the superblock, so the log
 * can start empty.
 */
static int recover_without_header(struct ffs *fs, const struct ffs_super_found *super, bool write,
                                  const char *why)
{
    bool clean = recover_is_clean(super);

    if (!clean && !fs->opts.read_only)
        return -EUCLEAN;
    ffs_log(fs, LOG_WARNING, "%s: journal header damaged (%s); %s", fs->dev->info.name, why,
            clean ? "not needed, the file system was unmounted in order"
                  : "shown without the last changes");
    fs->sums.stale = !clean;
    fs->journal.head = 1;
    fs->journal.super_tid = lay_get64(super->sb.head.tid);
    recover_begin_after(fs, fs->journal.super_tid);
    return write && clean ? ffs_log_reset(fs, fs->journal.super_tid + 1) : 0;
}

/* Replays the log from the header's tail on. */
static int recover_replay(struct recovery *r, const struct ffs_super_found *super, bool *damaged)
{
    uint64_t tail_tid = r->log.tid;
    int err = recover_scan(r);

    /*
     * After an orderly unmount the log holds nothing that is needed, so it is
     * not read.
     */
    if (!err && (r->log.tid != tail_tid || !recover_is_clean(super)))
        err = recover_check_damage(r, damaged);
    recover_begin_after(r->fs, r->log.tid - 1);
    return err;
}

int ffs_recover(struct ffs *fs, const struct ffs_super_found *super, bool write, bool *replayed,
                const char **why)
{
    struct recovery r = {.fs = fs};
    bool damaged = false;
    int err = recover_read_header(&r, why);

    if (err)
        return recover_without_header(fs, super, write, *why);
    uint64_t tail_tid = r.log.tid;
    err = recover_replay(&r, super, &damaged);
    if (err) {
        *why = recover_explain(err);
        return err;
    }
    if (damaged) {
        *why = "log: a transaction that was durable is damaged";
        if (!fs->opts.read_only)
            return -EUCLEAN;
        ffs_log(fs, LOG_ERR, "%s: journal damaged: %s; shown without what followed",
                fs->dev->info.name, *why);
        fs->sums.stale = true;
        write = false; /* fsck may recover more of the log */
    }
    *replayed = fs->journal.running.tid != tail_tid;
    if (!write || !*replayed)
        return 0;
    err = ffs_checkpoint(fs, fs->journal.running.tid);
    if (err)
        *why = err == -EINTR ? recover_explain(err) : "cannot write to the device";
    return err;
}
