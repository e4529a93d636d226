/*
 * The queue protocol: how a group of lanes drives one queue pair. Written once; nvcc compiles it
 * for warps, the C compiler for a host thread that plays 1 or 32 lanes.
 *
 * The group owns the queue pair: nobody else touches its rings or doorbells, hence no locks and
 * no atomics. It works through its share of a list, of commands (gq_list_protocol.h) or of reads
 * (gq_reads_protocol.h). A round:
 *
 *   reserve  how many commands can go now: free CIDs, what is ready
 *   peeked     the next CQEs are loaded; if something goes, nobody waits for them yet
 *   put      the lanes write that many SQEs side by side
 *   fetch    what goes next is loaded
 *   publish  one fence, then both doorbells
 *   harvest  CQEs in arrival order, told new from old by the phase
 *   retire   each CQE finds its command by CID; the CID is freed
 *   watch    flags of the host, deadlines
 *
 * Over a bus a round costs one round trip: the fence waits for CQEs, commands and SQEs at once, and
 * what completed is seen to while the controller has work again. A round that sends nothing has no
 * fence: its peeked waits for itself. CQ doorbells that could go alone wait for the next SQ
 * doorbell, for want of work, or until half of the CQ is owed.
 *
 * At most depth - 1 commands are in flight. That bounds the CQ as well, and it keeps the SQ from
 * overrunning without looking at SQHD: a completed command was fetched, so tail - head as the
 * controller knows it never exceeds what is in flight.
 *
 * Every function is called by all lanes together.
 *
 * "CQE seen, so data visible" (reads). A controller writes a command's data before its CQE. In
 * host memory both writes come from one requester to one target, and PCIe keeps posted writes in
 * order; on this side loads that come later stay behind the load of the phase (gq_fence.h). A
 * software controller posts the CQE only after its copies to GPU memory have completed
 * (nvme_dma_engine), which is the same promise. A drive that writes data into GPU memory and CQEs
 * into host memory aims at two targets, and nothing orders the two: there the engine flushes
 * GPUDirect writes after the run, before the caller is told (gq_cuda.c), and staging, which is read
 * during the run, is host memory (gq_engine.c).
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
 * A round costs trips over a bus, and hardly more for twice the commands: a lane has up to this
 * many of each kind of entry in it. Place h * lanes + lane is the lane's h-th.
 */
#ifndef GQ_EACH
#define GQ_EACH 4u
#endif

/* Commands of a list that go next, and the CIDs they will have. */
struct gq_lane_next {
    struct gq_cmd cmd[GQ_EACH];
    uint32_t cid[GQ_EACH];
};

/* The last dwords of CQEs. */
struct gq_peek {
    uint32_t dw3[GQ_EACH];
};

/* One group's view of its queue pair during a run. Same for all lanes, but for the group. */
struct gq_worker {
    struct gq_group group;
    const struct gq_run *run;
    const struct gq_port *port;
    struct gq_state *state;
    uint32_t rank; /* among run->n_queues */
    uint32_t sq_tail, cq_head, phase;
    uint32_t n_free; /* CIDs on the stack */
    uint32_t fresh;  /* of them, from the bottom on, never taken: entry i is CID i, not in memory */
    uint32_t share;  /* of the list, this group's */
    uint32_t fetched;       /* of the share, from its start */
    uint32_t sent;          /* commands */
    uint32_t progress;      /* rounds that got on */
    uint32_t cq_db_pending; /* completions taken since the last CQ doorbell */
    uint32_t outcome;
    uint64_t start_ns, now_ns, scan_ns, flags_ns; /* the last two: when to peeked again */
    uint32_t each;                             /* entries of a lane in a round, GQ_EACH at most */
    uint32_t peeks;                            /* CQEs that a round peeks at that sends something */
    GQ_LANE_MEMBER(struct gq_lane_next, next); /* gq_list_protocol.h */
};

/* What completions tell of their commands. */
struct gq_ended {
    uint32_t cmd[GQ_EACH]; /* its index; at least GQ_TRACKER_FREE: not to be believed */
    uint32_t tag[GQ_EACH]; /* as given to gq_post() */
    uint32_t status[GQ_EACH];
};

#define GQ_FLAGS_NS 500000u /* how soon a group notices what the host wants */

enum gq_round { GQ_ROUND_ENDED, GQ_ROUND_IDLE, GQ_ROUND_BUSY };

GQ_FN uint32_t gq_in_flight(const struct gq_worker *w)
{
    return w->port->depth - 1 - w->n_free;
}

/* Position in the list of this group's j-th command: groups of commands are dealt in turn. */
GQ_FN uint32_t gq_stripe(const struct gq_worker *w, uint32_t j)
{
    uint32_t shift = w->run->group_shift;
    uint32_t within = j & ((1u << shift) - 1);

    return ((((j >> shift) * w->run->n_queues) + w->rank) << shift) | within;
}

/* How many commands of the list are this group's. */
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
    w->share = gq_share(run, rank);
    w->fetched = 0;
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
     * As many turns in each lane (gq_lanes.h), and in each a store: port and state are there before
     * the first round then.
     */
    GQ_FOR_LANES(lane)
    {
        for (uint32_t first = 0; first < port->depth - 1; first += w->group.lanes) {
            uint32_t cid = first + lane;

            port->trackers[cid < port->depth - 1 ? cid : 0].cmd = GQ_TRACKER_FREE;
        }
    }
}

/* How many of n commands can go now. */
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

/* Inside a region: the CID of number i of the commands that go now. */
GQ_FN uint32_t gq_free_cid(const struct gq_worker *w, uint32_t i)
{
    uint32_t top = w->n_free - 1 - i;

    return top < w->fresh ? top : w->port->free_cids[top];
}

/* Inside a region: this lane's command is number i of those that go now, below gq_reserve(). */
GQ_FN void gq_post(const struct gq_worker *w, uint32_t i, uint32_t cid, const struct gq_cmd *cmd,
                   uint32_t index, uint32_t tag)
{
    const struct gq_port *port = w->port;
    uint32_t pos = w->sq_tail + i;

    if (pos >= port->depth)
        pos -= port->depth;
    port->trackers[cid].cmd = index;
    port->trackers[cid].tag = tag;
    port->trackers[cid].sent_ns = w->now_ns;
    gq_store_sqe(&port->sq[pos], w->run, cmd, cid);
}

/* After the region: n commands were put. */
GQ_FN void gq_advance(struct gq_worker *w, uint32_t n)
{
    w->sent += n;
    w->n_free -= n;
    w->fresh = w->n_free < w->fresh ? w->n_free : w->fresh;
    w->sq_tail += n;
    if (w->sq_tail >= w->port->depth)
        w->sq_tail -= w->port->depth;
}

/* Wakes a parked software controller; hardware and GPUs have nothing to wake. */
GQ_FN void gq_kick(const struct gq_run *run)
{
#ifdef __CUDACC__
    (void)run;
#else
    if (run->kick && run->kick->ops->kick)
        run->kick->ops->kick(run->kick);
#endif
}

/*
 * After a put. The lanes met since they wrote their entries; the completions that the CQ doorbell
 * gives back were taken in earlier rounds, and the controller may have their places.
 */
GQ_FN void gq_publish(struct gq_worker *w)
{
    gq_fence_entries();
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            if (w->cq_db_pending)
                gq_store_doorbell(w->port->cq_doorbell, w->cq_head);
            gq_store_doorbell(w->port->sq_doorbell, w->sq_tail);
        }
    }
    w->cq_db_pending = 0;
    gq_kick(w->run);
}

/* The CQ doorbell alone. It needs no fence: the lanes met after loads that acquired. */
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

/* Inside a region, of retire: what the CQE at a place says of its command. */
GQ_FN void gq_find_tracker(const struct gq_worker *w, uint32_t dw3, struct gq_ended *ended,
                           uint32_t h)
{
    const struct gq_port *port = w->port;
    uint32_t cid = dw3 & 0xffffu;

    if (cid < port->depth - 1) {
        ended->cmd[h] = port->trackers[cid].cmd;
        ended->tag[h] = port->trackers[cid].tag;
    }
    ended->status[h] = NVME_STATUS(dw3 >> 16);
}

/*
 * Place i of the peeked has the i-th of n completions: finds its command. A CID that is not in
 * flight, or comes twice, means that the controller and this queue no longer agree: nothing it says
 * later can be believed.
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
    /* Each place progress the slot it frees: of two with the same CID, one signature stays. */
    GQ_FOR_LANES(lane)
    {
        for (uint32_t h = 0; h < w->each; h++) {
            if (GQ_AT(ended).cmd[h] < GQ_TRACKER_FREE)
                port->trackers[GQ_AT(peeked).dw3[h] & 0xffffu].cmd =
                    GQ_TRACKER_FREE + h * w->group.lanes + lane;
        }
    }
    GQ_FOR_LANES(lane)
    {
        for (uint32_t h = 0; h < w->each; h++) {
            uint32_t cid = GQ_AT(peeked).dw3[h] & 0xffffu, i = h * w->group.lanes + lane;

            if (GQ_AT(ended).cmd[h] < GQ_TRACKER_FREE) {
                GQ_AT(bad) |= port->trackers[cid].cmd != GQ_TRACKER_FREE + i;
                port->free_cids[w->n_free + i] = cid;
            }
        }
    }
    if (GQ_BALLOT(bad) != 0)
        w->outcome = GQ_OUT_BROKEN;
    else
        w->n_free += n;
}

/*
 * Loads the next CQEs, place by place; returns how many. sends: the round has something to publish,
 * whose fence these loads wait for. Otherwise each waits for itself, so a lane loads one.
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

/* How many of the `n_peeked` CQEs are new. */
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

/* Of `n_peeked` CQEs. Returns how many commands completed, and the i-th of them at place i. */
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
 * The second half of a round that has put `sent` commands and n_peeked at `n_peeked` CQEs before
 * that. The doorbells go first, so that the controller has work meanwhile. CQ doorbells that could
 * go alone wait: see above.
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

/* Is a command in flight for longer than it may? */
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

/*
 * What the host wants, GQ_FLAG_*. All groups peeked at the same word, and a GPU fetches a word of
 * host memory for one of them after the other, a microsecond each: 30 M commands a second was all
 * that any number of groups could do when they n_peeked in every round. So they peeked now and
 * then, and tell the host in turn that they get on.
 */
GQ_FN uint32_t gq_flags(struct gq_worker *w)
{
    const struct gq_run *run = w->run;
    uint32_t flags = run->flags ? gq_load_flag(run->flags) : 0;

    w->flags_ns = w->now_ns + GQ_FLAGS_NS;
    if (run->cancel && gq_load_flag(run->cancel) != 0)
        flags |= GQ_FLAG_CANCEL;
    for (uint32_t i = 0; i < 2; i++) {
        if (run->leave[i] && gq_load_flag(run->leave[i]) == run->leave_value)
            flags |= GQ_FLAG_LEAVE;
    }
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gq_store_relaxed(&w->state->progress, w->progress);
    }
    return GQ_SAME32(flags);
}

/*
 * A cancelled group sends no more and drains; a deadline makes it leave with what is in flight, and
 * so does the host before a reset, which ends commands that are overdue as well: hence the peeked
 * at the flags before a deadline is blamed.
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

/* The end of a round. left: not all is sent; busy: something was done. */
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
 * Hands the queue back to the host. All results and the state are written before its outcome, so
 * that who sees the outcome may read them.
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
            gq_fence_results();
            gq_store_relaxed(&state->outcome, w->outcome);
        }
    }
}

#endif
