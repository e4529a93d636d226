/* SPDX-License-Identifier: BSD-2-Clause */
/* Checks the leases that reads use. */
#ifndef CLIENT_DEVICE_GD_LEASE_H
#define CLIENT_DEVICE_GD_LEASE_H

#include <errno.h>

#include "client/device/gd_sync.h"
#include "cuda/queue/gq_lanes.h"

/* The longest wait for a check that another group makes. */
#define GD_CHECK_WAIT_NS 100000u

/* The greatest power of two, in bytes, that a command can carry. */
GQ_FN uint32_t gd_unit(uint32_t max_command)
{
    while (max_command & (max_command - 1))
        max_command &= max_command - 1;
    return max_command;
}

/*
 * Called by one lane. Returns true if the leases have ended. `checked` is the
 * value of checked_ns that was loaded at `now`; 0 means that the words are
 * loaded in any case. A load of a word of host memory costs a microsecond, and
 * two loads hardly more, so one lane loads them once per GD_CHECK_NS. After the
 * leases have ended, every group finds that out by itself. A file that was
 * opened while there were no queues has no lease of queues.
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
 * Returns true if a read may begin at `now` without a check by its group.
 * Another group's check may be slightly later than `now`. A check that is
 * GD_CHECK_NS or more later was made before the clock was set back.
 */
GQ_FN bool gd_is_checked(uint64_t now, uint64_t checked)
{
    int64_t age = (int64_t)(now - checked);

    return (age > -(int64_t)GD_CHECK_NS) &
           ((age < (int64_t)GD_CHECK_NS) |
            ((age < (int64_t)GD_CHECK_MOST_NS) & ((checked & GD_CHECKING) != 0)));
}

/*
 * Like gd_lease_ended(), for groups that read at the same time: one of them
 * makes the check. A GPU serves loads of one word of host memory one after
 * another, and polls of completions wait behind them. If that group does not
 * end its check, the caller makes one after GD_CHECK_WAIT_NS.
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
 * Returns -ESTALE if the leases have ended, whatever the last check found,
 * otherwise err. After the end of the leases the drive fails commands, because
 * their queues are deleted, and groups that have noticed the end abandon
 * commands and thereby lose queues.
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
