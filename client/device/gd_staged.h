/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A long read into memory that the controller does not reach, by the groups of several blocks, one
 * for each queue. Copy warps of each block (gq_copy_warps.h) copy its group's staged bytes. The
 * groups deal the units of the read by a counter, as those of a list deal its pieces, or have equal
 * shares where there is no counter.
 *
 * Every function is called by all lanes of a group together.
 */
#ifndef CLIENT_DEVICE_GD_STAGED_H
#define CLIENT_DEVICE_GD_STAGED_H

#include "client/device/gd_read.h"

/*
 * For a group without a queue: the other groups read all. Returns err if this is the last group and
 * units are left, because no group got a queue, or all lost theirs.
 */
GQ_FN int gd_skip_part(const struct gd_reader *w, const struct gq_run *run, uint32_t rank, int err)
{
    const struct gq_worker self = {.group = w->group, .run = run, .rank = rank};
    uint32_t rest;

    if (!run->dealing)
        return err;
    return gq_leave_dealing(&self, &rest) && rest < run->n_cmds ? err : 0;
}

/* The parameters of a read, the same for all its groups. */
struct gd_staged {
    const struct gd_buffer *buffer;
    struct gq_read read; /* len bytes, not 0, which end before the file does, to byte `at` of it */
    struct gd_parts *parts;          /* words of this read alone; NULL: shares are even */
    const volatile uint32_t *cancel; /* in host memory; not 0: it is given up; NULL: never */
    uint32_t groups;
    uint32_t unit; /* gd_staged_unit() */
};

/*
 * Takes a queue, unless the read is cancelled, which the run itself checks only at intervals. The
 * queues of a read are adjacent, because a controller assigns its queues to its processors in turn.
 */
GQ_FN int gd_take_unless(struct gd_reader *w, const struct gd_staged *s, uint32_t rank)
{
    const volatile uint32_t *cancel = s->cancel;
    GQ_LANE_VAR(uint32_t, is_cancelled);

    GQ_FOR_LANES(lane)
    {
        GQ_AT(is_cancelled) = cancel && gq_load_flag(cancel);
    }
    if (GQ_FROM32(is_cancelled, 0))
        return -ECANCELED;
    return s->groups > 1 ? gd_take_from(w, rank) : gd_take(w);
}

GQ_FN int gd_read_units(struct gd_reader *w, const struct gd_staged *s, uint32_t rank)
{
    struct gq_reads reads = gd_reads(w->file, s->buffer);
    struct gq_run run;
    int err;

    reads.sums.words = NULL;
    reads.whole = s->read;
    gd_cut_staged(&reads, s->unit);
    run = gd_run(w->file, (uint32_t)gq_count_units(&reads), s->groups);
    run.dealing = s->parts ? &s->parts->dealing : NULL;
    run.group_shift = gq_prefix_ones(reads.lanes - 1); /* a unit for each lane */
    run.cancel = s->cancel;
    err = gd_take_unless(w, s, rank);
    if (err)
        return gd_skip_part(w, &run, rank, err);
    if (gd_drive(w, &run, &reads, rank) != GQ_NO_READ)
        err = gd_run_error(w);
    gd_give(w);
    return err;
}

/* The least error of all groups, after a fence. */
GQ_FN int gd_worst_part(const struct gd_reader *w, const struct gd_parts *parts, uint32_t groups)
{
    uint32_t worst = 0;
    GQ_LANE_VAR(uint32_t, own);

    GQ_FOR_LANES(lane)
    {
        for (uint32_t first = 0; first < groups; first += w->group.lanes) {
            uint32_t i = first + lane, errnum = i < groups ? gq_atomic_load(&parts->errnum[i]) : 0;

            GQ_AT(own) = errnum > GQ_AT(own) ? errnum : GQ_AT(own);
        }
    }
    for (uint32_t i = 0; i < w->group.lanes; i++) {
        uint32_t one = GQ_FROM32(own, i);

        worst = one > worst ? one : worst;
    }
    return -(int)worst;
}

/*
 * The rank-th group has ended with *err. True: as the last one of all, *err is the read's, and the
 * words are ready for the next read. The fences order the bytes and the error of each group before
 * what the last one does.
 */
GQ_FN bool gd_end_part(const struct gd_reader *w, const struct gd_staged *s, uint32_t rank,
                       int *err)
{
    struct gd_parts *parts = s->parts;
    GQ_LANE_VAR(uint32_t, left);

    gq_fence_device();
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            gq_atomic_store(&parts->errnum[rank], (uint32_t)(-*err));
            gq_fence_device();
            GQ_AT(left) = gq_atomic_fetch_add(&parts->left, 1) + 1;
        }
    }
    if (GQ_FROM32(left, 0) != s->groups)
        return false;
    gq_fence_device();
    *err = gd_worst_part(w, parts, s->groups);
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            gq_atomic_store(&parts->left, 0);
            gq_fence_device(); /* the word is zero before the read counts as ended */
            gq_atomic_add(&parts->runs, 1);
        }
    }
    return true;
}

/*
 * The work of the rank-th group; blocks with checksums are compared afterwards. True: it was the
 * last of the groups that deal by a counter, and *err is 0 or the read's -errno.
 */
GQ_FN bool gd_read_staged(struct gd_reader *w, const struct gd_staged *s, uint32_t rank, int *err)
{
    *err = gd_read_units(w, s, rank);
    return s->parts ? gd_end_part(w, s, rank, err) : s->groups == 1;
}

#endif
