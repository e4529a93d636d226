/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads lists through leased queues for gpunvme_submit_stream(). A long read is a list of its
 * units. A group reads its share through its own queue. To keep the queue full, the group loads the
 * next pieces while commands are in flight. Many groups take pieces from a counter (gd_parts.h), so
 * that a slow queue gets fewer pieces. The counter is worth 5 to 20 % on a controller with eight
 * threads.
 *
 * A group loads each of its pieces once. The group stores the result of a piece when the read of
 * the piece begins, and again if the read fails. If the end of the leases caused the failure, the
 * group stores the result once more. In a list that a counter deals out, the last group does so.
 */
#ifndef CLIENT_DEVICE_GD_LIST_H
#define CLIENT_DEVICE_GD_LIST_H

#include "client/device/gd_parts.h"
#include "client/device/gd_read.h"
#include "cuda/queue/gq_abi.h"

/* Returns the part of the buffer from addr on, which is inside the buffer. */
GQ_FN struct gd_buffer gd_part_from(const struct gd_buffer *b, uint64_t addr)
{
    struct gd_buffer part = *b;

    part.addr = addr;
    part.len -= addr - b->addr;
    part.target.head += addr - b->addr;
    part.target.len -= addr - b->addr;
    return part;
}

/*
 * Returns the number of pieces in [from, from + n) that are also in [bounds[0], bounds[1]), which a
 * kernel before this one has stored. *first is the first one.
 */
GQ_FN uint32_t gd_list_window(const uint32_t *bounds, uint32_t from, uint32_t n, uint32_t *first)
{
    uint32_t end = bounds[1] < from + n ? bounds[1] : from + n;

    *first = bounds[0] > from ? bounds[0] : from;
    return end > *first ? end - *first : 0;
}

/*
 * Returns the number of groups that share a list of n > 0 pieces. Every group
 * gets the same result, because no group changes lengths. If all data is
 * staged, each lane of a queue has one command in flight, and pieces of 4 KiB
 * need all queues (11.6 M/s with 32, 10.4 with 16). Pieces of 64 KiB are slower
 * with 32 queues than with 16 (0.61 and 0.76 M/s).
 */
GQ_FN uint32_t gd_list_groups(const struct gd_reader *w, const struct gq_reads *reads, uint32_t n,
                              uint32_t groups)
{
    uint64_t all = 0, are_long = reads->staged ? reads->lane_staging : GQ_LONG_READ;
    GQ_LANE_VAR(uint64_t, lens);

    if (groups <= GQ_QUEUES_OF_LONG)
        return groups;
    GQ_FOR_LANES(lane)
    {
        for (uint32_t first = 0; first < GQ_READ_SAMPLES; first += w->group.lanes) {
            if (first + lane < GQ_READ_SAMPLES)
                GQ_AT(lens) += reads->desc[gq_read_sample(first + lane, n)].len;
        }
    }
    for (uint32_t i = 0; i < w->group.lanes; i++)
        all += GQ_FROM64(lens, i);
    return all >= GQ_READ_SAMPLES * are_long ? GQ_QUEUES_OF_LONG : groups;
}

/*
 * Sets the results that are `was`, or all if `was` is 0, to err: those of the
 * group's share, or of the whole list if a counter distributes it. In the
 * second case only the last group may call this, since other groups still store
 * results.
 */
GQ_FN void gd_fail_share(const struct gd_reader *w, const struct gq_run *run,
                         struct gq_read_desc *list, uint32_t rank, int was, int err)
{
    GQ_FOR_LANES(lane)
    {
        for (uint32_t first = 0; first < run->n_cmds; first += w->group.lanes) {
            uint32_t i = first + lane;

            if (i < run->n_cmds &&
                (run->dealing || (i >> run->group_shift) % run->n_queues == rank) &&
                (was == 0 || list[i].result == was))
                list[i].result = err;
        }
    }
}

/*
 * Changes the failures, which were stored as -EIO at once, to -ESTALE if the
 * leases have ended.
 */
GQ_FN void gd_report_stale(const struct gd_reader *w, const struct gq_run *run,
                           struct gq_read_desc *list, uint32_t rank)
{
    if (gd_refused_error(w) == -ESTALE)
        gd_fail_share(w, run, list, rank, -EIO, -ESTALE);
}

/*
 * Called by the last group. Fails the pieces from `first` on, which no group
 * has read.
 */
GQ_FN void gd_fail_rest(const struct gd_reader *w, const struct gq_run *run,
                        struct gq_read_desc *list, uint32_t first)
{
    int err = gd_error_or_stale(w->group, w->file, -ETIMEDOUT);

    GQ_FOR_LANES(lane)
    {
        for (uint32_t i = first; i < run->n_cmds; i += w->group.lanes) {
            if (i + lane < run->n_cmds)
                list[i + lane].result = err;
        }
    }
}

/*
 * Called by a group that reads nothing; err is not 0 if it got no queue.
 * Without a counter its pieces get the error, since no other group reads them.
 * With a counter the other groups read all pieces. The last group, which may
 * have no error itself, finds pieces left only if no group got a queue, or all
 * lost theirs. Returns the error of the share.
 */
GQ_FN int gd_skip_share(const struct gd_reader *w, const struct gq_run *run,
                        struct gq_read_desc *list, uint32_t rank, int err)
{
    const struct gq_worker self = {.group = w->group, .run = run, .rank = rank};
    uint32_t rest;

    if (!run->dealing) {
        if (list && err)
            gd_fail_share(w, run, list, rank, 0, err);
        return err;
    }
    if (!gq_leave_dealing(&self, &rest))
        return list ? err : 0;
    if (!list)
        return rest < run->n_cmds ? err : 0;
    gd_fail_rest(w, run, list, rest);
    gd_report_stale(w, run, list, rank);
    return err;
}

/*
 * Compares piece i, which was read, with the checksums. Returns GQ_MISMATCH if
 * the piece is to be read again, otherwise its final result.
 */
GQ_FN int gd_compare_piece(struct gd_reader *w, const struct gd_buffer *b,
                           const struct gq_reads *reads, uint32_t i)
{
    int result = reads->desc[i].result;

    if (result > 0 && !gd_matches(w, b, gq_load_read(reads, i)))
        result = GQ_MISMATCH;
    if (result == GQ_MISMATCH && (reads->again || w->outcome != GQ_OUT_DONE))
        result = gd_mismatch_error(w);
    GQ_FOR_LANES(lane)
    {
        if (lane == 0 && result < 0)
            reads->desc[i].result = result;
    }
    return result;
}

/*
 * Compares the group's share, which was read. Returns true if some of its
 * pieces are to be read again, which happens once. Sets *bad to the first piece
 * with an error, or to GQ_NO_READ.
 */
GQ_FN bool gd_compare_share(struct gd_reader *w, const struct gd_buffer *b,
                            const struct gq_run *run, struct gq_reads *reads, uint32_t rank,
                            uint32_t *bad)
{
    const struct gq_worker self = {.group = w->group, .run = run, .rank = rank};
    uint32_t n = gq_share(run, rank);
    bool any = false;

    *bad = GQ_NO_READ;
    for (uint32_t j = 0; j < n; j++) {
        uint32_t i = gq_stripe(&self, j);
        int result = gd_compare_piece(w, b, reads, i);

        any |= result == GQ_MISMATCH;
        if (result < 0 && *bad == GQ_NO_READ)
            *bad = i;
    }
    reads->again = any;
    return any;
}

/*
 * Describes a group's share of a list or of one long read. A share consists of
 * pieces, or of units of one command each. The warps of a block have one share.
 */
struct gd_list_share {
    struct gq_run run;
    struct gq_reads reads;
    uint32_t rank, groups;
    uint32_t sharing;       /* groups that read; those of greater rank do nothing */
    bool compares;          /* the group compares checksums itself */
    struct gd_parts *parts; /* words of these groups alone; NULL: shares are even */
};

GQ_FN void gd_set_parts(struct gd_list_share *s, struct gd_parts *parts)
{
    s->parts = parts;
    s->run.dealing = parts ? &parts->dealing : NULL;
    s->run.n_queues = parts ? s->groups : s->sharing;
}

/*
 * Sets up share `rank` of `groups` shares of a list of n pieces, whose `at`
 * counts from the start of the buffer. A group that compares checksums has an
 * even share.
 */
GQ_FN void gd_share_list(const struct gd_reader *w, const struct gd_buffer *b,
                         struct gq_read_desc *list, uint32_t n, uint32_t rank, uint32_t groups,
                         struct gd_list_share *s)
{
    s->reads = gd_reads(w->file, b);
    s->reads.desc = list;
    s->rank = rank;
    s->groups = groups;
    s->sharing = gd_list_groups(w, &s->reads, n, groups);
    s->compares = s->reads.sums.words && !w->defers;
    s->run = gd_run(w->file, n, groups);
    s->run.group_shift = (uint16_t)gq_group_shift(n, s->sharing, 5); /* a piece for each lane */
    gd_set_parts(s, NULL);
}

/*
 * Divides a staged read into commands of `unit` bytes. As many lanes send
 * commands as have staging for a unit.
 */
GQ_FN void gd_cut_staged(struct gq_reads *reads, uint32_t unit)
{
    uint32_t lanes = reads->queue_area / unit;

    reads->unit = reads->lane_staging = unit;
    reads->lanes = lanes < GD_GROUP ? lanes : GD_GROUP;
}

/*
 * Sets up a share of one read to byte read.at of the buffer. A staged read consists of commands of
 * `unit` bytes. The length is not 0, and the read does not exceed the file. A read with checksums
 * covers whole blocks, which a later kernel compares. The read is cancelled when the word `cancel`
 * in host memory is not 0. NULL means that the read cannot be cancelled.
 */
GQ_FN void gd_share_read(const struct gd_reader *w, const struct gd_buffer *b, struct gq_read read,
                         uint32_t unit, const volatile uint32_t *cancel, uint32_t rank,
                         uint32_t groups, struct gd_list_share *s)
{
    s->reads = gd_reads(w->file, b);
    s->reads.sums.words = NULL;
    s->reads.whole = read;
    if (s->reads.staged)
        gd_cut_staged(&s->reads, unit);
    s->rank = rank;
    s->groups = s->sharing = groups;
    s->compares = false;
    s->run = gd_run(w->file, (uint32_t)gq_count_units(&s->reads), groups);
    if (s->reads.staged) /* a unit for each lane */
        s->run.group_shift = (uint16_t)gq_prefix_ones(s->reads.lanes - 1);
    s->run.cancel = cancel;
    gd_set_parts(s, NULL);
}

/*
 * Acquires a queue for the share unless the read is cancelled. The run itself
 * checks for that only at intervals. Adjacent groups acquire adjacent queues,
 * because a controller assigns its queues to its processors in turn. With
 * random queues, lists of a graph took up to twice the time.
 */
GQ_FN int gd_take_share(struct gd_reader *w, const struct gd_list_share *s)
{
    const volatile uint32_t *cancel = s->run.cancel;
    GQ_LANE_VAR(uint32_t, is_cancelled);

    if (s->rank >= s->sharing)
        return 0;
    GQ_FOR_LANES(lane)
    {
        GQ_AT(is_cancelled) = cancel && gq_load_flag(cancel);
    }
    if (GQ_FROM32(is_cancelled, 0))
        return -ECANCELED;
    return s->groups > 1 ? gd_take_from(w, s->rank) : gd_take(w);
}

/*
 * Reads the share; err is the result of gd_take_share(). If w->defers is set,
 * staged pieces that do not match get the result GQ_MISMATCH. Returns 0 or the
 * error of the share. For a list this is the first error of a piece; with parts
 * it is -EIO for any error, because the last group may change results.
 */
GQ_FN int gd_read_share(struct gd_reader *w, const struct gd_buffer *b, struct gd_list_share *s,
                        int err)
{
    struct gq_read_desc *list = s->reads.desc;
    uint32_t bad;

    if (err || s->rank >= s->sharing)
        return gd_skip_share(w, &s->run, list, s->rank, err);
    do
        bad = gd_drive(w, &s->run, &s->reads, s->rank);
    while (s->compares && gd_compare_share(w, b, &s->run, &s->reads, s->rank, &bad));
    if (list && (s->parts ? w->is_last : bad != GQ_NO_READ))
        gd_report_stale(w, &s->run, list, s->rank);
    if (bad != GQ_NO_READ)
        err = !list ? gd_run_error(w) : s->parts ? -EIO : list[bad].result;
    gd_give(w);
    return err;
}

/*
 * Called when the share has ended with *err. Returns true in the last group of
 * all; *err is then the greatest error of any group. Without parts no group is
 * the last of several.
 */
GQ_FN bool gd_end_share(const struct gd_reader *w, struct gd_parts_table *t,
                        const struct gd_list_share *s, int *err)
{
    return s->parts ? gd_leave_parts(w, t, s->parts, s->groups, err) : s->groups == 1;
}

#endif
