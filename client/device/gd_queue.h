/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Acquires and releases a leased queue for a group. All lanes of a group call each function
 * together and share w.
 */
#ifndef CLIENT_DEVICE_GD_QUEUE_H
#define CLIENT_DEVICE_GD_QUEUE_H

#include "client/device/gd_lease.h"
#include "cuda/queue/gq_reads_protocol.h"

/* Describes the position of an idle queue pair. The SQ's tail and the CQ's head are equal. */
struct gd_position {
    uint32_t entry;         /* next entry of both rings */
    uint32_t phase;         /* phase of the next CQE */
    uint32_t cq_db_pending; /* not 0: `entry` was not stored to the CQ doorbell */
};

struct gd_reader {
    struct gq_group group;
    const struct gpunvme_device_file *file;
    uint32_t queue;
    struct gq_port port;          /* the queue's */
    struct gd_position position;  /* of the rings */
    uint32_t in_flight, outcome;  /* at the end of the last run */
    bool is_last;                 /* the group ended last of those that a counter serves */
    uint64_t bad_block;           /* of that run: gq_reader.bad_block */
    bool defers;                  /* whole blocks are compared later, by other warps */
    struct gq_copy_jobs *copies;  /* of the block's copy warps; NULL: the group copies */
    struct gq_prefetch *prefetch; /* of its prefetch warp; NULL: the group loads the list */
};

GQ_FN struct gd_position gd_position(uint32_t word)
{
    return (struct gd_position){.entry = word >> GD_ENTRY_SHIFT,
                                .phase = (word & GD_ODD_PASS) == 0,
                                .cq_db_pending = word & GD_CQ_DB_PENDING};
}

GQ_FN uint32_t gd_word(struct gd_position p)
{
    return p.entry << GD_ENTRY_SHIFT | (p.phase ? 0 : GD_ODD_PASS) |
           (p.cq_db_pending ? GD_CQ_DB_PENDING : 0);
}

/*
 * Defines a function that loads a whole struct in one trip to memory. The
 * compiler would pass an ordinary copy in the stack, and would move ordinary
 * loads to where each word is needed, one trip after another.
 */
#define GD_LOAD_STRUCT(name, type)                                     \
    GQ_FN struct type name(const struct type *at)                      \
    {                                                                  \
        union {                                                        \
            struct type whole;                                         \
            uint64_t words[sizeof(struct type) / sizeof(uint64_t)];    \
        } copy;                                                        \
        const uint64_t *from = (const uint64_t *)at;                   \
                                                                       \
        GQ_UNROLL                                                      \
        for (uint32_t i = 0; i < sizeof(copy) / sizeof(uint64_t); i++) \
            copy.words[i] = gd_load64(&from[i]);                       \
        return copy.whole;                                             \
    }

/* The port is constant, so it can be loaded together with the lock word. */
GD_LOAD_STRUCT(gd_load_port, gq_port)

/* Returns the error of a command that the drive has failed. */
GQ_FN int gd_refused_error(const struct gd_reader *w)
{
    return gd_error_or_stale(w->group, w->file, -EIO);
}

/* Returns the error of the reads that a run has failed. */
GQ_FN int gd_run_error(const struct gd_reader *w)
{
    return w->outcome == GQ_OUT_DONE ? gd_refused_error(w) : gq_lost_error(w->outcome);
}

/*
 * Tries to take w->queue. Returns 0, -EAGAIN if it is not free, or -ESTALE if
 * the leases have ended, which may be noticed GD_CHECK_NS late. No load depends
 * on another one, so all are in flight at a time.
 */
GQ_FN int gd_try(struct gd_reader *w)
{
    const struct gd_set *s = &w->file->set;
    uint32_t *lock = &s->locks[w->queue], found;
    GQ_LANE_VAR(uint32_t, word);
    GQ_LANE_VAR(uint32_t, stale);

    w->port = gd_load_port(&s->queues[w->queue].port);
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            uint64_t checked = gd_load64(w->file->checked_ns);

            GQ_AT(word) = gd_try_lock(lock, GD_BUSY);
            GQ_AT(stale) = gd_lease_ended(w->file, gq_clock_ns(), checked);
            if (GQ_AT(stale) && GD_FREE(GQ_AT(word)))
                gd_unlock(lock, GQ_AT(word));
        }
    }
    found = GQ_FROM32(word, 0);
    w->position = gd_position(found);
    if (GQ_FROM32(stale, 0))
        return -ESTALE;
    return GD_FREE(found) ? 0 : -EAGAIN;
}

/*
 * Loads all locks, from `first` on. Returns the first free queue, n_queues if
 * all are taken, or n_queues + 1 if all are lost.
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
                uint32_t word = gd_load32(&s->locks[(first + i + lane) % s->n_queues]);

                GQ_AT(free) = GD_FREE(word);
                GQ_AT(gone) = (word & GD_LOST) != 0;
            }
        }
        mask = GQ_BALLOT(free);
        if (mask != 0)
            return (first + i + gq_prefix_ones(~mask)) % s->n_queues;
        lost += gq_count_ones(GQ_BALLOT(gone));
    }
    return lost == s->n_queues ? s->n_queues + 1 : s->n_queues;
}

/*
 * Called after a failed try. Takes any queue, stores it in w->queue, and
 * returns what gd_take() returns. Another group may repeatedly take a queue
 * between gd_find_free() and the try; the bound of time is the same.
 */
GQ_FN int gd_take_any(struct gd_reader *w)
{
    const struct gd_set *s = &w->file->set;
    uint64_t start = GQ_SAME64(gq_clock_ns());
    int err;

    do {
        uint32_t found = gd_find_free(w, w->queue);

        if (found > s->n_queues)
            return gd_error_or_stale(w->group, w->file, -ETIMEDOUT);
        if (found < s->n_queues)
            w->queue = found;
        else
            gd_pause();
        err = gd_try(w);
    } while (err == -EAGAIN && GQ_SAME64(gq_clock_ns()) - start < s->command_ns);
    return err == -EAGAIN ? -ETIMEDOUT : err;
}

/*
 * Acquires a queue for the group and stores the queue in w->queue. The search
 * begins at queue `first`, which may be any number. Returns 0, -ESTALE, or
 * -ETIMEDOUT if no queue was free for as long as a command may take, or if all
 * queues are lost.
 */
GQ_FN int gd_take_from(struct gd_reader *w, uint32_t first)
{
    const struct gd_set *s = &w->file->set;
    int err;

    if (s->n_queues == 0)
        return -ESTALE;
    w->queue = first % s->n_queues;
    err = gd_try(w);
    return err == -EAGAIN ? gd_take_any(w) : err;
}

GQ_FN int gd_take(struct gd_reader *w)
{
    return gd_take_from(w, GQ_SAME32(gd_seed()));
}

/*
 * Returns the lock word for the next owner: free, or GD_LOST if commands remain
 * in flight.
 */
GQ_FN uint32_t gd_left(const struct gd_reader *w)
{
    bool lost = w->in_flight != 0 || w->outcome == GQ_OUT_BROKEN;

    return lost ? GD_LOST : gd_word(w->position);
}

/* Unlocks the queue that gd_take() took, after gd_end() or without a run. */
GQ_FN void gd_give(const struct gd_reader *w)
{
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gd_unlock(&w->file->set.locks[w->queue], gd_left(w));
    }
}

#endif
