/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One command on an idle queue pair, driven by one lane: the shortest path for
 * a small read with a waiting caller. It has the remaining steps of a round
 * (gq_protocol.h):
 *
 *   send   SQE and the pending CQ doorbell, one fence, SQ doorbell
 *   poll   the next CQE; the clock; at intervals the words that end the run
 *
 * It uses no tracker and no stack of free CIDs, and stores nothing when the
 * completion is seen. The CID is the number of the SQ's entry, with
 * GQ_CID_LONE: a late CQE of an earlier command has another CID and breaks the
 * queue. The CQ doorbell is stored with the next command before its fence, so
 * that fence is the last wait for the bus. An owner that unlocks the queue
 * after the completion has no stores of its own to wait for: the fence ordered
 * all stores of this lane except the SQ doorbell, and the completion implies
 * that the doorbell has arrived.
 *
 * Lanes that converge with this one afterwards see the data, because
 * gq_load_cqe() acquires.
 */
#ifndef CUDA_QUEUE_GQ_SINGLE_H
#define CUDA_QUEUE_GQ_SINGLE_H

#include "cuda/queue/gq_protocol.h"
#include "cuda/queue/gq_reads_protocol.h"

/*
 * The position of an idle queue pair. The rings have the same depth and each
 * command has had its one completion, so the SQ's tail and the CQ's head are
 * the same entry.
 */
struct gq_position {
    uint32_t entry;         /* next entry of both rings */
    uint32_t phase;         /* phase of the next CQE */
    uint32_t cq_db_pending; /* not 0: `entry` was not stored to the CQ doorbell */
};

struct gq_single {
    /* Only leave, leave_value, kick, command_ns, nsid and opcode are used. */
    const struct gq_run *run;
    const struct gq_port *port;
    struct gq_position at;       /* the command's position; later that of the next one */
    uint32_t outcome;            /* GQ_OUT_RUNNING, _DONE, _TIMED_OUT, _BROKEN, _LEFT */
    uint32_t status;             /* status of the completion: 0 or the drive's error */
    uint64_t start_ns, leave_ns; /* start of the command; next check of the leases */
};

/*
 * Makes the command of a read that is one command: len bytes to byte `at` of
 * the target, counted from its first page. cur holds the read's first byte and
 * its extent. Returns false if the read takes several commands or none, or is
 * not whole LBAs.
 */
GQ_FN bool gq_make_single(const struct gq_file_map *map, const struct gq_target *target,
                          const struct gq_cursor *cur, uint64_t at, uint64_t len,
                          struct gq_cmd *cmd)
{
    uint32_t lba_size = map->lba_size, shift = gq_prefix_ones(lba_size - 1);
    uint64_t skip = cur->offset - cur->from;

    if (cur->lba == GQ_LBA_ZERO || len > cur->to - cur->offset || at % 4 != 0 ||
        ((skip | len) & (lba_size - 1)) != 0 || gq_prp_clip(at, len, lba_size) != len)
        return false;
    cmd->slba = cur->lba + (skip >> shift);
    cmd->prp1 = target->iova + at;
    cmd->prp2 = gq_prp2(target->iova, target->prps_iova, at, len);
    cmd->nlb = (uint32_t)(len >> shift) - 1;
    return true;
}

/*
 * Starts the command's time. s has run, port and at; its other members are 0.
 * Nothing is in flight.
 */
GQ_FN void gq_single_start(struct gq_single *s)
{
    s->outcome = GQ_OUT_RUNNING;
    s->start_ns = gq_clock_ns();
    s->leave_ns = s->start_ns + GQ_FLAGS_NS;
}

/* Releases the entry of the previous completion. Called before the fence. */
GQ_FN void gq_single_ring_cq(const struct gq_single *s)
{
    if (s->at.cq_db_pending)
        gq_store_doorbell(s->port->cq_doorbell, s->at.entry);
}

/* Called after the fence. */
GQ_FN void gq_single_ring_sq(const struct gq_single *s)
{
    uint32_t next = s->at.entry + 1;

    gq_store_doorbell(s->port->sq_doorbell, next < s->port->depth ? next : 0);
    gq_kick(s->run);
}

/* Returns the CID, without GQ_CID_LONE in rings that have entries of that number. */
GQ_FN uint32_t gq_single_cid(const struct gq_single *s)
{
    return s->at.entry | (s->port->depth < GQ_CID_LONE ? GQ_CID_LONE : 0);
}

/* Stores the command's entry and the pending CQ doorbell; the fence orders both. */
GQ_FN void gq_single_store(const struct gq_single *s, const struct gq_cmd *cmd)
{
    gq_store_sqe(&s->port->sq[s->at.entry], s->run, cmd, gq_single_cid(s));
    gq_single_ring_cq(s);
    gq_fence_entry();
}

/* Takes a new CQE. A CID other than the command's breaks the queue. */
GQ_FN void gq_single_take_cqe(struct gq_single *s, uint32_t dw3)
{
    s->status = NVME_STATUS(dw3 >> 16);
    s->outcome = (dw3 & 0xffffu) == gq_single_cid(s) ? GQ_OUT_DONE : GQ_OUT_BROKEN;
    s->at.cq_db_pending = 1;
    if (++s->at.entry == s->port->depth) {
        s->at.entry = 0;
        s->at.phase ^= 1;
    }
}

/*
 * Called when no CQE had arrived at `now`. The leases are also checked before a
 * deadline is reported, because the queue of a lease that has ended is deleted.
 */
GQ_FN void gq_single_watch(struct gq_single *s, uint64_t now)
{
    bool late = now - s->start_ns >= s->run->command_ns;

    if (!late && now < s->leave_ns)
        return;
    s->leave_ns = now + GQ_FLAGS_NS;
    if (gq_has_ended_lease(s->run))
        s->outcome = GQ_OUT_LEFT;
    else if (late)
        s->outcome = GQ_OUT_TIMED_OUT;
}

/*
 * Polls for the CQE and returns s->outcome. The clock is read while the load of
 * the CQE is outstanding, and shows a time before it.
 */
GQ_FN uint32_t gq_single_poll(struct gq_single *s)
{
    uint64_t now = gq_clock_ns();
    uint32_t dw3 = gq_load_cqe(&s->port->cq[s->at.entry]);

    if (NVME_CQE_PHASE(dw3 >> 16) == s->at.phase)
        gq_single_take_cqe(s, dw3);
    else
        gq_single_watch(s, now);
    return s->outcome;
}

#endif
