/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The journal and the superblocks: what must be read before anything else can be.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "mkfs/fsck.h"
#include "mkfs/log.h"

/* A sound commit block past the end of the log: a transaction before it has been damaged. */
static int look_for_damage(struct fsck *f, const struct log *log)
{
    bool newer;
    int err = log_find_newer(&f->img, log, &newer);

    if (err)
        return err;
    if (newer)
        fsck_report(f, PROBLEM_JOURNAL_DAMAGED, NULL, "transaction %" PRIu64, log->end_tid);
    return 0;
}

static int check_log(struct fsck *f, const struct lay_journal *header)
{
    struct log log;
    bool clean = lay_get32(f->sb.state) & LAY_STATE_CLEAN && f->super.addr == 0;
    int err = log_read(&f->img, header, &log);

    if (err)
        return err;
    f->has_header = true;
    f->super_tid = lay_get64(header->super_tid);
    f->next_tid = log.end_tid;
    /* A clean file system has nothing in the log that matters; older records are no evidence. */
    if (!clean)
        err = look_for_damage(f, &log);
    if (!err && log.transaction_count > 0) {
        f->replayed = true;
        printf("Journal: %zu transactions replayed in memory, checking the result\n",
               log.transaction_count);
        err = log_replay(&f->img, &log);
    }
    log_free(&log);
    return err;
}

int fsck_journal(struct fsck *f)
{
    const char *why = NULL;
    union image_block b;
    int err = image_read_raw(&f->img, f->img.geo.journal_start, &b);

    if (err)
        return err;
    if (lay_check_journal(&f->img.geo, &b.journal, &why) != 0) {
        fsck_report(f, PROBLEM_JOURNAL_HEADER, why, "journal");
        return 0;
    }
    return check_log(f, &b.journal);
}

/* Everything that is fixed when the file system is made. */
static bool same_shape(const struct lay_super *a, const struct lay_super *b,
                       const struct lay_geometry *ga, const struct lay_geometry *gb)
{
    return lay_same_shape(ga, gb) && memcmp(&a->created, &b->created, sizeof(a->created)) == 0 &&
           memcmp(a->devices, b->devices, sizeof(a->devices)) == 0;
}

/* A superblock that cannot be read is a finding like a damaged one, since it has copies. */
static int read_super(struct fsck *f, uint64_t addr, union image_block *b)
{
    int err = image_read(&f->img, addr, b);

    if (err == -EIO)
        memset(b, 0, sizeof(*b));
    return err == -EIO ? 0 : err;
}

static int check_copy(struct fsck *f, uint64_t addr)
{
    const char *why = NULL;
    union image_block b;
    struct lay_geometry geo;
    int err = read_super(f, addr, &b);

    if (err)
        return err;
    if (lay_check_super(&b.super, addr, f->img.device_blocks, &geo, NULL, &why) != 0)
        fsck_report(f, PROBLEM_SUPER_COPY, why, "block %" PRIu64, addr);
    else if (!same_shape(&f->sb, &b.super, &f->img.geo, &geo))
        fsck_report(f, PROBLEM_SUPER_DIFFERS, NULL, "block %" PRIu64, addr);
    else if (f->has_header && lay_get64(b.super.head.tid) < f->super_tid)
        fsck_report(f, PROBLEM_SUPER_OLD, NULL, "block %" PRIu64, addr);
    return 0;
}

/*
 * Block 0 as recovery leaves it. What stood in for it (a copy, or block 0 before recovery) stays in
 * use when the two disagree on where things are: all checks so far were against that.
 */
static int check_primary(struct fsck *f)
{
    const char *why = NULL;
    union image_block b;
    struct lay_geometry geo;
    int err = read_super(f, 0, &b);

    if (err)
        return err;
    if (lay_check_super(&b.super, 0, f->img.device_blocks, &geo, NULL, &why) != 0)
        fsck_report(f, PROBLEM_SUPER_BLOCK, why, "block 0");
    else if (!same_shape(&b.super, &f->sb, &geo, &f->img.geo))
        fsck_report(f, PROBLEM_SUPER_DIFFERS, NULL, "block %" PRIu64, f->super.addr);
    else if (lay_get64(b.super.head.tid) < lay_get64(f->sb.head.tid))
        fsck_report(f, PROBLEM_SUPER_OLD, "a copy is newer", "block 0");
    else
        f->sb = b.super;
    return 0;
}

/* The journal's header names the superblock in place, and that the journal's last transaction. */
static void check_age(struct fsck *f)
{
    uint64_t tid = lay_get64(f->sb.head.tid);

    if (f->has_header && tid < f->super_tid)
        fsck_report(f, PROBLEM_SUPER_OLD, "the journal names a newer one", "block 0");
    if (f->has_header && tid >= f->next_tid)
        fsck_report(f, PROBLEM_JOURNAL_OLD, NULL, "journal");
}

int fsck_supers(struct fsck *f)
{
    int err = check_primary(f);

    check_age(f);
    for (unsigned i = 0; i < LAY_SUPER_COPIES && !err; i++)
        err = check_copy(f, f->img.geo.copies[i]);
    if (lay_get32(f->sb.state) & LAY_STATE_ERROR)
        fsck_report(f, PROBLEM_STATE_ERROR, NULL, "superblock");
    return err;
}
