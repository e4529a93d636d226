/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checks labels, log and superblocks, which must be read before everything
 * else.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "fusefs/core/ffs.h"
#include "mkfs/fsck/store.h"
#include "support/minmax.h"

/*
 * A log never continues after this transaction, so that 2^32 numbers remain for
 * later ones.
 */
#define HIGHEST_TID (LAY_MAX_TID - (UINT64_C(1) << 32))

/* --- Labels ----------------------------------------------------------------------------------- */

/*
 * Returns true if the copy has an earlier label. The one just before the newest
 * may be there after a crash; the next incarnation replaces it.
 */
static bool is_stale(const struct lay_label *copy, const struct lay_label *newest)
{
    return lay_get64(copy->incarnation.counter) + 1 < lay_get64(newest->incarnation.counter);
}

static void check_label(struct fsck *f, unsigned i, uint64_t block)
{
    const struct lay_label_copy *copy = &f->labels.copies[i];

    if (copy->error)
        fsck_report(f, PROBLEM_LABEL, copy->why, "block %" PRIu64, block);
    else if (copy->corrected)
        fsck_report(f, PROBLEM_LABEL, "one bit is flipped", "block %" PRIu64, block);
    else if (is_stale(&copy->label, lay_labels_newest(&f->labels)))
        fsck_report(f, PROBLEM_LABEL_OLD, NULL, "block %" PRIu64, block);
}

/* The first write of a repair replaces both copies. */
void fsck_labels(struct fsck *f)
{
    check_label(f, 0, 0);
    check_label(f, 1, LAY_LABEL_SECOND);
}

/* --- Log -------------------------------------------------------------------------------------- */

int fsck_read_log(struct fsck *f)
{
    struct lay_io io = ffs_io(f->img.dev);

    if (f->log_read)
        return 0;
    int err = lay_supers_read(&io, &f->img.geo, &f->supers);
    if (!err)
        err = replay_read(&f->img, &f->labels, &f->supers, &f->log);
    if (!err)
        err = replay_super(&f->img, &f->log, &f->supers, &f->recovered, &f->super_lost, &f->why);
    if (!err)
        err = replay_replay(&f->img, &f->log);
    if (err)
        return err;
    f->sb = f->recovered;
    f->img.names_lost = f->log.state == LOG_DAMAGED || f->log.state == LOG_LOST;
    f->log_read = true;
    return 0;
}

/* Returns true if a label of the newest commit's incarnation was lost. */
static bool label_is_lost(const struct fsck *f)
{
    const struct lay_incarnation *label = &lay_labels_newest(&f->labels)->incarnation;
    const struct lay_log_mark *newest = &f->log.reader.newest;
    uint64_t counter = lay_get64(label->counter);

    return newest->counter > counter ||
           (newest->counter == counter && newest->id != lay_get64(label->id));
}

/* Gives up what the log holds behind its whole transactions. */
static void give_up(struct fsck *f, bool yes)
{
    if (!fsck_must(f, yes))
        return;
    f->set_aside = true;
    f->empty_sums = true;
}

static void report_gap(struct fsck *f)
{
    give_up(f, fsck_report(f, PROBLEM_JOURNAL_DAMAGED, f->log.why, "transaction %" PRIu64,
                           f->log.reader.tid));
}

/* Counts the transactions that change anything. */
static size_t replayed_transactions(const struct log *log)
{
    size_t n = 0;

    for (size_t i = 0; i < log->transaction_count; i++)
        n += log->transactions[i].images > 0;
    return n;
}

/*
 * Returns true if the first commits would hit the tail. Only a crafted log
 * lacks the room for them (R7d).
 */
static bool log_is_full(const struct fsck *f)
{
    const struct lay_log *log = &f->log.reader;

    return f->log.state == LOG_WHOLE && log->left + log->replace < STORE_FIRST_COMMITS;
}

static void report_log(struct fsck *f)
{
    const struct log *log = &f->log;
    size_t replayed = replayed_transactions(log);
    char detail[64];

    if (log->state == LOG_LOST)
        give_up(f, fsck_report(f, PROBLEM_JOURNAL_LOST, NULL, "log"));
    else if (label_is_lost(f))
        fsck_must(f, fsck_report(f, PROBLEM_LABEL_LOST, NULL, "labels"));
    if (log->state == LOG_DAMAGED || (log->state == LOG_WHOLE && log->why && !label_is_lost(f)))
        report_gap(f);
    snprintf(detail, sizeof(detail), "blocks: %" PRIu64, log->reader.corrected);
    if (log->reader.corrected)
        fsck_report(f, PROBLEM_JOURNAL_BIT, detail, "log");
    if (log_is_full(f))
        fsck_report(f, PROBLEM_JOURNAL_FULL, NULL, "log");
    if (replayed)
        fsck_say(f, "Journal: %zu transactions replayed in memory, checking the result", replayed);
}

/*
 * Tries to read a block of the log, and in a repair to write the same again,
 * which changes nothing even if a crash cuts it: no transaction has the block.
 */
static int ahead_try(struct fsck *f, uint64_t place)
{
    const bool writes = f->mode != FSCK_CHECK && f->log.state == LOG_WHOLE;
    union lay_block b;
    int err = image_read_raw(&f->img, place, &b);

    if (!err && writes)
        err = bd_write(f->img.dev, place << LAY_BLOCK_SHIFT, &b, sizeof(b), 0);
    return err;
}

/* Tries the block at a position of a log, and reports it if it is bad. */
static int ahead_check(struct fsck *f, unsigned log, uint64_t pos)
{
    const uint64_t place = lay_log_block(&f->img.geo, log, pos);
    int err = ahead_try(f, place);

    if (err != -EIO)
        return err;
    if (!fsck_report(f, PROBLEM_JOURNAL_BLOCK, NULL, "block %" PRIu64, place))
        return 0;
    const struct fsck_ahead item = {.pos = pos, .place = place, .bad = true};
    return fsck_append(&f->ahead, &item, sizeof(item));
}

/*
 * Reports bad blocks of the log from a position on, where it continues, and
 * records those that are to be repaired. Returns 0, -ENOMEM or a device error.
 */
static int ahead_check_all(struct fsck *f, uint64_t pos)
{
    const uint64_t left = f->log.reader.left;
    uint64_t n = left > 0 ? min_u64(left - 1, FSCK_AHEAD) : 0;
    int err = 0;

    for (; n > 0 && !err; n--, pos = lay_log_after(&f->img.geo, pos)) {
        for (unsigned i = 0; i < lay_logs(&f->img.geo) && !err; i++)
            err = ahead_check(f, i, pos);
    }
    return err;
}

/*
 * Selects the position at which the log continues, or at which a new log begins
 * if part of it is abandoned, and looks for bad blocks there.
 */
static int choose_start(struct fsck *f)
{
    const struct lay_log *log = &f->log.reader;
    const struct lay_log_mark *newest = &log->newest;
    bool damaged = f->log.state == LOG_DAMAGED || f->log.state == LOG_LOST || f->log.why;
    uint64_t tid = newest->tid + 1, pos = lay_log_after(&f->img.geo, newest->pos);

    f->next_tid = log->tid;
    /* R7e: interrupted repairs do not fill the log. */
    if (log->replace) {
        tid = newest->tid;
        pos = newest->pos;
    }
    if (f->log.state == LOG_LOST) {
        /* Each transaction that is no longer visible took at least one block. */
        f->next_tid = lay_get64(f->sb.head.tid) + 1;
        tid = f->next_tid + f->img.geo.log_blocks;
        pos = 0;
    }
    if (label_is_lost(f) && f->log.state == LOG_WHOLE)
        damaged = false;
    if (tid > HIGHEST_TID) {
        damaged = true;
        tid = 1;
    }
    store_start_at(f, tid, pos, damaged || log_is_full(f));
    /* A commit that is replaced stays until the next one counts. */
    return ahead_check_all(f, log->replace ? lay_log_after(&f->img.geo, pos) : pos);
}

int fsck_journal(struct fsck *f)
{
    report_log(f);
    return choose_start(f);
}

/* --- Superblocks ------------------------------------------------------------------------------ */

static void check_super(struct fsck *f, unsigned i)
{
    enum problem damaged = i == 0 ? PROBLEM_SUPER_BLOCK : PROBLEM_SUPER_COPY;
    uint64_t block = f->img.geo.supers[i];

    if (f->supers.errors[i])
        fsck_report(f, damaged, f->supers.why[i], "block %" PRIu64, block);
    else if (f->supers.corrected[i])
        fsck_report(f, damaged, "one bit is flipped", "block %" PRIu64, block);
    else if (lay_age(&f->supers.copies[i]) != lay_age(&f->recovered) && !f->super_lost)
        fsck_report(f, PROBLEM_SUPER_STALE, NULL, "block %" PRIu64, block);
}

void fsck_supers(struct fsck *f)
{
    if (f->super_lost)
        fsck_must(f, fsck_report(f, PROBLEM_SUPER_OLD, NULL, "superblock"));
    /* While the log has an image, recovery may have been writing the places. */
    for (unsigned i = 0; i < LAY_SUPER_COPIES && !image_find_patch(&f->img, LAY_ADDR_SUPER); i++)
        check_super(f, i);
    f->marked = lay_get32(f->sb.state) & LAY_STATE_ERROR;
    if (f->marked && fsck_report(f, PROBLEM_STATE_ERROR, NULL, "superblock"))
        f->clear_error = true;
}

/* Returns true if both places have the superblock that counts. */
static bool supers_agree(const struct fsck *f)
{
    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++) {
        if (f->supers.errors[i] || f->supers.corrected[i] ||
            lay_age(&f->supers.copies[i]) != lay_age(&f->recovered))
            return false;
    }
    return true;
}

int fsck_says_clean(struct fsck *f, bool *clean)
{
    int err = fsck_read_log(f);

    *clean = !err && f->log.state == LOG_CLEAN && lay_labels_equal(&f->labels) &&
             lay_get32(f->recovered.state) == 0 && supers_agree(f);
    return err;
}
