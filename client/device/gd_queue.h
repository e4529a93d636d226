/*
 * Taking a leased queue, and giving it back. Every function is called by all lanes of a group
 * together; w is what they share.
 */
#ifndef CLIENT_DEVICE_GD_QUEUE_H
#define CLIENT_DEVICE_GD_QUEUE_H

#include <errno.h>

#include "client/device/gd_sync.h"
#include "cuda/gq_reads_protocol.h"

/* How old the knowledge may be that the leases are good: far below GPUNVME_LEASE_GRACE_MS. */
#define GD_CHECK_NS 1000000u

struct gd_reader {
    struct gq_group group;
    const struct gpunvme_device_file *file;
    uint32_t queue;
    uint32_t in_flight, outcome; /* of the last run, as it left the queue */
};

/*
 * One lane's look: have the leases ended? checked: what checked_ns said a moment ago. A word of
 * host memory costs a microsecond, both together hardly more: once in a while somebody pays.
 */
GQ_FN bool gd_look(const struct gpunvme_device_file *f, uint64_t checked)
{
    uint64_t now = gq_clock_ns();
    uint32_t of_queues, of_extents;

    if (now - checked < GD_CHECK_NS)
        return false;
    of_queues = gq_load_flag(f->set.lease);
    of_extents = gq_load_flag(f->lease);
    if (of_queues != GD_LEASE_VALID || of_extents != GD_LEASE_VALID)
        return true;
    gd_store64(f->checked_ns, now);
    return false;
}

/*
 * Tries one queue: 0, -EAGAIN when it is not free, or -ESTALE when the leases have ended, told late
 * by GD_CHECK_NS at most. When somebody last looked is loaded while the lock is on its way.
 */
GQ_FN int gd_try(const struct gd_reader *w, uint32_t queue)
{
    uint32_t *lock = &w->file->set.locks[queue];
    GQ_LANE_VAR(uint32_t, got);
    GQ_LANE_VAR(uint32_t, stale);

    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            uint64_t checked = gd_load64(w->file->checked_ns);

            GQ_AT(got) = gd_try_lock(lock);
            GQ_AT(stale) = gd_look(w->file, checked);
            if (GQ_AT(got) && GQ_AT(stale))
                gd_unlock(lock, GD_FREE);
        }
    }
    if (GQ_BALLOT(stale) != 0)
        return -ESTALE;
    return GQ_BALLOT(got) != 0 ? 0 : -EAGAIN;
}

/*
 * Looks at all locks, from one on. The first free queue; n_queues: all are taken; above: all are
 * lost.
 */
GQ_FN uint32_t gd_find_free(const struct gd_reader *w, uint32_t first)
{
    const struct gd_set *s = &w->file->set;
    uint32_t lost = 0;

    for (uint32_t i = 0; i < s->n_queues; i += w->group.lanes) {
        uint32_t left = s->n_queues - i, mask;
        GQ_LANE_VAR(uint32_t, free);
        GQ_LANE_VAR(uint32_t, gone);

        GQ_FOR_LANES(lane)
        {
            if (lane < left) {
                uint32_t state = gd_load32(&s->locks[(first + i + lane) % s->n_queues]);

                GQ_AT(free) = state == GD_FREE;
                GQ_AT(gone) = state == GD_LOST;
            }
        }
        mask = GQ_BALLOT(free);
        if (mask != 0)
            return (first + i + gq_prefix_ones(~mask)) % s->n_queues;
        lost += gq_count_ones(GQ_BALLOT(gone));
    }
    return lost == s->n_queues ? s->n_queues + 1 : s->n_queues;
}

/* While all queues are taken. 0, or why waiting must end. */
GQ_FN int gd_wait(const struct gd_reader *w, uint64_t start_ns)
{
    uint64_t now = GQ_SAME64(gq_clock_ns());

    if (now - start_ns >= w->file->set.command_ns)
        return -ETIMEDOUT;
    gd_pause();
    return 0;
}

/* After a try in vain: any queue, in w->queue, as gd_take() returns. */
GQ_FN int gd_take_any(struct gd_reader *w)
{
    const struct gd_set *s = &w->file->set;
    uint64_t start = GQ_SAME64(gq_clock_ns());
    int err;

    do {
        uint32_t found = gd_find_free(w, w->queue);

        if (found > s->n_queues)
            return -ETIMEDOUT;
        if (found < s->n_queues)
            w->queue = found;
        err = found < s->n_queues ? 0 : gd_wait(w, start);
        if (!err)
            err = gd_try(w, w->queue);
    } while (err == -EAGAIN);
    return err;
}

/*
 * A queue for the group, in w->queue: 0, -ESTALE, or -ETIMEDOUT when none was free for as long as a
 * command may take, or all are lost.
 */
GQ_FN int gd_take(struct gd_reader *w)
{
    const struct gd_set *s = &w->file->set;
    int err;

    if (s->n_queues == 0)
        return -ESTALE;
    w->queue = GQ_SAME32(gd_seed()) % s->n_queues;
    err = gd_try(w, w->queue);
    return err == -EAGAIN ? gd_take_any(w) : err;
}

/* After a run: the queue goes on, unless commands may be in flight that nobody waits for. */
GQ_FN void gd_give(const struct gd_reader *w)
{
    bool lost = w->in_flight != 0 || w->outcome == GQ_OUT_BROKEN;

    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gd_unlock(&w->file->set.locks[w->queue], lost ? GD_LOST : GD_FREE);
    }
}

#endif
