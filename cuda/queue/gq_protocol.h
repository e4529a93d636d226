/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the queue protocol, by which a group of lanes drives one queue
 * pair. The protocol is written once. nvcc compiles it for warps, the C
 * compiler for a host thread that executes 1 or 32 lanes.
 *
 * The group owns the queue pair: no other thread accesses its rings or
 * doorbells, hence no locks and no atomics. It works through its share of a
 * list of reads (gq_reads_protocol.h). The
 * steps of a round are:
 *
 *   reserve   counts the commands that can be posted: free CIDs, prepared
 *             commands
 *   peek      loads the next CQEs, without waiting for them if the round posts
 *             commands
 *   post      the lanes write that many SQEs, one each at a time
 *   fetch     loads the work of the next round
 *   publish   one fence, then both doorbells
 *   poll      takes CQEs in order of arrival, recognised as new by the phase
 *   complete  finds the command of each CQE by CID and frees the CID
 *   watch     checks flags of the host and deadlines
 *
 * Over a bus a round costs one round trip: the fence waits for CQEs, commands
 * and SQEs at once, and completions are processed while the controller has work
 * again. A round that posts nothing has no fence: its peek waits by itself. A
 * CQ doorbell is stored together with the next SQ doorbell. It is stored alone
 * only if nothing completes or half of the CQ is pending.
 *
 * At most depth - 1 commands are in flight. This bounds the CQ as well, and
 * keeps the SQ from overrunning without a check of SQHD: a completed command
 * was fetched, so tail - head as the controller knows it never exceeds the
 * commands in flight.
 *
 * Every function is called by all lanes together.
 *
 * "CQE seen, so data visible" (reads). A controller writes a command's data
 * before its CQE. In host memory both writes come from one requester to one
 * target, and PCIe keeps posted writes in order; on this side later loads stay
 * behind the load of the phase (gq_fence.h). A software controller posts the
 * CQE only after its copies to GPU memory have completed, which gives the same
 * guarantee. A drive that writes data into GPU memory and CQEs into host memory
 * addresses two targets, and nothing orders the two.
 * There the engine flushes GPUDirect writes after the run, before the caller is
 * notified (gq_cuda.c), and staging, which is read during the run, is host
 * memory (gq_engine.c).
 */
#ifndef CUDA_QUEUE_GQ_PROTOCOL_H
#define CUDA_QUEUE_GQ_PROTOCOL_H

#include <stdbool.h>

#include "cuda/queue/gq_fence.h"
#include "cuda/queue/gq_lanes.h"
#include "cuda/queue/gq_work.h"

#ifndef __CUDACC__
#include "blockdev/transport.h"
#endif

/*
 * Maximum entries of each kind that a lane processes in a round. A round costs
 * trips over a bus, and hardly more for twice the commands. Entry h * lanes +
 * lane of a round is the lane's h-th.
 */
#ifndef GQ_EACH
#define GQ_EACH 4u
#endif

/* The last dwords of CQEs. */
struct gq_peek {
    uint32_t dw3[GQ_EACH];
};

/*
 * The state of a group's queue pair during a run. It is the same for all lanes,
 * except the group.
 */
struct gq_worker {
    struct gq_group group;
    const struct gq_run *run;
    const struct gq_port *port;
    struct gq_state *state;
    uint32_t rank; /* among run->n_queues */
    uint32_t sq_tail, cq_head, phase;
    uint32_t n_free;        /* CIDs on the stack */
    uint32_t fresh;         /* bottom entries never taken: entry i has index i */
    uint32_t first_cid;     /* CID of index 0 when it is first posted */
    uint32_t share;         /* commands of the list that belong to this group */
    uint32_t sent;          /* number of commands sent */
    uint32_t progress;      /* rounds that posted or completed something */
    uint32_t cq_db_pending; /* completions taken since the last CQ doorbell */
    uint32_t outcome;
    uint64_t start_ns, now_ns, scan_ns, flags_ns; /* the last two: time of the next check */
    uint32_t each;  /* entries of a lane in a round, at most GQ_EACH */
    uint32_t peeks; /* CQEs to peek at in a round that posts */
};

/* Holds the commands of completions. */
struct gq_ended {
    uint32_t cmd[GQ_EACH]; /* index of the command; >= GQ_TRACKER_FREE: invalid */
    uint32_t tag[GQ_EACH]; /* tag given to gq_post() */
    uint32_t status[GQ_EACH];
};

#define GQ_FLAGS_NS 500000u /* interval at which a group reads the host's flags */

enum gq_round { GQ_ROUND_ENDED, GQ_ROUND_IDLE, GQ_ROUND_BUSY };

GQ_FN uint32_t gq_in_flight(const struct gq_worker *w)
{
    return w->port->depth - 1 - w->n_free;
}

/*
 * Returns the index in the list of this group's command j. Groups of commands
 * are assigned in turn.
 */
GQ_FN uint32_t gq_stripe(const struct gq_worker *w, uint32_t j)
{
    uint32_t shift = w->run->group_shift;
    uint32_t within = j & ((1u << shift) - 1);

    return ((((j >> shift) * w->run->n_queues) + w->rank) << shift) | within;
}

/* Returns the number of commands of the list that belong to this group. */
GQ_FN uint32_t gq_share(const struct gq_run *run, uint32_t rank)
{
    uint32_t size = 1u << run->group_shift;
    uint32_t groups = (run->n_cmds + size - 1) >> run->group_shift;
    uint32_t mine, missing;

    if (rank >= groups)
        return 0;
    mine = (groups - rank - 1) / run->n_queues + 1;
    missing = (groups << run->group_shift) - run->n_cmds;
    return (mine << run->group_shift) - ((groups - 1) % run->n_queues == rank ? missing : 0);
}

GQ_FN void gq_begin(struct gq_worker *w, struct gq_group group, const struct gq_run *run,
                    const struct gq_port *port, struct gq_state *state, uint32_t rank)
{
    w->group = group;
    w->run = run;
    w->port = port;
    w->state = state;
    w->rank = rank;
    w->sq_tail = state->sq_tail;
    w->cq_head = state->cq_head;
    w->phase = state->phase;
    w->n_free = port->depth - 1;
    w->fresh = w->n_free;
    w->first_cid = state->first_cid;
    w->share = gq_share(run, rank);
    w->sent = 0;
    w->progress = 0;
    w->cq_db_pending = state->cq_db_pending;
    w->each = GQ_EACH;
    w->peeks = w->each * group.lanes;
    w->outcome = GQ_OUT_RUNNING;
    w->start_ns = GQ_SAME64(gq_clock_ns());
    w->now_ns = w->start_ns;
    w->flags_ns = w->start_ns;
    w->scan_ns = w->start_ns + run->command_ns / 8;
    /*
     * The number of iterations is the same in each lane (gq_lanes.h), and each
     * makes a store: port and state are loaded before the first round.
     */
    GQ_FOR_LANES(lane)
    {
        for (uint32_t first = 0; first < port->depth - 1; first += w->group.lanes) {
            uint32_t cid = first + lane;

            port->trackers[cid < port->depth - 1 ? cid : 0].cmd = GQ_TRACKER_FREE;
        }
    }
}

/* Returns how many of n commands can be posted now. */
GQ_FN uint32_t gq_reserve(const struct gq_worker *w, uint32_t n)
{
    if (w->outcome != GQ_OUT_RUNNING)
        return 0;
    return n < w->n_free ? n : w->n_free;
}

GQ_FN void gq_store_sqe(struct nvme_sqe *at, const struct gq_run *run, const struct gq_cmd *cmd,
                        uint32_t cid)
{
#ifdef __CUDACC__
    uint4 *out = (uint4 *)at;

    out[0] = make_uint4(run->opcode | cid << 16, run->nsid, 0, 0);
    out[1] = make_uint4(0, 0, (uint32_t)cmd->prp1, (uint32_t)(cmd->prp1 >> 32));
    out[2] = make_uint4((uint32_t)cmd->prp2, (uint32_t)(cmd->prp2 >> 32), (uint32_t)cmd->slba,
                        (uint32_t)(cmd->slba >> 32));
    out[3] = make_uint4(cmd->nlb, 0, 0, 0);
#else
    *at = (struct nvme_sqe){
        .opcode = (uint8_t)run->opcode,
        .cid = (uint16_t)cid,
        .nsid = run->nsid,
        .prp1 = cmd->prp1,
        .prp2 = cmd->prp2,
        .cdw10 = (uint32_t)cmd->slba,
        .cdw11 = (uint32_t)(cmd->slba >> 32),
        .cdw12 = cmd->nlb,
    };
#endif
}

/* Returns the index of a CID; it is below depth - 1 if it is that of a tracker. */
GQ_FN uint32_t gq_cid_index(const struct gq_port *port, uint32_t cid)
{
    return cid & gq_bits_of(port->depth - 1);
}

/* Returns the n-th CID after this one with the same index. */
GQ_FN uint32_t gq_next_cid(const struct gq_port *port, uint32_t cid, uint32_t n)
{
    uint32_t index = gq_bits_of(port->depth - 1);

    return (cid & index) | ((cid + n * (index + 1)) & GQ_CID_MASK & ~index);
}

/*
 * Called inside a region. Returns the CID of command i of those posted in this
 * round.
 */
GQ_FN uint32_t gq_free_cid(const struct gq_worker *w, uint32_t i)
{
    uint32_t top = w->n_free - 1 - i;

    return top < w->fresh ? top | w->first_cid : w->port->free_cids[top];
}

/* Called inside a region. Posts command i of this round; i is below gq_reserve(). */
GQ_FN void gq_post(const struct gq_worker *w, uint32_t i, uint32_t cid, const struct gq_cmd *cmd,
                   uint32_t index, uint32_t tag)
{
    const struct gq_port *port = w->port;
    struct gq_tracker *tracker = &port->trackers[gq_cid_index(port, cid)];
    uint32_t pos = w->sq_tail + i;

    if (pos >= port->depth)
        pos -= port->depth;
    tracker->cmd = index;
    tracker->cid_tag = cid << 16 | tag;
    tracker->sent_ns = w->now_ns;
    gq_store_sqe(&port->sq[pos], w->run, cmd, cid);
}

/* Called after the region in which n commands were posted. */
GQ_FN void gq_advance(struct gq_worker *w, uint32_t n)
{
    w->sent += n;
    w->n_free -= n;
    w->fresh = w->n_free < w->fresh ? w->n_free : w->fresh;
    w->sq_tail += n;
    if (w->sq_tail >= w->port->depth)
        w->sq_tail -= w->port->depth;
}

/* Notifies a parked software controller; does nothing for hardware and on a GPU. */
GQ_FN void gq_kick(const struct gq_run *run)
{
#ifdef __CUDACC__
    (void)run;
#else
    if (run->kick)
        nvme_wake(run->kick, 1);
#endif
}

/*
 * Stores the doorbells after the posts. The lanes have converged since they
 * wrote their entries. The completions that the CQ doorbell releases were taken
 * in earlier rounds, and the controller may reuse their entries. It is stored
 * when a quarter of the CQ is to be released: doorbells of several queues share
 * a cache line, which a software controller loads again after each store.
 */
GQ_FN void gq_publish(struct gq_worker *w)
{
    bool releases = w->cq_db_pending >= w->port->depth / 4;

    gq_fence_entries();
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            if (releases)
                gq_store_doorbell(w->port->cq_doorbell, w->cq_head);
            gq_store_doorbell(w->port->sq_doorbell, w->sq_tail);
        }
    }
    if (releases)
        w->cq_db_pending = 0;
    gq_kick(w->run);
}

/*
 * Stores only the CQ doorbell. It needs no fence, because the lanes have
 * converged after loads that acquired.
 */
GQ_FN void gq_ring_cq(struct gq_worker *w)
{
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gq_store_doorbell(w->port->cq_doorbell, w->cq_head);
    }
    w->cq_db_pending = 0;
    gq_kick(w->run);
}

/* Called inside a region. Finds the command of a CQE. */
GQ_FN void gq_find_tracker(const struct gq_worker *w, uint32_t dw3, struct gq_ended *ended,
                           uint32_t h)
{
    const struct gq_port *port = w->port;
    uint32_t cid = dw3 & 0xffffu, index = gq_cid_index(port, cid);

    if (index < port->depth - 1) {
        const struct gq_tracker *tracker = &port->trackers[index];

        ended->cmd[h] = GQ_TRACKER_CID(tracker) == cid ? tracker->cmd : GQ_TRACKER_FREE;
        ended->tag[h] = tracker->cid_tag & 0xffffu;
    }
    ended->status[h] = NVME_STATUS(dw3 >> 16);
}

/*
 * Finds the command of each completion: entry i of peeked is the i-th of n. A
 * CID that is not in flight, or occurs twice, means that controller and queue
 * disagree; later completions are not trusted. The CID is freed as its
 * successor.
 */
GQ_FN void gq_complete(struct gq_worker *w, GQ_LANE_PARAM(struct gq_peek, peeked), uint32_t n,
                       GQ_LANE_OUT(struct gq_ended, ended))
{
    const struct gq_port *port = w->port;
    GQ_LANE_VAR(uint32_t, bad);

    GQ_FOR_LANES(lane)
    {
        for (uint32_t h = 0; h < w->each; h++) {
            GQ_AT(ended).cmd[h] = GQ_TRACKER_FREE;
            if (h * w->group.lanes + lane < n) {
                gq_find_tracker(w, GQ_AT(peeked).dw3[h], &GQ_AT(ended), h);
                GQ_AT(bad) |= GQ_AT(ended).cmd[h] >= GQ_TRACKER_FREE;
            }
        }
    }
    /*
     * Each entry marks the tracker that it frees; of two with the same CID, one
     * mark stays.
     */
    GQ_FOR_LANES(lane)
    {
        for (uint32_t h = 0; h < w->each; h++) {
            if (GQ_AT(ended).cmd[h] < GQ_TRACKER_FREE)
                port->trackers[gq_cid_index(port, GQ_AT(peeked).dw3[h])].cmd =
                    GQ_TRACKER_FREE + h * w->group.lanes + lane;
        }
    }
    GQ_FOR_LANES(lane)
    {
        for (uint32_t h = 0; h < w->each; h++) {
            uint32_t cid = GQ_AT(peeked).dw3[h] & 0xffffu, i = h * w->group.lanes + lane;

            if (GQ_AT(ended).cmd[h] < GQ_TRACKER_FREE) {
                GQ_AT(bad) |= port->trackers[gq_cid_index(port, cid)].cmd != GQ_TRACKER_FREE + i;
                port->free_cids[w->n_free + i] = gq_next_cid(port, cid, 1);
            }
        }
    }
    if (GQ_BALLOT(bad) != 0)
        w->outcome = GQ_OUT_BROKEN;
    else
        w->n_free += n;
}

/*
 * Loads the next CQEs and returns their number. `sends` means that the round
 * publishes, and the fence waits for these loads. Otherwise each load waits by
 * itself, so a lane loads only one.
 */
GQ_FN uint32_t gq_peek(const struct gq_worker *w, bool sends, GQ_LANE_OUT(struct gq_peek, peeked))
{
    const struct gq_port *port = w->port;
    uint32_t in_flight = gq_in_flight(w), n = sends ? w->peeks : w->group.lanes;

    n = in_flight < n ? in_flight : n;
    if (n == 0)
        return 0;
    GQ_FOR_LANES(lane)
    {
        for (uint32_t h = 0; h < w->each; h++) {
            uint32_t i = h * w->group.lanes + lane, pos = w->cq_head + i;

            if (i < n) {
                const struct nvme_cqe *cqe = &port->cq[pos < port->depth ? pos : pos - port->depth];

                GQ_AT(peeked).dw3[h] = sends || h > 0 ? gq_peek_cqe(cqe) : gq_load_cqe(cqe);
            }
        }
    }
    return n;
}

/* Returns how many of the n_peeked CQEs are new. */
GQ_FN uint32_t gq_count_new(const struct gq_worker *w, GQ_LANE_PARAM(struct gq_peek, peeked),
                            uint32_t n_peeked)
{
    uint32_t n = 0;

    for (uint32_t h = 0; h < w->each; h++) {
        GQ_LANE_VAR(uint32_t, is_new);

        GQ_FOR_LANES(lane)
        {
            uint32_t i = h * w->group.lanes + lane;
            uint32_t phase = w->cq_head + i < w->port->depth ? w->phase : w->phase ^ 1;

            GQ_AT(is_new) = i < n_peeked && NVME_CQE_PHASE(GQ_AT(peeked).dw3[h] >> 16) == phase;
        }
        n += n == h * w->group.lanes ? gq_prefix_ones(GQ_BALLOT(is_new)) : 0;
    }
    return n;
}

/*
 * Returns how many of the n_peeked CQEs are completions, and stores the i-th at
 * entry i.
 */
GQ_FN uint32_t gq_poll(struct gq_worker *w, GQ_LANE_PARAM(struct gq_peek, peeked),
                       uint32_t n_peeked, GQ_LANE_OUT(struct gq_ended, ended))
{
    uint32_t depth = w->port->depth, n = n_peeked ? gq_count_new(w, peeked, n_peeked) : 0;

    if (n == 0)
        return 0;
    w->cq_head += n;
    if (w->cq_head >= depth) {
        w->cq_head -= depth;
        w->phase ^= 1;
    }
    w->cq_db_pending += n;
    gq_complete(w, peeked, n, ended);
    return n;
}

/*
 * Does the second half of a round that has posted `sent` commands and peeked at
 * n_peeked CQEs before. The doorbells come first, so that the controller has
 * work meanwhile.
 */
GQ_FN uint32_t gq_publish_and_poll(struct gq_worker *w, uint32_t sent,
                                   GQ_LANE_PARAM(struct gq_peek, peeked), uint32_t n_peeked,
                                   GQ_LANE_OUT(struct gq_ended, ended))
{
    uint32_t n;

    if (sent)
        gq_publish(w);
    n = gq_poll(w, peeked, n_peeked, ended);
    if (!sent && w->cq_db_pending && (n == 0 || w->cq_db_pending >= w->port->depth / 2))
        gq_ring_cq(w);
    return n;
}

/* Returns true if a command in flight has passed its deadline. */
GQ_FN bool gq_overdue(const struct gq_worker *w)
{
    const struct gq_port *port = w->port;
    GQ_LANE_VAR(uint32_t, late);

    GQ_FOR_LANES(lane)
    {
        for (uint32_t first = 0; first < port->depth - 1; first += w->group.lanes) {
            uint32_t cid = first + lane;

            if (cid < port->depth - 1 && port->trackers[cid].cmd < GQ_TRACKER_FREE &&
                w->now_ns - port->trackers[cid].sent_ns >= w->run->command_ns)
                GQ_AT(late) = 1;
        }
    }
    return GQ_BALLOT(late) != 0;
}

/* Returns true if a lease of the run has ended. */
GQ_FN bool gq_has_ended_lease(const struct gq_run *run)
{
    bool ended = false;

    for (uint32_t i = 0; i < 2; i++)
        ended |= run->leave[i] && gq_load_flag(run->leave[i]) == run->leave_value;
    return ended;
}

/*
 * Returns the host's flags, GQ_FLAG_*. All groups read the same word, and a GPU
 * fetches a word of host memory for one group after the other, a microsecond
 * each. When they read it in every round, 30 M commands per second was the
 * limit for any number of groups. So they read it at intervals, and report
 * their progress at the same time.
 */
GQ_FN uint32_t gq_flags(struct gq_worker *w)
{
    const struct gq_run *run = w->run;
    uint32_t flags = run->flags ? gq_load_flag(run->flags) : 0;

    w->flags_ns = w->now_ns + GQ_FLAGS_NS;
    if (run->cancel && gq_load_flag(run->cancel) != 0)
        flags |= GQ_FLAG_CANCEL;
    if (gq_has_ended_lease(run))
        flags |= GQ_FLAG_LEAVE;
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gq_store_relaxed(&w->state->progress, w->progress);
    }
    return GQ_SAME32(flags);
}

/*
 * Checks deadlines and flags. A cancelled group posts no more and drains. A
 * group past a deadline ends with commands in flight, and so does one that must
 * leave before a reset. A reset ends overdue commands as well, so the flags are
 * read before a deadline is reported.
 */
GQ_FN void gq_watch(struct gq_worker *w)
{
    const struct gq_run *run = w->run;
    uint32_t flags = 0;
    bool late;

    w->now_ns = GQ_SAME64(gq_clock_ns());
    if (w->outcome == GQ_OUT_BROKEN)
        return;
    late = run->budget_ns && w->now_ns - w->start_ns >= run->budget_ns;
    if (w->now_ns >= w->scan_ns) {
        w->scan_ns = w->now_ns + run->command_ns / 8;
        late = late || gq_overdue(w);
    }
    if (late || w->now_ns >= w->flags_ns)
        flags = gq_flags(w);
    if (flags & GQ_FLAG_LEAVE)
        w->outcome = GQ_OUT_LEFT;
    else if (late)
        w->outcome = GQ_OUT_TIMED_OUT;
    else if (flags & GQ_FLAG_CANCEL)
        w->outcome = GQ_OUT_CANCELLED;
}

/* Ends a round. `left` means that commands remain, `busy` that something was done. */
GQ_FN enum gq_round gq_end_round(struct gq_worker *w, bool left, bool busy)
{
    w->progress += busy;
    if (gq_in_flight(w) == 0 && !left && w->outcome != GQ_OUT_BROKEN) {
        w->outcome = GQ_OUT_DONE;
        return GQ_ROUND_ENDED;
    }
    gq_watch(w);
    if (w->outcome >= GQ_OUT_TIMED_OUT)
        return GQ_ROUND_ENDED;
    if (w->outcome == GQ_OUT_CANCELLED && gq_in_flight(w) == 0)
        return GQ_ROUND_ENDED;
    return busy ? GQ_ROUND_BUSY : GQ_ROUND_IDLE;
}

/*
 * Returns the queue to the host. All results and the state are stored before
 * its outcome, so that a reader of the outcome may read them.
 */
GQ_FN void gq_end(struct gq_worker *w)
{
    struct gq_state *state = w->state;

    if (w->cq_db_pending)
        gq_ring_cq(w);
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            state->sq_tail = w->sq_tail;
            state->cq_head = w->cq_head;
            state->phase = w->phase;
            state->cq_db_pending = 0;
            state->in_flight = gq_in_flight(w);
            state->sent = w->sent;
            state->progress = w->progress;
            state->first_cid = gq_next_cid(w->port, w->first_cid, w->progress + 1);
            gq_fence_results();
            gq_store_relaxed(&state->outcome, w->outcome);
        }
    }
}

#endif
