/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Lists of reads through leased queues: what gpunvme_readv_async() and gpunvme_preadv_warp() do. A
 * group works through its share of a list with a queue of its own, which is kept full: the lanes
 * have the next reads loaded while the last ones are under way.
 *
 * The pieces are the list. A group loads each of its pieces once, and stores to its result when it
 * takes it on, and again should it fail. Should it turn out that the leases' end made it fail, the
 * group, or the last one of a list that a counter deals, stores to it once more.
 */
#ifndef CLIENT_DEVICE_GD_LIST_H
#define CLIENT_DEVICE_GD_LIST_H

#ifdef __CUDACC__
#include "client/device/gd_pread.h"
#else
#include "client/device/gd_read.h"
#endif
#include "cuda/queue/gq_abi.h"

/* Pieces of a list at most: their numbers stay below those that say that there is none. */
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
 * Neighbours go to one queue, so that a group loads them side by side: as many as it has lanes,
 * fewer in a list that is too short for that.
 */
GQ_FN uint32_t gd_list_shift(uint32_t n, uint32_t groups)
{
    uint32_t shift = 0;

    while (shift < 5 && (groups << (shift + 1)) <= n)
        shift++;
    return shift;
}

/*
 * How many of the groups share a list of n pieces: each of them comes to the same, for lengths are
 * only read. n is not 0.
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
 * Of a share, or with a counter of the list, the results that are `was`, or with 0 all of them,
 * become err. With a counter by the last group only: other groups still store results.
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

/* Each failure was reported when it occurred, without checking yet whether the leases caused it. */
GQ_FN void gd_tell_stale(const struct gd_reader *w, const struct gq_run *run,
                         struct gq_read_desc *list, uint32_t rank)
{
    if (gd_refused_error(w) == -ESTALE)
        gd_fail_share(w, run, list, rank, -EIO, -ESTALE);
}

/* The pieces from `first` on, by the last group, which read none of them. */
GQ_FN void gd_fail_rest(const struct gd_reader *w, const struct gq_run *run,
                        struct gq_read_desc *list, uint32_t first)
{
    int err = gd_refused_error(w) == -ESTALE ? -ESTALE : -ETIMEDOUT;

    GQ_FOR_LANES(lane)
    {
        for (uint32_t i = first; i < run->n_cmds; i += w->group.lanes) {
            if (i + lane < run->n_cmds)
                list[i + lane].result = err;
        }
    }
}

/*
 * The group reads nothing. Without a counter no other group reads its share, which gets the error.
 * With one the remaining groups read all; the last group, which may have no error of its own, finds
 * pieces that no group has taken only if none of them got a queue, or all of them lost theirs.
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
        gd_tell_stale(w, run, list, rank);
    }
    return err;
}

/*
 * The result of piece i, compared with the checksums: GQ_MISMATCH for one that is to be read again,
 * else final.
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
 * After the share, of a file with checksums, was read. True: pieces of it are to be read again,
 * which happens once. *bad: the first piece with an error, or GQ_NO_READ.
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
 * The rank-th of `groups` shares of a list of n pieces, which has `at` counted from the buffer's
 * start; of long pieces the last groups have none. dealing: words of this list, by which all groups
 * deal it; NULL: the shares are even, as they are where the group compares checksums afterwards.
 * Where w->defers is set, pieces that staged data has refused have the result GQ_MISMATCH. 0, or
 * the first error of one of its pieces; with a counter -EIO for any of them, because the last group
 * may change the results, or why it had no queue.
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
        gd_tell_stale(w, &run, list, rank);
    gd_give(w);
    if (bad == GQ_NO_READ)
        return 0;
    return dealing ? -EIO : list[bad].result;
}

#ifdef __CUDACC__

/* All of it by this warp: what the function promises stands in gpunvme_device.h. */
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
