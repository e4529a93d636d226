/* SPDX-License-Identifier: BSD-2-Clause */
/* Runs the rounds of fsck and calls the passes of each round in order. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "mkfs/fsck/fsck.h"
#include "mkfs/fsck/store.h"
#include "support/array.h"

#define MAX_ROUNDS 16u

static void end_round(struct fsck *f)
{
    fsck_free_claims(f);
    free(f->inode_blocks);
    free(f->inodes);
    f->inode_blocks = NULL;
    f->inodes = NULL;
    fsck_forget_plans(f);
    f->corrected.count = f->copies.count = f->ranges.count = 0;
    f->conflicts.count = f->name_fixes.count = f->strays.count = f->lost_leaves.count = 0;
}

/* Checks labels, log and superblocks; after the first round they are in memory. */
static int read_start(struct fsck *f)
{
    fsck_labels(f);
    int err = fsck_journal(f);
    fsck_supers(f);
    return err;
}

/* Reads everything else that has to be known before the first round. */
static int read_more(struct fsck *f)
{
    int err = f->log.state == LOG_DAMAGED ? fsck_find_given_up(f) : 0;

    if (!err && f->refused && f->mode != FSCK_CHECK) {
        fsck_say(f, "Nothing is repaired without this");
        f->mode = FSCK_CHECK;
    }
    return !err && f->replay && f->mode != FSCK_CHECK ? fsck_apply_kept(f) : err;
}

static int begin_round(struct fsck *f)
{
    end_round(f);
    f->wanted = f->left = f->inodes_used = f->inode_block_count = 0;
    f->incomplete = f->structural = f->free_list_cut = false;
    f->fix_free_list = f->fix_orphans = f->fix_inode_file = false;
    f->lost_found = f->grow = 0;
    f->lost_found_taken = f->alloc_any = f->meta_any = f->no_space = false;
    f->alloc_at = 1;
    f->bitmap_group = UINT64_MAX;
    f->meta_at = 0;
    int err = f->round == 1 ? read_start(f) : 0;
    if (!err)
        err = fsck_levels(f);
    if (!err)
        err = fsck_load_map(f);
    if (!err && f->round == 1)
        err = read_more(f);
    return err ? err : fsck_start_segments(f);
}

static int read_round(struct fsck *f)
{
    static int (*const passes[])(struct fsck *) = {begin_round, fsck_inodes,  fsck_directories,
                                                   fsck_links,  fsck_entries, fsck_bitmaps,
                                                   fsck_sums};
    int err = 0;

    for (size_t i = 0; i < sizeof(passes) / sizeof(passes[0]) && !err; i++) {
        err = passes[i](f);
        err = !err && f->no_memory ? -ENOMEM : err;
    }
    /* A log that must be kept waits for a round that knows the free blocks. */
    if (f->set_aside && f->mode != FSCK_CHECK)
        f->wanted++;
    /* The report comes last, when it has everything. */
    f->keep_report =
        f->gave_up && f->repaired > 0 && !f->report_kept && f->wanted == 0 && f->mode != FSCK_CHECK;
    f->wanted += f->keep_report;
    return err;
}

/* A place that cannot be written makes nothing inconsistent. */
static bool passes_is_consistent(const struct fsck *f)
{
    return f->mode != FSCK_CHECK && f->left == 0 && f->wanted == 0;
}

/* Removes the error mark if all is repaired and completes the writes. */
static int passes_finish(struct fsck *f)
{
    int err = 0;

    if (f->repaired == 0)
        return 0;
    if (passes_is_consistent(f) && (!f->marked || f->clear_error)) {
        f->sb.state = lay_put32(lay_get32(f->sb.state) & ~LAY_STATE_ERROR);
        err = store_commit(f);
    }
    return err ? err : store_finish(f);
}

/* Implements image.corrected: reports a flipped bit once a round. */
static int passes_corrected(void *arg, uint64_t addr, union lay_block *b)
{
    struct fsck *f = arg;
    uint64_t places[2];

    if (fsck_has(&f->corrected, addr))
        return 0;
    if (fsck_append(&f->corrected, &addr, sizeof(addr)) != 0)
        return -ENOMEM;
    image_places(&f->img, addr, places);
    if (!fsck_report(f, PROBLEM_FLIPPED_BIT, NULL, "block %" PRIu64, places[0]))
        return 0;
    return store_put(f, addr, b);
}

/* Implements image.differs: reports each place once per round. */
static int passes_differs(void *arg, uint64_t addr, uint64_t place)
{
    struct fsck *f = arg;
    const struct fsck_copy *known = f->copies.items;
    size_t at = array_lower(known, f->copies.count, sizeof(*known), place);

    if ((at < f->copies.count && known[at].place == place) || store_place_is_bad(f, place))
        return 0;
    if (!fsck_grow(&f->copies, sizeof(struct fsck_copy)))
        return -ENOMEM;
    struct fsck_copy *c = (struct fsck_copy *)f->copies.items + at;
    memmove(c + 1, c, (f->copies.count - 1 - at) * sizeof(*c));
    *c = (struct fsck_copy){place, addr, false};
    c->heal = fsck_report(f, PROBLEM_COPY, NULL, "block %" PRIu64, place);
    return 0;
}

int fsck_run(struct fsck *f)
{
    f->img.tolerant = true;
    f->img.differs = passes_differs;
    f->img.differs_arg = f;
    f->img.corrected = passes_corrected;
    f->img.corrected_arg = f;
    int err = fsck_read_log(f);
    if (!err)
        err = store_init(f);

    for (f->round = 1; !err && f->round <= MAX_ROUNDS; f->round++) {
        err = read_round(f);
        /* A repair may take the inodes of files that were given up. */
        if (!err && f->round == 1)
            err = fsck_list_given_up(f);
        if (err || f->wanted == 0 || f->mode == FSCK_CHECK || f->unsafe)
            break;
        err = fsck_fix(f);
        err = !err && f->no_memory ? -ENOMEM : err;
        if (f->no_space)
            break;
    }
    /* The report that is kept was made before lost+found took freed numbers. */
    if (!err && !f->report_kept)
        err = fsck_make_report(f);
    if (!err)
        fsck_print_report(f, stdout);
    return err || f->mode == FSCK_CHECK ? err : passes_finish(f);
}

bool fsck_all_repaired(const struct fsck *f)
{
    return passes_is_consistent(f) && f->bad_places.count == 0;
}

void fsck_end(struct fsck *f)
{
    const struct fsck_list *const lists[] = {
        &f->conflicts, &f->name_fixes, &f->strays,      &f->lost_leaves,   &f->corrected,
        &f->copies,    &f->bad_places, &f->ahead,       &f->doubts,        &f->suspects,
        &f->losses,    &f->lost_names, &f->ranges,      &f->report,        &f->plans,
        &f->declined,  &f->given_up,   &f->given_names, &f->given_bitmaps, &f->given_entries,
        &f->segments};

    store_destroy(f);
    end_round(f);
    fsck_forget_report(f);
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        free(lists[i]->items);
    replay_free(&f->log);
    image_end(&f->img);
}
