/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Posts the commands of one queue pair, polls for completions and handles them.
 */
#include <errno.h>
#include <string.h>

#include "blockdev/bd_nvme.h"
#include "support/clock.h"
#include "support/trace.h"

/*
 * Returns the first LBA of a command, or CDW10 and CDW11 of a command without
 * LBAs.
 */
static uint64_t sqe_lba(const struct nvme_sqe *sqe)
{
    return sqe->cdw10 | (uint64_t)sqe->cdw11 << 32;
}

static void post_within_deadline(struct bd_queue *q, struct bd_tracker *tracker)
{
    tracker->sqe.cid = (uint16_t)(tracker->sqe.cid + (1u << q->index_bits));
    tracker->busy = true;
    tracker->late = false;
    nvme_ring_post(&q->ring, &tracker->sqe);
    trace(TRACE_SUBMIT, tracker->sqe.cid, sqe_lba(&tracker->sqe), q->qp.qid, tracker->sqe.opcode,
          0);
    q->rung = false;
}

void bd_post(struct bd_queue *q, struct bd_tracker *tracker)
{
    const struct nvme_ctrlr *c = q->d->c;
    bool durable = tracker->io->op == BD_FLUSH || tracker->io->flags & BD_FUA ||
                   (tracker->io->op != BD_READ && !q->d->dev.info.volatile_cache);

    tracker->deadline = deadline_after_ms(c->io_timeout_ms + (durable ? c->t->durable_ms : 0));
    post_within_deadline(q, tracker);
}

static uint16_t nvme_poll_index_of(const struct bd_queue *q, const struct bd_tracker *tracker)
{
    return (uint16_t)(tracker - q->trackers);
}

void bd_tracker_put(struct bd_queue *q, struct bd_tracker *tracker)
{
    tracker->busy = false;
    q->free[q->nfree++] = nvme_poll_index_of(q, tracker);
}

/* Returns true if the controller does not support a command that is only a hint. */
static bool refused_hint(const struct bd_tracker *tracker, uint16_t status)
{
    unsigned code = status & 0x7ffu;

    return tracker->io->op == BD_DISCARD &&
           (code == NVME_ERR_INVALID_OPCODE || code == NVME_ERR_INVALID_FIELD);
}

/* True for an aborted command: one that had missed its deadline. */
static bool ended_by_us(uint16_t status)
{
    return (status & 0x7ffu) == NVME_ERR_ABORT_REQUESTED;
}

/*
 * Returns true if the command is to be sent again because access to the
 * namespace is about to change (ANA). The wait is that of the controller, not of
 * the command, which gets a new deadline each time.
 */
static bool nvme_poll_await_access(struct bd_queue *q, struct bd_tracker *tracker, uint16_t status)
{
    unsigned ms = q->d->c->info.transition_ms;

    if (!ms || !nvme_status_transition(status))
        return false;
    if (!tracker->transition_end)
        tracker->transition_end = deadline_after_ms(ms);
    if (now_ns() >= tracker->transition_end)
        return false;
    q->early = true;
    bd_post(q, tracker);
    return true;
}

/* Returns true if the command was sent again within its deadline. */
static bool nvme_poll_again(struct bd_queue *q, struct bd_tracker *tracker, uint16_t status)
{
    if (nvme_poll_await_access(q, tracker, status))
        return true;
    if (tracker->transition_end || !nvme_status_not_yet(status) ||
        deadline_after_ms(NVME_PATIENCE_MS) >= tracker->deadline)
        return false;
    q->early = true;
    post_within_deadline(q, tracker);
    return true;
}

static void nvme_poll_complete(struct bd_queue *q, struct bd_tracker *tracker, uint16_t status)
{
    int error = refused_hint(tracker, status) ? 0 : nvme_status_errno(status);

    if (nvme_poll_again(q, tracker, status))
        return;
    if (nvme_status_taken(status))
        nvme_ctrlr_set_taken(q->d->c);
    if (error && !ended_by_us(status))
        nvme_count(&q->d->c->counters.errors);
    if (error && nvme_status_retryable(status) && tracker->tries < BD_RETRIES) {
        tracker->tries++;
        bd_post(q, tracker);
        return;
    }
    if (error)
        bd_io_fail(tracker->io, ended_by_us(status) ? -ETIMEDOUT : error, status);
    else if (tracker->copy_to)
        memcpy(tracker->copy_to,
               (char *)q->bounce.addr + nvme_poll_index_of(q, tracker) * q->bounce_len,
               tracker->len);
    bd_tracker_put(q, tracker);
}

/* Returns the tracker of the command in flight with this CID, or NULL. */
static struct bd_tracker *nvme_poll_find(struct bd_queue *q, uint16_t cid)
{
    unsigned index = cid & ((1u << q->index_bits) - 1);

    if (index >= q->ntrackers || !q->trackers[index].busy || q->trackers[index].sqe.cid != cid)
        return NULL;
    return &q->trackers[index];
}

/*
 * Completions arrive in any order and name their command by CID. One whose CID
 * is not in flight is dropped; if a command was lost with it, that command's
 * deadline expires. One call handles at most a ring full of completions, so a
 * controller that produces them endlessly does not hold the caller here.
 */
bool bd_poll(struct bd_queue *q)
{
    struct nvme_cqe cqe;
    unsigned seen = 0, ended = 0, useful = 0;

    while (seen < q->ring.depth && nvme_ring_poll(&q->ring, &cqe)) {
        uint16_t status = NVME_STATUS(cqe.status);
        struct bd_tracker *tracker = nvme_poll_find(q, cqe.cid);

        seen++;
        if (!tracker)
            continue;
        trace(TRACE_COMPLETE, cqe.cid, sqe_lba(&tracker->sqe), q->qp.qid, tracker->sqe.opcode,
              status);
        ended++;
        useful += !ended_by_us(status);
        nvme_poll_complete(q, tracker, status);
    }
    if (seen)
        nvme_ring_release(&q->ring);
    if (useful) {
        q->proven = true;
        nvme_ctrlr_progress(q->d->c);
        bd_progress(q->d);
    }
    return ended;
}

bool bd_any_expired(const struct bd_queue *q, uint64_t now)
{
    for (unsigned i = 0; i < q->ntrackers; i++) {
        if (q->trackers[i].busy && q->trackers[i].deadline <= now)
            return true;
    }
    return false;
}
