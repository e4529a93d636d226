/* SPDX-License-Identifier: BSD-2-Clause */
/* Checks the leases that reads use. */
#ifndef CLIENT_DEVICE_GD_LEASE_H
#define CLIENT_DEVICE_GD_LEASE_H

#include <errno.h>

#include "client/device/gd_sync.h"
#include "cuda/queue/gq_lanes.h"

/* Limits the wait for a check by another group. */
#define GD_CHECK_WAIT_NS 100000u

/* Returns the greatest power of two, in bytes, that a command can carry. */
GQ_FN uint32_t gd_unit(uint32_t max_command)
{
    while (max_command & (max_command - 1))
        max_command &= max_command - 1;
    return max_command;
}

/*
 * Called by one lane. Returns true if the leases have ended. `checked` is the
 * value of checked_ns that was loaded at `now`. A value of 0 forces a load of
 * both lease words. A load of host memory costs a microsecond, and two loads
 * cost hardly more, so one lane loads both words once per GD_CHECK_NS. Every
 * group detects the end of the leases by itself. A file that was opened while
 * there were no queues has no lease of queues.
 */
GQ_FN bool gd_lease_ended(const struct gpunvme_device_file *f, uint64_t now, uint64_t checked)
{
    bool ended = true;

    if (now - checked < GD_CHECK_NS)
        return false;
    if (f->set.lease) {
        uint32_t of_queues = gq_load_flag(f->set.lease), of_extents = gq_load_flag(f->lease);

        ended = of_queues != GD_LEASE_VALID || of_extents != GD_LEASE_VALID;
    }
    gd_store64(f->checked_ns, (ended ? checked : now) & ~(uint64_t)GD_CHECKING);
    return ended;
}

/*
 * Returns true if a read may begin at `now` without a check by the calling
 * group. Another group's check may be slightly later than `now`. If a check is
 * later by GD_CHECK_NS or more, the clock has been set back since that check.
 */
GQ_FN bool gd_is_checked(uint64_t now, uint64_t checked)
{
    int64_t age = (int64_t)(now - checked);

    return (age > -(int64_t)GD_CHECK_NS) &
           ((age < (int64_t)GD_CHECK_NS) |
            ((age < (int64_t)GD_CHECK_MOST_NS) & ((checked & GD_CHECKING) != 0)));
}

/*
 * Like gd_lease_ended(), for groups that read at the same time. Only one group
 * checks the words, because a GPU serves loads of one word of host memory one
 * after another, and polls of completions wait behind these loads. If the
 * checking group does not finish within GD_CHECK_WAIT_NS, the caller checks the
 * words itself.
 */
GQ_FN bool gd_shared_lease_ended(const struct gpunvme_device_file *f, uint64_t now,
                                 uint64_t checked)
{
    while (!gd_is_checked(now, checked)) {
        if ((!(checked & GD_CHECKING) &&
             gd_replace64(f->checked_ns, checked, checked | GD_CHECKING) == checked) ||
            gq_clock_ns() - now > GD_CHECK_WAIT_NS)
            return gd_lease_ended(f, now, checked);
        gd_rest();
        checked = gd_load64(f->checked_ns);
    }
    return false;
}

/*
 * Checks the leases regardless of the last check. Returns -ESTALE if the leases
 * have ended, otherwise err. After the end of the leases the drive fails
 * commands, because their queues are deleted. Groups that have noticed the end
 * abandon commands and thereby lose queues.
 */
GQ_FN int gd_error_or_stale(struct gq_group group, const struct gpunvme_device_file *f, int err)
{
    const struct {
        struct gq_group group;
    } self = {group}, *w = &self;
    GQ_LANE_VAR(uint32_t, stale);

    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            GQ_AT(stale) = gd_lease_ended(f, gq_clock_ns(), 0);
    }
    return GQ_FROM32(stale, 0) ? -ESTALE : err;
}

#endif
