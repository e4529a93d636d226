/* SPDX-License-Identifier: BSD-2-Clause */
/* Runs a batch of transfers over one queue pair: fill, ring, harvest. */
#include <errno.h>
#include <string.h>

#include "blockdev/bd_nvme.h"
#include "support/clock.h"
#include "support/wait.h"

#define SLEEPS_PER_CHECK   512u /* some 50 ms: with vfio-user a register takes milliseconds */
#define HARVESTS_PER_CHECK 64u

static void post_within_deadline(struct bd_queue *q, struct bd_slot *slot)
{
    slot->busy = true;
    nvme_ring_post(&q->ring, &slot->sqe);
    q->rung = false;
}

void bd_post(struct bd_queue *q, struct bd_slot *slot)
{
    const struct nvme_ctrlr *c = q->d->c;
    bool durable = slot->io->op == BD_FLUSH || slot->io->flags & BD_FUA ||
                   (slot->io->op != BD_READ && !q->d->dev.info.volatile_cache);

    slot->deadline = deadline_after_ms(c->io_timeout_ms + (durable ? c->t->durable_ms : 0));
    post_within_deadline(q, slot);
}

void bd_slot_put(struct bd_queue *q, struct bd_slot *slot)
{
    slot->busy = false;
    q->free[q->nfree++] = slot->sqe.cid;
}

static bool idle(const struct bd_queue *q)
{
    return q->nfree == q->nslots;
}

static void fill(struct bd_queue *q, struct bd_batch *b)
{
    while (q->nfree > 0 && bd_cut(q, b, q->free[q->nfree - 1])) {
        q->nfree--;
        bd_post(q, &q->slots[q->free[q->nfree]]);
    }
}

static void ring(struct bd_queue *q)
{
    if (q->rung)
        return;
    nvme_ring_doorbell(&q->ring);
    nvme_ctrlr_kick(q->d->c);
    q->rung = true;
}

/* The controller does not do this command, which the transfer can do without. */
static bool refused_hint(const struct bd_slot *slot, uint16_t status)
{
    unsigned code = status & 0x7ffu;

    return slot->io->op == BD_DISCARD &&
           (code == NVME_ERR_INVALID_OPCODE || code == NVME_ERR_INVALID_FIELD);
}

/* An Abort is sent only to commands that have missed their deadline. */
static bool ended_by_us(uint16_t status)
{
    return (status & 0x7ffu) == NVME_ERR_ABORT_REQUESTED;
}

/* Tried again and again, but not in a hurry. */
static void pause_if_early(struct bd_queue *q)
{
    const struct timespec pause = {.tv_sec = 0, .tv_nsec = NVME_PATIENCE_NS};

    if (q->early)
        nanosleep(&pause, NULL);
    q->early = false;
}

static void complete(struct bd_queue *q, struct bd_slot *slot, uint16_t status)
{
    int error = refused_hint(slot, status) ? 0 : nvme_status_errno(status);

    if (nvme_status_not_yet(status) && now_ns() + NVME_PATIENCE_NS < slot->deadline) {
        q->early = true;
        post_within_deadline(q, slot);
        return;
    }
    if (error && nvme_status_retryable(status) && slot->tries < BD_RETRIES) {
        slot->tries++;
        bd_post(q, slot);
        return;
    }
    if (error)
        bd_io_fail(slot->io, ended_by_us(status) ? -ETIMEDOUT : error, status);
    else if (slot->copy_to)
        memcpy(slot->copy_to, (char *)q->bounce.addr + slot->sqe.cid * q->bounce_len, slot->len);
    bd_slot_put(q, slot);
}

/*
 * Completions come in any order and name their command by CID. A completion whose CID is not in
 * flight is dropped; if a command was lost with it, that command's deadline expires. At most a ring
 * full of completions is taken in one call: a controller that produces completions without end does
 * not keep the caller here.
 */
bool bd_poll(struct bd_queue *q)
{
    struct nvme_cqe cqe;
    unsigned seen = 0, ended = 0, useful = 0;

    while (seen < q->ring.depth && nvme_ring_poll(&q->ring, &cqe)) {
        uint16_t status = NVME_STATUS(cqe.status);

        seen++;
        if (cqe.cid >= q->nslots || !q->slots[cqe.cid].busy)
            continue;
        ended++;
        useful += !ended_by_us(status);
        complete(q, &q->slots[cqe.cid], status);
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
    for (unsigned i = 0; i < q->nslots; i++) {
        if (q->slots[i].busy && q->slots[i].deadline <= now)
            return true;
    }
    return false;
}

/*
 * Waits a little. False when waiting any longer is of no use, unless completions have come during
 * the wait: it may have been long, when other work had the processor.
 */
static bool wait_some(struct bd_queue *q, struct poll_wait *wait, unsigned *sleeps)
{
    if (!poll_wait_once(wait))
        return true;
    if (++*sleeps % SLEEPS_PER_CHECK == 0 && !nvme_ctrlr_alive(q->d->c))
        return false;
    return !bd_any_expired(q, now_ns());
}

/* Completions that go on coming must not hide a command that is lost among them. */
static bool time_to_look(const struct bd_queue *q, unsigned *harvests)
{
    return ++*harvests % HARVESTS_PER_CHECK == 0 && bd_any_expired(q, now_ns());
}

/* A dead queue ends its batch: commands not yet sent fail like those that were. */
static void fail_rest(struct bd_batch *b)
{
    for (; b->at < b->n; b->at++)
        bd_io_fail(&b->ios[b->at], -EIO, 0);
}

void bd_run(struct bd_queue *q, struct bd_batch *b)
{
    struct poll_wait wait = {0};
    unsigned sleeps = 0, harvests = 0;

    while (!q->dead) {
        if (bd_must_park(q->d) || q->broken) {
            bd_recover(q);
            continue;
        }
        fill(q, b);
        if (idle(q))
            return;
        ring(q);
        if (bd_poll(q)) {
            poll_wait_reset(&wait);
            pause_if_early(q);
            if (time_to_look(q, &harvests))
                bd_recover(q);
        } else if (!wait_some(q, &wait, &sleeps) && !bd_poll(q)) {
            bd_recover(q);
        }
    }
    fail_rest(b);
}
