/*
 * One command on an idle queue pair, by one lane: the shortest way there and back, for a small read
 * that somebody waits for. What is left of a round (gq_protocol.h):
 *
 *   send   SQE and the CQ doorbell that is owed, one fence, SQ doorbell
 *   look   at the one CQE that can come; at the clock, and now and then at what tells to leave
 *
 * No slot and no list of free CIDs is touched, and nothing is stored when the completion is seen.
 * The CID is the number of the SQ's entry: a CQE of the command before has another one, and is not
 * believed. The CQ doorbell waits for the next command, in front of whose fence it is stored; so
 * that fence is the last thing that has to wait for the bus, and who hands the queue on after the
 * completion has nothing of its own to wait for either: the fence ordered all that this lane
 * stored, but for the SQ doorbell, and the completion says that the doorbell has been there.
 *
 * Lanes that meet this one afterwards see the data: gq_load_cqe() acquires.
 */
#ifndef CUDA_QUEUE_GQ_SINGLE_H
#define CUDA_QUEUE_GQ_SINGLE_H

#include "cuda/queue/gq_protocol.h"
#include "cuda/queue/gq_reads_protocol.h"

/*
 * Where an idle queue pair stands. Rings have the same depth and each command has had its one
 * completion, so the SQ's tail and the CQ's head are the same entry.
 */
struct gq_position {
    uint32_t entry;         /* of both rings, the next */
    uint32_t phase;         /* of the CQE that will be there */
    uint32_t cq_db_pending; /* not 0: the CQ doorbell has not been told of `entry` yet */
};

struct gq_single {
    /* Of it: flags, leave, leave_value, kick, command_ns, budget_ns, nsid, opcode. */
    const struct gq_run *run;
    const struct gq_port *port;
    struct gq_position at;       /* of the command; when it is done, of the next */
    uint32_t outcome;            /* GQ_OUT_RUNNING, _DONE, _TIMED_OUT, _BROKEN, _LEFT */
    uint32_t status;             /* of the completion, when it is done: 0 or the drive's error */
    uint64_t start_ns, limit_ns; /* how long the command may take */
    uint64_t leave_ns;           /* when to look again whether to leave */
};

/*
 * The command that is the whole of a read: len bytes to byte `at` of the target, from its first
 * page on. cur: the read's first byte, and the extent that has it. False: it takes more than one
 * command, or none, or one that is staged.
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

/* Its own deadline, or the list's. */
GQ_FN uint64_t gq_single_limit(const struct gq_run *run)
{
    if (run->budget_ns && run->budget_ns < run->command_ns)
        return run->budget_ns;
    return run->command_ns;
}

/*
 * s has run, port and at, and is zero beside them; nothing is in flight. The command's time begins.
 */
GQ_FN void gq_single_start(struct gq_single *s)
{
    s->outcome = GQ_OUT_RUNNING;
    s->start_ns = gq_clock_ns();
    s->limit_ns = gq_single_limit(s->run);
    s->leave_ns = s->start_ns + GQ_FLAGS_NS;
}

/* In front of the fence: the completion before this command has been seen. */
GQ_FN void gq_single_ring_cq(const struct gq_single *s)
{
    if (s->at.cq_db_pending)
        gq_store_doorbell(s->port->cq_doorbell, s->at.entry);
}

/* Behind the fence. */
GQ_FN void gq_single_ring_sq(const struct gq_single *s)
{
    uint32_t next = s->at.entry + 1;

    gq_store_doorbell(s->port->sq_doorbell, next < s->port->depth ? next : 0);
    gq_kick(s->run);
}

/* s as for gq_single_start(). */
GQ_FN void gq_single_send(struct gq_single *s, const struct gq_cmd *cmd)
{
    gq_single_start(s);
    gq_store_sqe(&s->port->sq[s->at.entry], s->run, cmd, s->at.entry);
    gq_single_ring_cq(s);
    gq_fence_entries();
    gq_single_ring_sq(s);
}

/* A CQE is there. */
GQ_FN void gq_single_take_cqe(struct gq_single *s, uint32_t dw3)
{
    s->status = NVME_STATUS(dw3 >> 16);
    s->outcome = (dw3 & 0xffffu) == s->at.entry ? GQ_OUT_DONE : GQ_OUT_BROKEN;
    s->at.cq_db_pending = 1;
    if (++s->at.entry == s->port->depth) {
        s->at.entry = 0;
        s->at.phase ^= 1;
    }
}

/*
 * Before a deadline is blamed, too: a reset ends commands that are overdue (gq_watch). To be
 * cancelled is to send no more, and the only command is on its way.
 */
GQ_FN bool gq_single_must_leave(const struct gq_run *run)
{
    if (run->flags && gq_load_flag(run->flags) & GQ_FLAG_LEAVE)
        return true;
    for (uint32_t i = 0; i < 2; i++) {
        if (run->leave[i] && gq_load_flag(run->leave[i]) == run->leave_value)
            return true;
    }
    return false;
}

/* At `now`, or later, there was no CQE. */
GQ_FN void gq_single_watch(struct gq_single *s, uint64_t now)
{
    bool late = now - s->start_ns >= s->limit_ns;

    if (!late && now < s->leave_ns)
        return;
    s->leave_ns = now + GQ_FLAGS_NS;
    if (gq_single_must_leave(s->run))
        s->outcome = GQ_OUT_LEFT;
    else if (late)
        s->outcome = GQ_OUT_TIMED_OUT;
}

/* Returns s->outcome. The clock is on its way while the CQE is, and tells the time before it. */
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

/*
 * The only command of a list, on a queue that the host keeps (gq_state). What else the run tells,
 * the host works out: so that the end of the command is one store, and waits for nothing.
 *
 *   who drives   gq_single_send(), gq_single_poll() until it has ended, gq_single_report()
 *   the host     gq_single_complete(), when it has seen the outcome
 */

/*
 * state is what the host has, before the run. The ring's last entry is not for this road: its
 * number is no CID of gq_port.slots, by which commands that are left in flight are found.
 */
GQ_FN bool gq_single_suits(const struct gq_run *run, const struct gq_port *port,
                           const struct gq_state *state)
{
    return run->n_cmds == 1 && state->sq_tail == state->cq_head && state->sq_tail < port->depth - 1;
}

/* The command in flight, for who recovers the queue: as the slots of a round. */
GQ_FN void gq_single_track(const struct gq_single *s)
{
    for (uint32_t cid = 0; cid < s->port->depth - 1; cid++)
        s->port->trackers[cid].cmd = GQ_TRACKER_FREE;
    s->port->trackers[s->at.entry].cmd = 0;
}

/*
 * The outcome, and the status. What this lane stored for others to see was fenced before the
 * doorbell, but for the note of a command that is lost.
 */
GQ_FN void gq_single_report(const struct gq_single *s, struct gq_state *state)
{
    if (s->outcome == GQ_OUT_TIMED_OUT || s->outcome == GQ_OUT_LEFT) {
        gq_single_track(s);
        gq_fence_results();
    }
    gq_store_pair(&state->outcome, s->outcome, s->status);
}

/* state as it was before the run, but for outcome and status. */
GQ_FN void gq_single_complete(struct gq_state *state, uint32_t *result)
{
    bool done = state->outcome == GQ_OUT_DONE, seen = done || state->outcome == GQ_OUT_BROKEN;

    state->sq_tail++;
    state->cq_head += seen;
    state->cq_db_pending = done;
    state->in_flight = !done;
    state->sent = 1;
    if (done)
        *result = GQ_ENDED | state->status;
}

#endif
