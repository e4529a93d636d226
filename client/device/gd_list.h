/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Lists of reads through leased queues, for gpunvme_readv_async() and gpunvme_preadv_warp(). A
 * group reads its share of a list by a queue of its own, which it keeps full: the lanes load the
 * next pieces while commands are in flight.
 *
 * A group loads each of its pieces once. It stores the result of a piece when it begins to read it,
 * and again if that fails. If the end of the leases was the cause, the result is stored once more:
 * by the group, or, in a list that a counter deals, by the last group.
 */
#ifndef CLIENT_DEVICE_GD_LIST_H
#define CLIENT_DEVICE_GD_LIST_H

#ifdef __CUDACC__
#include "client/device/gd_pread.h"
#else
#include "client/device/gd_read.h"
#endif
#include "cuda/queue/gq_abi.h"

/* The most pieces of a list: their numbers are below GQ_NO_READ. */
#define GD_MAX_PIECES 0x7fffffffu

/* The part of the buffer from addr on, which is inside. */
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
 * log2 of the number of adjacent pieces that go to one queue, which a group loads side by side: as
 * many as a group has lanes, fewer where the list is too short for that.
 */
GQ_FN uint32_t gd_list_shift(uint32_t n, uint32_t groups)
{
    uint32_t shift = 0;

    while (shift < 5 && (groups << (shift + 1)) <= n)
        shift++;
    return shift;
}

/*
 * The number of groups that share a list of n > 0 pieces. Every group gets the same result, because
 * no group changes lengths.
 */
GQ_FN uint32_t gd_list_groups(const struct gd_reader *w, const struct gq_read_desc *list,
                              uint32_t n, uint32_t groups)
{
    GQ_LANE_VAR(uint64_t, lens);
    uint64_t all = 0;

    if (groups <= GQ_QUEUES_OF_LONG)
        return groups;
    GQ_FOR_LANES(lane)
    {
        for (uint32_t first = 0; first < GQ_READ_SAMPLES; first += w->group.lanes) {
            if (first + lane < GQ_READ_SAMPLES)
                GQ_AT(lens) += list[gq_read_sample(first + lane, n)].len;
        }
    }
    for (uint32_t i = 0; i < w->group.lanes; i++)
        all += GQ_FROM64(lens, i);
    return all >= (uint64_t)GQ_READ_SAMPLES * GQ_LONG_READ ? GQ_QUEUES_OF_LONG : groups;
}

/*
 * Sets to err the results that are `was`, or all where that is 0: of the group's share, or of the
 * whole list where a counter deals it. In the second case only the last group may call this, since
 * other groups still store results.
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

/* Failures were stored as -EIO at once. Makes them -ESTALE if the leases have ended. */
GQ_FN void gd_report_stale(const struct gd_reader *w, const struct gq_run *run,
                           struct gq_read_desc *list, uint32_t rank)
{
    if (gd_refused_error(w) == -ESTALE)
        gd_fail_share(w, run, list, rank, -EIO, -ESTALE);
}

/* By the last group: the pieces from `first` on, which no group has read. */
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
 * For a group that reads nothing. Without a counter its share gets the error, since no other group
 * reads it. With a counter the other groups read all pieces. The last group, which may have no
 * error itself, finds pieces left only if no group got a queue, or all lost theirs.
 */
GQ_FN int gd_skip_share(const struct gd_reader *w, const struct gq_run *run,
                        struct gq_read_desc *list, uint32_t rank, int err)
{
    const struct gq_worker self = {.group = w->group, .run = run, .rank = rank};
    uint32_t rest;

    if (!run->dealing) {
        gd_fail_share(w, run, list, rank, 0, err);
    } else if (gq_leave_dealing(&self, &rest)) {
        gd_fail_rest(w, run, list, rest);
        gd_report_stale(w, run, list, rank);
    }
    return err;
}

/*
 * Compares piece i, which was read, with the checksums. Returns its result: GQ_MISMATCH if it is to
 * be read again, otherwise final.
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
 * Compares the group's share, which was read. True: some of its pieces are to be read again, which
 * happens once. *bad: the first piece with an error, or GQ_NO_READ.
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
 * Reads the rank-th of `groups` shares of a list of n pieces, whose `at` counts from the start of
 * the buffer. Lists of long pieces have fewer shares: the last groups read nothing. dealing: the
 * counter of this list, from which all groups take pieces; NULL, and where the group compares
 * checksums: shares are even. Where w->defers is set, staged pieces that do not match get the
 * result GQ_MISMATCH. Returns 0; the error of taking a queue; or the first error of a piece, with a
 * counter -EIO for any, because the last group may change results.
 */
GQ_FN int gd_read_share(struct gd_reader *w, const struct gd_buffer *b, struct gq_read_desc *list,
                        uint32_t n, uint32_t rank, uint32_t groups, struct gq_dealing *dealing)
{
    struct gq_reads reads = gd_reads(w->file, b);
    uint32_t sharing = gd_list_groups(w, list, n, groups), bad;
    bool compares = reads.sums.words && !w->defers;
    struct gq_run run;
    int err;

    dealing = compares ? NULL : dealing;
    run = gd_run(w->file, n, dealing ? groups : sharing);
    run.dealing = dealing;
    if (rank >= sharing)
        return dealing ? gd_skip_share(w, &run, list, rank, 0) : 0;
    err = gd_take(w);
    run.group_shift = gd_list_shift(n, sharing);
    if (err)
        return gd_skip_share(w, &run, list, rank, err);
    reads.desc = list;
    do
        bad = gd_drive(w, &run, &reads, rank);
    while (compares && gd_compare_share(w, b, &run, &reads, rank, &bad));
    if (dealing ? w->is_last : bad != GQ_NO_READ)
        gd_report_stale(w, &run, list, rank);
    gd_give(w);
    if (bad == GQ_NO_READ)
        return 0;
    return dealing ? -EIO : list[bad].result;
}

#ifdef __CUDACC__

/* The whole list by this warp: gpunvme_preadv_warp(). */
GQ_FN int gd_preadv_warp(const struct gpunvme_device_file *file, uint64_t dst,
                         struct gq_read_desc *list, uint32_t n)
{
    const struct gpunvme_device_file f = gd_load_file(file);
    struct gd_reader self = {.group = gq_whole_group(), .file = &f}, *w = &self;
    const struct gq_run run = gd_run(&f, n, 1);
    struct gd_table table;
    struct gd_buffer b;
    int err = f.set.n_queues ? 0 : -ESTALE;

    if (n > GD_MAX_PIECES)
        return -EINVAL;
    if (n == 0)
        return 0;
    if (!err) {
        gd_load_table(w, 0, &table);
        err = gd_find_buffer(w, &table, dst, 1, &b);
    }
    if (err) {
        gd_fail_share(w, &run, list, 0, 0, err);
        return err;
    }
    b = gd_part_from(&b, dst);
    return gd_read_share(w, &b, list, n, 0, 1, NULL);
}

#endif

#endif
