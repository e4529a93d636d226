/* Runs a batch of transfers over one queue pair: fill, ring, harvest, and what goes wrong. */
#include <errno.h>
#include <string.h>

#include "blockdev/bd_nvme.h"
#include "blockdev/wait.h"

#define SLEEPS_PER_CHECK 64u /* reading a register of real hardware is slow */

static void post(struct bd_queue *q, struct bd_slot *slot)
{
    slot->busy = true;
    slot->deadline = nvme_deadline_ms(q->d->c->io_timeout_ms);
    nvme_ring_post(&q->ring, &slot->sqe);
    q->rung = false;
}

static void put_slot(struct bd_queue *q, struct bd_slot *slot)
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
        post(q, &q->slots[q->free[q->nfree]]);
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

static void complete(struct bd_queue *q, struct bd_slot *slot, uint16_t status)
{
    int error = refused_hint(slot, status) ? 0 : nvme_status_errno(status);

    if (error && nvme_status_retryable(status) && slot->tries < BD_RETRIES) {
        slot->tries++;
        post(q, slot);
        return;
    }
    if (error)
        bd_io_fail(slot->io, error, status);
    else if (slot->copy_to)
        memcpy(slot->copy_to, (char *)q->bounce.addr + slot->sqe.cid * q->bounce_len, slot->len);
    put_slot(q, slot);
}

/*
 * Completions come in any order and name their command by CID. One that names no command under
 * way tells us nothing; should a command be lost with it, its deadline finds it.
 */
static bool harvest(struct bd_queue *q)
{
    struct nvme_cqe cqe;
    bool any = false;

    while (nvme_ring_poll(&q->ring, &cqe)) {
        any = true;
        if (cqe.cid < q->nslots && q->slots[cqe.cid].busy)
            complete(q, &q->slots[cqe.cid], NVME_STATUS(cqe.status));
    }
    if (any) {
        nvme_ring_release(&q->ring);
        bd_progress(q->d);
    }
    return any;
}

static bool any_expired(const struct bd_queue *q)
{
    uint64_t now = nvme_now_ns();

    for (unsigned i = 0; i < q->nslots; i++) {
        if (q->slots[i].busy && q->slots[i].deadline <= now)
            return true;
    }
    return false;
}

/* Ends commands under way: those past their deadline, or all of them. */
static void end_commands(struct bd_queue *q, bool all, int error)
{
    uint64_t now = nvme_now_ns();

    for (unsigned i = 0; i < q->nslots; i++) {
        struct bd_slot *slot = &q->slots[i];

        if (slot->busy && (all || slot->deadline <= now || slot->tries >= BD_RETRIES)) {
            bd_io_fail(slot->io, error, 0);
            put_slot(q, slot);
        }
    }
}

/*
 * Commands that were merely in the same queue are sent again. Reads and writes of the same bytes
 * can be repeated: the deletion of the queue has ended the first attempt.
 */
static void repost_rest(struct bd_queue *q)
{
    for (unsigned i = 0; i < q->nslots; i++) {
        if (q->slots[i].busy) {
            q->slots[i].tries++;
            post(q, &q->slots[i]);
        }
    }
}

/* The memory of a dead queue may still be written by the controller: kept until it is reset. */
static void bury(struct bd_queue *q, struct bd_batch *b, int error)
{
    q->dead = true;
    nvme_dma_orphan(q->d->c, &q->lists);
    nvme_dma_orphan(q->d->c, &q->bounce);
    end_commands(q, true, error);
    for (; b->at < b->n; b->at++)
        bd_io_fail(&b->ios[b->at], error, 0);
}

/*
 * A command missed its deadline, or the controller has failed. Nothing is reported as ended
 * before the deletion of the queue guarantees that no late data can arrive in anyone's buffer.
 */
static void recover(struct bd_queue *q, struct bd_batch *b)
{
    int rc = nvme_qpair_recreate(q->d->c, &q->qp);

    bd_progress(q->d);
    if (rc) {
        bury(q, b, nvme_ctrlr_failed(q->d->c) ? -EIO : -ETIMEDOUT);
        return;
    }
    nvme_ring_init(&q->ring, &q->qp);
    end_commands(q, false, -ETIMEDOUT);
    repost_rest(q);
}

/*
 * Waits a little. False when waiting any longer is of no use, unless completions have come during
 * the wait: it may have been long, when other work had the processor.
 */
static bool wait_some(struct bd_queue *q, struct nvme_wait *wait, unsigned *sleeps)
{
    if (!nvme_wait_once(wait))
        return true;
    if (++*sleeps % SLEEPS_PER_CHECK == 0 && nvme_ctrlr_check_fatal(q->d->c))
        return false;
    return !any_expired(q);
}

void bd_run(struct bd_queue *q, struct bd_batch *b)
{
    struct nvme_wait wait = {0};
    unsigned sleeps = 0;

    while (!q->dead) {
        fill(q, b);
        if (idle(q))
            break;
        ring(q);
        if (harvest(q))
            nvme_wait_reset(&wait);
        else if (!wait_some(q, &wait, &sleeps) && !harvest(q))
            recover(q, b);
    }
}
