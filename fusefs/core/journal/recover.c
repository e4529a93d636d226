/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads the log at mount.
 *
 * The reader of the log (layout/log_reader.h) checks each transaction as a
 * whole before any part of it counts. The images of a whole transaction go to
 * ffs.home as if it had just been committed. Nothing is written here, so
 * recovery can be interrupted at any point and repeated.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "fusefs/core/state.h"
#include "layout/label.h"
#include "layout/log_reader.h"
#include "support/array.h"

struct recovery {
    struct ffs *fs;
    struct lay_log log;
    struct ffs_item *images, **last; /* of the transaction that is being read, by `next` */
    /*
     * Each log has a part of the staging memory, which holds `ready` of its
     * blocks, from position `first` on. Up to `ahead` of them are read at a time.
     */
    struct {
        uint64_t first, ready;
    } parts[LAY_LOGS];
    uint64_t ahead;
    struct ffs_recovered *found;
};

static uint8_t *recover_part(const struct recovery *r, unsigned log)
{
    uint8_t *staging = r->fs->journal.staging;

    return staging + log * ffs_bytes(FFS_STAGING_BLOCKS / LAY_LOGS);
}

static int recover_read(struct recovery *r, unsigned log, uint64_t pos, uint64_t n)
{
    struct ffs *fs = r->fs;

    r->parts[log].ready = 0;
    int err = bd_read(fs->dev, ffs_bytes(lay_log_block(&fs->geo, log, pos)), recover_part(r, log),
                      ffs_bytes(n));
    if (err)
        return err;
    r->parts[log].first = pos;
    r->parts[log].ready = n;
    return 0;
}

/* Implements lay_log_calls.block. A block that cannot be read is NULL. */
static int recover_block(void *arg, unsigned log, uint64_t pos, const void **block)
{
    struct recovery *r = arg;
    int err = 0;

    if (pos < r->parts[log].first || pos - r->parts[log].first >= r->parts[log].ready) {
        uint64_t n = r->fs->geo.log_blocks - pos;
        err = recover_read(r, log, pos, n < r->ahead ? n : r->ahead);
        if (err == -EIO)
            err = recover_read(r, log, pos, 1);
    }
    *block = err ? NULL : recover_part(r, log) + ffs_bytes(pos - r->parts[log].first);
    return err == -EIO ? 0 : err;
}

/* Implements lay_log_calls.image. */
static int recover_image(void *arg, uint64_t addr, uint64_t pos, const void *data)
{
    struct recovery *r = arg;
    struct ffs_image *image = ffs_image_new(addr, data);

    (void)pos;
    if (!image)
        return -ENOMEM;
    *r->last = &image->item;
    r->last = &image->item.next;
    return 0;
}

/* Implements lay_log_calls.lacks. */
static int recover_lacks(void *arg, unsigned log, uint64_t pos)
{
    struct ffs_recovered *found = ((struct recovery *)arg)->found;

    int err = array_grow((void **)&found->lacks, found->lack_count, sizeof(*found->lacks));
    if (!err)
        found->lacks[found->lack_count++] = (struct lay_log_lack){pos, log};
    return err;
}

static const struct lay_log_calls recover_calls = {recover_block, recover_image, recover_lacks};

/* Applies a transaction if it is whole: its images replace older ones. Drops it otherwise. */
static void recover_apply(struct recovery *r, bool whole)
{
    struct ffs_item *next;

    for (struct ffs_item *item = r->images; item; item = next) {
        struct ffs_image *image = (struct ffs_image *)item; /* the first member */

        next = item->next;
        if (whole)
            ffs_home_put(&r->fs->home, image);
        else
            free(image);
    }
    r->images = NULL;
    r->last = &r->images;
}

/* Applies all transactions up to the newest one, or up to a gap (-EUCLEAN). */
static int recover_replay(struct recovery *r)
{
    struct lay_log_tx tx;
    int more;

    while ((more = lay_log_next(&r->log, &tx)) > 0)
        recover_apply(r, true);
    recover_apply(r, false);
    return more;
}

/*
 * The next transaction follows the newest one, or takes its place if that is an
 * empty one which a mount has left (R7e).
 */
static void recover_position(struct ffs *fs, const struct lay_log *log)
{
    struct ffs_journal *j = &fs->journal;
    const struct lay_log_mark *newest = &log->newest;

    j->tid = log->replace ? newest->tid : newest->tid + 1;
    j->head = log->replace ? newest->pos : lay_log_after(&fs->geo, newest->pos);
    j->tail_tid = newest->tail_tid;
    j->tail_pos = newest->tail_pos;
    j->used = (j->head + fs->geo.log_blocks - j->tail_pos) % fs->geo.log_blocks;
    if (j->used == 0)
        j->used = fs->geo.log_blocks;
    atomic_store(&j->taken, j->used);
    j->super_age = newest->super_age;
    j->running.tid = 1;
    atomic_store(&j->running_tid, 1);
}

/*
 * After a clean unmount the superblock says where the newest commit is, and
 * nothing else of the log is needed (R7f). Returns 1 then, 0 or an error.
 */
static int recover_clean(struct recovery *r, struct ffs_recovered *found)
{
    int clean = 0;

    r->ahead = 2;
    for (unsigned i = 0; i < LAY_SUPER_COPIES && clean == 0; i++) {
        if (found->supers.errors[i])
            continue;
        clean = lay_log_clean(&r->log, &found->supers.copies[i]);
        if (clean > 0)
            found->super = found->supers.copies[i];
    }
    return clean;
}

/* Reads the whole log. */
static int recover_log(struct recovery *r)
{
    r->ahead = FFS_STAGING_BLOCKS / lay_logs(&r->fs->geo);
    memset(r->parts, 0, sizeof(r->parts));
    int err = lay_log_newest(&r->log);
    return err ? err : recover_replay(r);
}

/* Reports damage, of which a read-only mount shows what is left. */
static int recover_damaged(struct ffs *fs, const char *what, const char *shown, struct reason *why)
{
    if (!fs->opts.read_only)
        return reason_set(why, -EUCLEAN, "%s; run fsck.gpunvme", what);
    ffs_log(fs, LOG_ERR, "%s; %s", what, shown);
    fs->sums.stale = true;
    return 0;
}

/*
 * The superblock is the last image of it, or else the one in place that the
 * newest commit names.
 */
static int recover_super(struct recovery *r, struct ffs_recovered *found, struct reason *why)
{
    struct ffs *fs = r->fs;

    if (ffs_home_read(&fs->home, LAY_ADDR_SUPER, &found->super))
        return 0;
    const struct lay_super *sb = lay_supers_of_age(&found->supers, r->log.newest.super_age);
    if (!sb) {
        sb = lay_supers_newest(&found->supers);
        if (!sb)
            return reason_set(why, -EUCLEAN, "superblocks damaged: %s; run fsck.gpunvme",
                              found->supers.why[0]);
        int err = recover_damaged(fs,
                                  "superblock is not the one that the journal names: a write "
                                  "to it was lost",
                                  "shown as it is", why);
        if (err)
            return err;
        fs->super_is_old = true;
    }
    found->super = *sb;
    return 0;
}

/* Completes the geometry, in which all images must lie. */
static int recover_geometry(struct ffs *fs, const struct ffs_recovered *found, struct reason *why)
{
    const struct ffs_image *image = NULL;
    const char *what = "";

    if (lay_check_super(&found->super, &fs->geo, &fs->geo, &what))
        return reason_set(why, -EUCLEAN, "superblock: wrong %s; run fsck.gpunvme", what);
    while ((image = ffs_home_next(&fs->home, image))) {
        if (!lay_home_ok(&fs->geo, image->item.number))
            return reason_set(why, -EUCLEAN,
                              "journal damaged: a block that belongs nowhere; run fsck.gpunvme");
    }
    return 0;
}

/* Returns true if the map has a place for an image, or its address is not in a chunk. */
static bool recover_is_mapped(const struct ffs *fs, uint64_t addr)
{
    return lay_addr_kind(addr) != LAY_KIND_CHUNK ||
           ffs_segment_mapped(&fs->chunks, lay_addr_segment(addr));
}

static int recover_explain(int err, struct reason *why)
{
    if (err == -ENOMEM)
        return reason_set(why, err, "out of memory for the journal");
    return reason_set(why, err, "cannot read the journal: %s", strerror(-err));
}

static int recover_with(struct recovery *r, struct ffs_recovered *found, struct reason *why)
{
    struct ffs *fs = r->fs;
    char what[160];
    int err = recover_clean(r, found);

    if (err == 0) {
        err = recover_log(r);
        found->replay = true;
    }
    if (err == -EUCLEAN) {
        snprintf(what, sizeof(what), "journal damaged: %s", r->log.why);
        err = recover_damaged(fs, what, "shown without what followed", why);
        if (err)
            return err;
    }
    if (err < 0)
        return recover_explain(err, why);
    if (found->replay)
        err = recover_super(r, found, why);
    if (err < 0)
        return err;
    recover_position(fs, &r->log);
    found->corrected = r->log.corrected;
    return recover_geometry(fs, found, why);
}

int ffs_recover(struct ffs *fs, struct ffs_recovered *found, struct reason *why)
{
    struct recovery *r = calloc(1, sizeof(*r));

    if (!r)
        return recover_explain(-ENOMEM, why);
    r->fs = fs;
    r->last = &r->images;
    r->found = found;
    lay_log_open(&r->log, &fs->geo, &fs->label.incarnation, &recover_calls, r);
    int err = recover_with(r, found, why);
    free(r);
    return err;
}

int ffs_recover_chunks(struct ffs *fs, struct reason *why)
{
    int err = ffs_chunks_load(fs, ffs_super(fs), why);

    if (err)
        return err;
    ffs_home_filter(&fs->home, recover_is_mapped, fs);
    return ffs_naming_begin(fs) ? reason_set(why, -ENOMEM, "out of memory") : 0;
}

/* --- Two logs -------------------------------------------------------------------------------- */

/* Implements lay_log_lost_fn. The other log is whole, and the tail will pass the block. */
static int recover_lost(void *arg, uint64_t place, const union lay_block *b)
{
    (void)b;
    ffs_checked_lose_place(arg, place);
    return 0;
}

/* Returns how many of n blocks follow each other in the same log and fit into staging memory. */
static size_t recover_run(const struct lay_log_lack *lacks, size_t n)
{
    size_t run = 1;

    while (run < n && run < FFS_STAGING_BLOCKS && lacks[run].log == lacks[0].log &&
           lacks[run].pos == lacks[0].pos + run)
        run++;
    return run;
}

/* Writes a run of blocks with one command, or block by block if the device refuses one of them. */
static int recover_mend_run(struct ffs *fs, const struct lay_log_lack *lacks, size_t n)
{
    const struct lay_io io = ffs_io(fs->dev);
    uint64_t from = lay_log_block(&fs->geo, !lacks->log, lacks->pos);
    uint64_t to = lay_log_block(&fs->geo, lacks->log, lacks->pos);
    int err = bd_read(fs->dev, ffs_bytes(from), fs->journal.staging, ffs_bytes(n));

    if (!err)
        err = bd_write(fs->dev, ffs_bytes(to), fs->journal.staging, ffs_bytes(n), 0);
    return err == -EIO ? lay_log_mend(&io, &fs->geo, lacks, n, recover_lost, fs) : err;
}

int ffs_recover_mend(struct ffs *fs, const struct ffs_recovered *found)
{
    size_t n;
    int err = 0;

    if (found->lack_count == 0)
        return 0;
    ffs_log(fs, LOG_NOTICE, "journal: writing %zu blocks from its other place", found->lack_count);
    for (size_t i = 0; i < found->lack_count && !err; i += n) {
        n = recover_run(found->lacks + i, found->lack_count - i);
        err = recover_mend_run(fs, found->lacks + i, n);
    }
    return err ? err : ffs_flush(fs);
}
