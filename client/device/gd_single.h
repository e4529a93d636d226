/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Executes single commands that the host has made, for the service (gd_serve.h). The group has
 * taken a queue for itself (gd_queue.h). Every function is called by all lanes of the group
 * together, with the same arguments.
 *
 *   gd_command      submits the command and polls its completion by lane 0 alone; then all lanes
 *                   copy staged data
 *   gd_give_fenced  releases the queue
 */
#ifndef CLIENT_DEVICE_GD_SINGLE_H
#define CLIENT_DEVICE_GD_SINGLE_H

#include "client/device/gd_read.h"

/*
 * Copies the data of the staged command from staging to dst. Lane 0 then passes a fence for the
 * system, which orders the stores of all lanes, and the loads of staging, before its next store.
 */
GQ_FN void gd_copy_single(const struct gd_reader *w, uint64_t dst, uint32_t len)
{
    const struct gd_set *set = &w->file->set;
    uint64_t src = set->staging.base + gd_staging_of(set, w->queue);

    GQ_FOR_LANES(lane)
    {
        gq_copy_4k(dst, src, len, lane, w->group.lanes);
    }
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gq_fence_results();
    }
}

/* Polls until the command has ended or is lost. Returns 0 or -errno. */
GQ_FN int gd_await(struct gd_reader *w, struct gq_single *s)
{
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            while (gq_single_poll(s) == GQ_OUT_RUNNING)
                gd_idle();
        }
    }
    w->outcome = GQ_SAME32(s->outcome);
    w->in_flight = w->outcome != GQ_OUT_DONE;
    w->position = s->at;
    return w->outcome == GQ_OUT_DONE && !GQ_SAME32(s->status) ? 0 : gd_run_error(w);
}

/*
 * Submits the command on the group's queue, waits for its end, and copies its
 * data to dst if it has `staged` bytes in the queue's staging. Returns 0 or
 * -errno; -ESTALE if the leases have ended. The load of their last check
 * overlaps the stores of the entry.
 */
GQ_FN int gd_command(struct gd_reader *w, const struct gq_run *run, const struct gq_cmd *cmd,
                     uint64_t dst, uint32_t staged)
{
    struct gq_single s = {.run = run, .port = &w->port, .at = w->position};
    GQ_LANE_VAR(uint32_t, stale);
    int err;

    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            uint64_t checked = gd_load64(w->file->checked_ns);

            gq_single_start(&s);
            gq_single_store(&s, cmd);
            GQ_AT(stale) = gd_lease_ended(w->file, s.start_ns, checked);
            if (!GQ_AT(stale))
                gq_single_ring_sq(&s);
        }
    }
    w->position.cq_db_pending = 0;
    if (GQ_FROM32(stale, 0))
        return -ESTALE;
    err = gd_await(w, &s);
    if (!err && staged)
        gd_copy_single(w, dst, staged);
    return err;
}

/*
 * Called after gd_command(). Lane 0 has passed its fence there, and has stored
 * nothing to the queue since.
 */
GQ_FN void gd_give_fenced(const struct gd_reader *w)
{
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gd_unlock_fenced(&w->file->set.locks[w->queue], gd_left(w));
    }
}

#endif
