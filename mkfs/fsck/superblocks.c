/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checks the journal and the superblocks, which must be read before everything
 * else.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "mkfs/fsck/store.h"
#include "mkfs/replay.h"
#include "support/minmax.h"

/*
 * A journal never continues after this transaction, so that 2^32 numbers remain
 * for later ones.
 */
#define HIGHEST_TID (LAY_MAX_TID - (UINT64_C(1) << 32))

static bool is_clean(const struct fsck *f)
{
    return lay_get32(f->sb.state) & LAY_STATE_CLEAN && f->super.addr == 0;
}

/*
 * Starts the journal again with a transaction number above all that may have
 * been in it. Each transaction that is no longer visible took at least two
 * blocks of the log.
 */
static void begin_anew(struct fsck *f, uint64_t seen)
{
    uint64_t tid = max_u64(seen, lay_get64(f->sb.head.tid)) + f->img.geo.journal_blocks;

    store_begin_anew(f, tid < HIGHEST_TID ? tid : 1);
    f->empty_sums = !is_clean(f);
}

/*
 * Returns `yes`, the answer for a repair that all others depend on, and records
 * a refusal.
 */
static bool must(struct fsck *f, bool yes)
{
    if (!yes)
        f->refused = true;
    return yes;
}

/*
 * Searches for a valid commit block past the end of the log, which shows that a
 * transaction before it is damaged.
 */
static int look_for_damage(struct fsck *f, const struct log *log)
{
    uint64_t newest;
    int err = replay_find_newest(&f->img, &newest);

    if (err || newest < log->end_tid)
        return err;
    if (must(f,
             fsck_report(f, PROBLEM_JOURNAL_DAMAGED, NULL, "transaction %" PRIu64, log->end_tid))) {
        f->set_aside = true;
        begin_anew(f, newest);
    }
    return 0;
}

/* Replays the log in memory, so that later reads see its images. */
static int use_log(struct fsck *f, const struct log *log)
{
    /*
     * The superblock is newer than the log: only the header was not written,
     * and all images are in place.
     */
    if (lay_get64(f->sb.head.tid) >= log->end_tid) {
        if (must(f, fsck_report(f, PROBLEM_JOURNAL_OLD, NULL, "journal")))
            begin_anew(f, log->end_tid);
        return 0;
    }
    /*
     * The log of a clean file system holds nothing that is needed, and older
     * records prove nothing.
     */
    int err = is_clean(f) && log->transaction_count == 0 ? 0 : look_for_damage(f, log);
    if (err || log->transaction_count == 0)
        return err;
    f->replayed = true;
    fsck_say(f, "Journal: %zu transactions replayed in memory, checking the result",
             log->transaction_count);
    return replay_replay(&f->img, log);
}

static int check_log(struct fsck *f, const struct lay_journal *header)
{
    struct log log;
    int err = replay_read(&f->img, header, &log);

    if (err)
        return err;
    f->has_header = true;
    f->super_tid = lay_get64(header->super_tid);
    f->next_tid = log.end_tid;
    store_append_at(f, log.end_pos);
    if (log.end_tid > HIGHEST_TID)
        begin_anew(f, log.end_tid);
    err = use_log(f, &log);
    replay_free(&log);
    return err;
}

int fsck_not_clean(struct fsck *f)
{
    uint64_t newest;
    int err = replay_find_newest(&f->img, &newest);

    f->sb.state = lay_put32(lay_get32(f->sb.state) & ~LAY_STATE_CLEAN);
    if (!err && newest >= store_tid(f))
        begin_anew(f, newest);
    return err;
}

static int without_header(struct fsck *f, const char *why)
{
    bool clean = is_clean(f);
    uint64_t newest;
    int err = replay_find_newest(&f->img, &newest);

    if (err)
        return err;
    if (must(f, fsck_report(f, clean ? PROBLEM_JOURNAL_UNUSED : PROBLEM_JOURNAL_HEADER, why,
                            "journal"))) {
        f->set_aside = !clean;
        begin_anew(f, newest);
    }
    return 0;
}

/* A block that cannot be read is a finding like a damaged one. */
static int forgive(int err, union lay_block *b)
{
    if (err == -EIO)
        memset(b, 0, sizeof(*b));
    return err == -EIO ? 0 : err;
}

int fsck_journal(struct fsck *f)
{
    const char *why = NULL;
    union lay_block b;
    int err = forgive(image_read_raw(&f->img, f->img.geo.journal_start, &b), &b);

    if (err)
        return err;
    if (lay_check_journal(&f->img.geo, &b.journal, &why) != 0)
        return without_header(f, why);
    return check_log(f, &b.journal);
}

/* True if all properties agree that mkfs determines. */
static bool same_shape(const struct lay_super *a, const struct lay_super *b,
                       const struct lay_geometry *ga, const struct lay_geometry *gb)
{
    return lay_same_shape(ga, gb) && memcmp(&a->created, &b->created, sizeof(a->created)) == 0 &&
           memcmp(a->devices, b->devices, sizeof(a->devices)) == 0;
}

/*
 * Returns PROBLEM_SUPER_RESIZED if the copy has the geometry from before an
 * interrupted resize, which writes block 0 first. An older copy with another
 * geometry than block 0 is ignored (FORMAT.md 4.1).
 */
static enum problem kind_of_difference(const struct fsck *f, const struct lay_super *copy)
{
    bool unfinished = f->super.addr == 0 && lay_get64(copy->head.tid) < lay_get64(f->sb.head.tid) &&
                      memcmp(copy->head.uuid, f->img.geo.uuid, sizeof(copy->head.uuid)) == 0 &&
                      memcmp(copy->hash_seed, f->img.geo.hash_seed, sizeof(copy->hash_seed)) == 0 &&
                      memcmp(&copy->created, &f->sb.created, sizeof(copy->created)) == 0;

    return unfinished ? PROBLEM_SUPER_RESIZED : PROBLEM_SUPER_DIFFERS;
}

static int check_copy(struct fsck *f, uint64_t addr)
{
    const char *why = NULL;
    union lay_block b;
    struct lay_geometry geo;
    int err = forgive(image_read(&f->img, addr, &b), &b);

    if (err)
        return err;
    if (lay_check_super(&b.super, addr, f->img.device_blocks, &geo, NULL, &why) != 0)
        fsck_report(f, PROBLEM_SUPER_COPY, why, "block %" PRIu64, addr);
    else if (!same_shape(&f->sb, &b.super, &f->img.geo, &geo))
        fsck_report(f, kind_of_difference(f, &b.super), NULL, "block %" PRIu64, addr);
    else if (f->has_header && lay_get64(b.super.head.tid) < f->super_tid)
        fsck_report(f, PROBLEM_SUPER_OLD, NULL, "block %" PRIu64, addr);
    return 0;
}

/*
 * True if block 0 is a damaged form of the superblock and not that of a newer
 * file system.
 */
static bool superblocks_is_remnant(const struct fsck *f, const union lay_block *b)
{
    uint64_t at = f->super.addr;

    return f->reclaim || f->super.error == -EIO ||
           memcmp(b->head.uuid, f->img.geo.uuid, sizeof(f->img.geo.uuid)) == 0 ||
           lay_get64(b->super.copies[0]) == at || lay_get64(b->super.copies[1]) == at;
}

static void damaged_primary(struct fsck *f, const union lay_block *b, const char *why)
{
    if (f->mode != FSCK_CHECK && !superblocks_is_remnant(f, b)) {
        fsck_say(f,
                 "Block 0 may belong to another file system and stays as it is; if nothing else is "
                 "on the device, run this again with --reclaim");
        f->mode = FSCK_CHECK;
    }
    must(f, fsck_report(f, PROBLEM_SUPER_BLOCK, why, "block 0"));
}

/*
 * Checks block 0 as recovery leaves it. If it disagrees on the geometry with
 * the superblock used so far (a copy, or block 0 before recovery), the latter
 * stays in use, because all checks were based on it.
 */
static int check_primary(struct fsck *f)
{
    const char *why = NULL;
    union lay_block b;
    struct lay_geometry geo;
    int err = forgive(image_read(&f->img, 0, &b), &b);

    if (err)
        return err;
    if (lay_check_super(&b.super, 0, f->img.device_blocks, &geo, NULL, &why) != 0)
        damaged_primary(f, &b, why);
    else if (!same_shape(&b.super, &f->sb, &geo, &f->img.geo))
        must(f, fsck_report(f, PROBLEM_SUPER_DIFFERS, NULL, "block %" PRIu64, f->super.addr));
    else if (lay_get64(b.super.head.tid) < lay_get64(f->sb.head.tid))
        must(f, fsck_report(f, PROBLEM_SUPER_OLD, "a copy is newer", "block 0"));
    else
        f->sb = b.super;
    return 0;
}

int fsck_supers(struct fsck *f)
{
    int err = check_primary(f);

    /* The journal's header names the superblock in place. */
    if (f->has_header && lay_get64(f->sb.head.tid) < f->super_tid)
        must(f, fsck_report(f, PROBLEM_SUPER_OLD, "the journal names a newer one", "block 0"));
    for (unsigned i = 0; i < LAY_SUPER_COPIES && !err; i++)
        err = check_copy(f, f->img.geo.copies[i]);
    f->marked = lay_get32(f->sb.state) & LAY_STATE_ERROR;
    if (f->marked && fsck_report(f, PROBLEM_STATE_ERROR, NULL, "superblock"))
        f->clear_error = true;
    return err;
}

int fsck_says_clean(struct fsck *f, bool *clean)
{
    union lay_block b;
    uint64_t tid = lay_get64(f->super.sb.head.tid);
    int err = forgive(image_read_raw(&f->img, f->img.geo.journal_start, &b), &b);

    *clean = !err && f->super.addr == 0 && lay_get32(f->super.sb.state) == LAY_STATE_CLEAN &&
             lay_check_journal(&f->img.geo, &b.journal, NULL) == 0 &&
             lay_get64(b.journal.super_tid) <= tid && lay_get64(b.journal.tail_tid) > tid;
    return err;
}
