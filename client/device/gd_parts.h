/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Uses the words that the groups of a launch share (struct gd_parts). Each
 * group finds the words by the number of the launch, so the host assigns
 * nothing. A captured kernel has a number in each instance of its graph. An
 * instance does not run twice at a time.
 *
 * Every function is called by all lanes of a group together.
 */
#ifndef CLIENT_DEVICE_GD_PARTS_H
#define CLIENT_DEVICE_GD_PARTS_H

#include "client/device/gd_queue.h"

#define GD_NO_PARTS UINT32_MAX

/* Returns the index of the first word of the table that is `number`, or GD_NO_PARTS. */
GQ_FN uint32_t gd_find_number(const struct gd_reader *w, const struct gd_parts_table *t,
                              uint64_t number)
{
    uint32_t found = GD_NO_PARTS;

    for (uint32_t first = 0; first < GD_LAUNCHES && found == GD_NO_PARTS; first += w->group.lanes) {
        GQ_LANE_VAR(uint32_t, is);
        uint32_t mask;

        GQ_FOR_LANES(lane)
        {
            GQ_AT(is) = gd_load64(&t->number[first + lane]) == number;
        }
        mask = GQ_BALLOT(is);
        if (mask)
            found = first + gq_take_one(&mask);
    }
    return found;
}

/* Takes unused words for `number` unless another group has. Called with the lock. */
GQ_FN uint32_t gd_take_number(const struct gd_reader *w, struct gd_parts_table *t, uint64_t number)
{
    uint32_t found = gd_find_number(w, t, number);

    if (found != GD_NO_PARTS)
        return found;
    found = gd_find_number(w, t, 0);
    GQ_FOR_LANES(lane)
    {
        if (lane == 0 && found != GD_NO_PARTS)
            gd_store64(&t->number[found], number);
    }
    return found;
}

/* Like gd_take_number(), without the lock. Returns GD_NO_PARTS if another group has it, too. */
GQ_FN uint32_t gd_try_number(const struct gd_reader *w, struct gd_parts_table *t, uint64_t number)
{
    uint32_t found;
    GQ_LANE_VAR(uint32_t, was);

    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            GQ_AT(was) = gd_take_lock(&t->lock);
    }
    if (GQ_FROM32(was, 0))
        return GD_NO_PARTS;
    found = gd_take_number(w, t, number);
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gd_unlock(&t->lock, 0);
    }
    return found;
}

/*
 * Returns the words of launch `number`, which is not 0 and has several groups.
 * Each of them calls this once, and gd_leave_parts() later. Returns NULL if
 * none were found for as long as a command may take, which cannot happen while
 * the GPU executes no more kernels than the table has words.
 */
GQ_FN struct gd_parts *gd_parts_of(const struct gd_reader *w, struct gd_parts_table *t,
                                   uint64_t number)
{
    uint64_t start = GQ_SAME64(gq_clock_ns());
    uint32_t found = gd_find_number(w, t, number);

    while (found == GD_NO_PARTS && GQ_SAME64(gq_clock_ns()) - start < w->file->set.command_ns) {
        found = gd_try_number(w, t, number);
        if (found == GD_NO_PARTS)
            found = gd_find_number(w, t, number);
    }
    gq_fence_device(); /* acquires the words that the previous user has cleared */
    return found == GD_NO_PARTS ? NULL : &t->parts[found];
}

/*
 * Called when the group has ended with *err. Returns true in the last of
 * `groups` groups; *err is then the greatest error of all, and the words are
 * unused. t is NULL if the words are in no table. The fences order the stores
 * of each group before those of the last one.
 */
GQ_FN bool gd_leave_parts(const struct gd_reader *w, struct gd_parts_table *t, struct gd_parts *p,
                          uint32_t groups, int *err)
{
    GQ_LANE_VAR(uint32_t, left);

    gq_fence_device();
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            uint32_t was = gq_atomic_load(&p->errnum), own = (uint32_t) - *err;

            while (was < own && gq_atomic_replace(&p->errnum, was, own) != was)
                was = gq_atomic_load(&p->errnum);
            gq_fence_device();
            GQ_AT(left) = gq_atomic_fetch_add(&p->left, 1) + 1;
        }
    }
    if (GQ_FROM32(left, 0) != groups)
        return false;
    gq_fence_device();
    *err = -(int)GQ_SAME32(gq_atomic_load(&p->errnum));
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            gq_atomic_store(&p->errnum, 0);
            gq_atomic_store(&p->left, 0);
            gq_fence_device(); /* the words are zero before they are unused */
            if (t)
                gd_store64(&t->number[p - t->parts], 0);
        }
    }
    return true;
}

#endif
