/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Drives the queue pairs of the block device. Cuts transfers into commands of
 * at most MDTS bytes, whose PRPs refer to the caller's buffer or to the bounce
 * buffer. Posts the commands and handles their completions. Threads wait in
 * order for a queue, own it exclusively, and park while the controller is
 * reset.
 */
#include <assert.h>
#include <errno.h>
#include <nvme/types.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "blockdev/bd_nvme.h"
#include "blockdev/nvme/nvme_prp.h"
#include "support/clock.h"
#include "support/trace.h"

#define BD_LEAVE_MS 1u /* interval at which a waiting borrower asks whether to leave */

/* Describes a thread that waits for a queue. Lives on the stack of that thread. */
struct bd_waiter {
    pthread_cond_t cond;
    struct bd_queue *got;
    bool refused; /* the device has failed */
    TAILQ_ENTRY(bd_waiter) entry;
};

void bd_progress(struct nvme_bdev *d)
{
    /*
     * Readers only compare the counter with an earlier value, so the addition
     * orders no other memory.
     */
    __atomic_fetch_add(&d->progress, 1, __ATOMIC_RELAXED);
}

bool bd_must_park(const struct nvme_bdev *d)
{
    /*
     * A relaxed load is enough. A thread that misses the store sees the new
     * value in its next round, and the lock orders all other accesses.
     */
    return __atomic_load_n(&d->stop, __ATOMIC_RELAXED);
}

static void wait_go_on(struct nvme_bdev *d)
{
    while (d->stop)
        pthread_cond_wait(&d->go_on, &d->lock);
}

void bd_owner_enter(struct nvme_bdev *d)
{
    wait_go_on(d);
    d->owners++;
}

static void signal_parked(struct nvme_bdev *d)
{
    if (d->parked == d->owners)
        pthread_cond_signal(&d->all_parked);
}

void bd_owner_leave(struct nvme_bdev *d)
{
    d->owners--;
    signal_parked(d);
}

int bd_park(struct nvme_bdev *d, bool reset, unsigned epoch)
{
    int rc = 0;

    pthread_mutex_lock(&d->lock);
    d->parked++;
    signal_parked(d);
    pthread_mutex_unlock(&d->lock);
    if (reset)
        rc = nvme_ctrlr_reset(d->c, epoch);
    pthread_mutex_lock(&d->lock);
    wait_go_on(d);
    d->parked--;
    if (d->failed)
        rc = -EIO;
    pthread_mutex_unlock(&d->lock);
    return rc;
}

/*
 * The Aborts take up to two admin timeouts. Then each queue may wait for all
 * other queues twice: once while recovery creates them again, and once while a
 * reset does.
 */
uint64_t bd_recover_ms(const struct nvme_bdev *d)
{
    return BD_LATE_MS + (2 + 2 * (uint64_t)d->nqueues) * d->c->admin_timeout_ms +
           nvme_ctrlr_reset_ms(d->c);
}

/* Returns a time longer than an owner ever needs without making progress. */
static uint64_t stuck_ms(const struct nvme_bdev *d)
{
    return d->c->t->durable_ms + 2 * (d->c->io_timeout_ms + bd_recover_ms(d));
}

static bool must_leave(struct bd_leave *leave)
{
    return leave && leave->now(leave);
}

/* Waits for a queue as long as the device makes progress. */
static int wait_turn(struct nvme_bdev *d, struct bd_leave *leave, struct bd_queue **out)
{
    struct bd_waiter w = {0};
    uint64_t seen = __atomic_load_n(&d->progress, __ATOMIC_RELAXED);
    uint64_t give_up = deadline_after_ms(stuck_ms(d));
    int rc = 0;

    pthread_cond_init(&w.cond, NULL);
    TAILQ_INSERT_TAIL(&d->waiters, &w, entry);
    while (!w.got && !w.refused && !rc) {
        uint64_t now;

        cond_wait_until(&w.cond, &d->lock,
                        deadline_after_ms(leave ? BD_LEAVE_MS : d->c->io_timeout_ms));
        now = __atomic_load_n(&d->progress, __ATOMIC_RELAXED);
        if (now != seen)
            give_up = deadline_after_ms(stuck_ms(d));
        else if (!w.got && now_ns() >= give_up)
            rc = -ETIMEDOUT;
        if (!w.got && !rc && must_leave(leave))
            rc = -ERESTART;
        seen = now;
    }
    if (!w.got)
        TAILQ_REMOVE(&d->waiters, &w, entry);
    pthread_cond_destroy(&w.cond);
    *out = w.got;
    if (w.got)
        return 0;
    return rc ? rc : -EIO; /* refused */
}

void bd_queue_put(struct nvme_bdev *d, struct bd_queue *q)
{
    q->next = d->free;
    d->free = q;
}

static int take_free(struct nvme_bdev *d, struct bd_leave *leave, struct bd_queue **out)
{
    if (d->failed)
        return -EIO;
    if (!d->free)
        return wait_turn(d, leave, out);
    *out = d->free;
    d->free = d->free->next;
    return 0;
}

int bd_queue_take(struct nvme_bdev *d, struct bd_leave *leave, struct bd_queue **out)
{
    pthread_mutex_lock(&d->lock);
    int rc = take_free(d, leave, out);
    if (!rc)
        bd_owner_enter(d);
    if (!rc && d->failed) {
        bd_owner_leave(d);
        bd_queue_put(d, *out);
        rc = -EIO;
    }
    pthread_mutex_unlock(&d->lock);
    return rc;
}

void bd_fail(struct nvme_bdev *d)
{
    pthread_mutex_lock(&d->lock);
    d->failed = true;
    for (struct bd_waiter *w = TAILQ_FIRST(&d->waiters); w; w = TAILQ_NEXT(w, entry)) {
        w->refused = true;
        pthread_cond_signal(&w->cond);
    }
    pthread_mutex_unlock(&d->lock);
}

/*
 * Hands the queue to the first waiter, so that no later caller overtakes that
 * thread.
 */
void bd_queue_give(struct nvme_bdev *d, struct bd_queue *q)
{
    pthread_mutex_lock(&d->lock);
    bd_owner_leave(d);
    struct bd_waiter *w = TAILQ_FIRST(&d->waiters);
    if (w && !d->failed) {
        TAILQ_REMOVE(&d->waiters, w, entry);
        w->got = q;
        pthread_cond_signal(&w->cond);
    } else {
        bd_queue_put(d, q);
    }
    pthread_mutex_unlock(&d->lock);
}

static struct nvme_bdev *nvme_user_bdev_of(struct nvme_user *u)
{
    return (struct nvme_bdev *)(void *)((char *)u - offsetof(struct nvme_bdev, user));
}

void bd_ring_init(struct bd_queue *q)
{
    nvme_ring_init(&q->ring, &q->qp);
    q->rung = true;
    q->proven = false;
    q->broken = 0;
}

bool bd_queue_renew(struct bd_queue *q)
{
    q->lent = NULL;
    if (nvme_qpair_recreate(q->d->c, &q->qp)) {
        q->broken++;
        return false;
    }
    bd_ring_init(q);
    return true;
}

/* Waits until all owners have parked. No owner enters before nvme_user_resume(). */
static void nvme_user_stop(struct nvme_user *u)
{
    struct nvme_bdev *d = nvme_user_bdev_of(u);

    pthread_mutex_lock(&d->lock);
    __atomic_store_n(&d->stop, true, __ATOMIC_RELAXED);
    while (d->parked < d->owners)
        pthread_cond_wait(&d->all_parked, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

/*
 * Unmaps memory from a failed controller that could not be stopped and might
 * still write to it, so that transfers can be reported as ended.
 */
static void revoke_memory(struct nvme_bdev *d)
{
    for (unsigned i = 0; i < d->nqueues; i++) {
        nvme_dma_revoke(d->c, &d->queues[i].lists);
        nvme_dma_revoke(d->c, &d->queues[i].bounce);
    }
    pthread_rwlock_wrlock(&d->regions_lock);
    for (struct bd_region *r = LIST_FIRST(&d->regions); r; r = LIST_NEXT(r, entry))
        nvme_dma_revoke(d->c, &r->dma);
    pthread_rwlock_unlock(&d->regions_lock);
}

/* All owners are parked, so this thread may use their queues. */
static void nvme_user_resume(struct nvme_user *u, int err)
{
    struct nvme_bdev *d = nvme_user_bdev_of(u);

    for (unsigned i = 0; i < d->nqueues && !err; i++)
        d->queues[i].again = bd_queue_renew(&d->queues[i]);
    if (err && !nvme_ctrlr_settled(d->c))
        revoke_memory(d);
    bd_progress(d);
    if (err)
        bd_fail(d);
    pthread_mutex_lock(&d->lock);
    __atomic_store_n(&d->stop, false, __ATOMIC_RELAXED);
    pthread_cond_broadcast(&d->go_on);
    pthread_mutex_unlock(&d->lock);
}

void bd_user_init(struct nvme_bdev *d)
{
    pthread_cond_init(&d->all_parked, NULL);
    pthread_cond_init(&d->go_on, NULL);
    d->user.stop = nvme_user_stop;
    d->user.resume = nvme_user_resume;
    nvme_ctrlr_add_user(d->c, &d->user);
}

void bd_user_destroy(struct nvme_bdev *d)
{
    nvme_ctrlr_remove_user(d->c, &d->user);
    pthread_cond_destroy(&d->all_parked);
    pthread_cond_destroy(&d->go_on);
}

/* Returns the IOVA of the buffer, or 0 if the controller cannot reach the buffer. */
static uint64_t bd_region_iova(struct nvme_bdev *d, const void *buf, size_t len)
{
    uintptr_t start = (uintptr_t)buf;
    uint64_t iova = 0;

    pthread_rwlock_rdlock(&d->regions_lock);
    for (const struct bd_region *r = LIST_FIRST(&d->regions); r && !iova; r = LIST_NEXT(r, entry)) {
        uintptr_t base = (uintptr_t)r->dma.addr;

        if (start >= base && start - base < r->dma.len && len <= r->dma.len - (start - base))
            iova = r->dma.iova + (start - base);
    }
    pthread_rwlock_unlock(&d->regions_lock);
    return iova;
}

void *bd_region_alloc(struct bd_dev *dev, size_t len)
{
    struct nvme_bdev *d = (struct nvme_bdev *)dev;
    struct bd_region *r = malloc(sizeof(*r));

    if (!r)
        return NULL;
    if (nvme_dma_alloc(d->c, len, &r->dma)) {
        free(r);
        return NULL;
    }
    pthread_rwlock_wrlock(&d->regions_lock);
    LIST_INSERT_HEAD(&d->regions, r, entry);
    pthread_rwlock_unlock(&d->regions_lock);
    return r->dma.addr;
}

void bd_region_free(struct bd_dev *dev, void *buf, size_t len)
{
    struct nvme_bdev *d = (struct nvme_bdev *)dev;
    struct bd_region *r;

    (void)len;
    pthread_rwlock_wrlock(&d->regions_lock);
    r = LIST_FIRST(&d->regions);
    while (r && r->dma.addr != buf)
        r = LIST_NEXT(r, entry);
    assert(r && "not from bd_dma_alloc of this device");
    LIST_REMOVE(r, entry);
    pthread_rwlock_unlock(&d->regions_lock);
    nvme_dma_free(d->c, &r->dma);
    free(r);
}

#define DWORD_MASK   3u
#define DSM_MAX_LBAS (1ull << 31)

void bd_io_fail(struct bd_io *io, int error, uint16_t status)
{
    if (io->error)
        return;
    io->error = error;
    io->nvme_status = status;
}

void bd_io_lose(struct nvme_bdev *d, struct bd_io *io, int error)
{
    if (!io->error)
        nvme_count(&d->c->counters.errors);
    bd_io_fail(io, error, 0);
}

static char *tracker_bounce(const struct bd_queue *q, uint16_t index)
{
    return (char *)q->bounce.addr + index * q->bounce_len;
}

static uint64_t *tracker_list(const struct bd_queue *q, uint16_t index)
{
    return (uint64_t *)((char *)q->lists.addr + index * NVME_PAGE_SIZE);
}

static uint64_t tracker_list_iova(const struct bd_queue *q, uint16_t index)
{
    return q->lists.iova + (uint64_t)index * NVME_PAGE_SIZE;
}

static void set_prps(struct bd_queue *q, uint16_t index, uint64_t iova, size_t len)
{
    nvme_prp_fill(&q->trackers[index].sqe, iova, len, tracker_list(q, index),
                  tracker_list_iova(q, index));
}

/* Sets the LBA range of READ, WRITE or WRITE ZEROES. */
static void set_range(const struct nvme_bdev *d, struct nvme_sqe *sqe, uint64_t offset,
                      uint64_t len)
{
    uint64_t slba = offset / d->lba_size;

    sqe->cdw10 = (uint32_t)slba;
    sqe->cdw11 = (uint32_t)(slba >> 32);
    sqe->cdw12 |= (uint32_t)(len / d->lba_size - 1);
}

static uint64_t at_most(uint64_t len, uint64_t limit)
{
    return len < limit ? len : limit;
}

/* Cuts a data command, which transfers in place or through the bounce buffer. */
static uint64_t cut_data(struct bd_queue *q, struct bd_batch *b, uint16_t index, uint64_t left)
{
    const struct bd_io *io = &b->ios[b->at];
    struct bd_tracker *tracker = &q->trackers[index];
    char *buf = (char *)io->buf + b->done;
    uint64_t len;

    if (b->done == 0)
        b->iova = bd_region_iova(q->d, io->buf, io->len);
    tracker->sqe.opcode = io->op == BD_READ ? NVME_IO_READ : NVME_IO_WRITE;
    tracker->sqe.cdw12 = io->flags & BD_FUA ? NVME_RW_FUA : 0;
    if (b->iova && !(b->iova & DWORD_MASK)) {
        len = at_most(left, q->d->c->info.max_transfer);
        set_prps(q, index, b->iova + b->done, len);
    } else {
        len = at_most(left, q->bounce_len);
        if (io->op == BD_READ)
            tracker->copy_to = buf;
        else
            memcpy(tracker_bounce(q, index), buf, len);
        set_prps(q, index, q->bounce.iova + index * q->bounce_len, len);
    }
    set_range(q->d, &tracker->sqe, io->offset + b->done, len);
    return len;
}

/*
 * Returns the maximum bytes of one WRITE ZEROES. The maximum is a multiple of
 * the LBA size, because both LBA sizes divide every limit of the controller.
 */
static uint64_t max_zeroes(const struct nvme_bdev *d)
{
    uint64_t field = (uint64_t)NVME_RW_MAX_LBAS * d->lba_size;

    return d->c->info.max_zeroes ? at_most(field, d->c->info.max_zeroes) : field;
}

static uint64_t max_dsm(const struct nvme_bdev *d)
{
    uint64_t limit = d->c->info.max_dsm_lbas;

    return (limit ? at_most(DSM_MAX_LBAS, limit) : DSM_MAX_LBAS) * d->lba_size;
}

static uint64_t cut_zeroes(struct bd_queue *q, struct bd_batch *b, uint16_t index, uint64_t left)
{
    struct nvme_sqe *sqe = &q->trackers[index].sqe;
    uint64_t len;

    if (__atomic_load_n(&q->d->no_write_zeroes, __ATOMIC_RELAXED)) {
        sqe->opcode = NVME_IO_WRITE;
        len = at_most(left, q->bounce_len);
        memset(tracker_bounce(q, index), 0, len);
        set_prps(q, index, q->bounce.iova + index * q->bounce_len, len);
    } else {
        sqe->opcode = NVME_IO_WRITE_ZEROES;
        len = at_most(left, max_zeroes(q->d));
    }
    set_range(q->d, sqe, b->ios[b->at].offset + b->done, len);
    return len;
}

static uint64_t cut_discard(struct bd_queue *q, struct bd_batch *b, uint16_t index, uint64_t left)
{
    struct nvme_sqe *sqe = &q->trackers[index].sqe;
    struct nvme_dsm_range *range = (struct nvme_dsm_range *)tracker_list(q, index);
    uint64_t len = at_most(left, max_dsm(q->d));

    range->cattr = 0;
    range->nlb = (uint32_t)(len / q->d->lba_size);
    range->slba = (b->ios[b->at].offset + b->done) / q->d->lba_size;
    sqe->opcode = NVME_IO_DSM;
    sqe->prp1 = tracker_list_iova(q, index);
    sqe->cdw10 = 0; /* one range, 0-based */
    sqe->cdw11 = NVME_DSM_DEALLOCATE;
    return len;
}

/*
 * Returns true for a flush without a volatile cache, for a discard without DSM,
 * and for other transfers of 0 bytes.
 */
static bool needs_no_command(const struct nvme_bdev *d, const struct bd_io *io)
{
    if (io->op == BD_FLUSH)
        return !d->dev.info.volatile_cache;
    return io->len == 0 || (io->op == BD_DISCARD && !d->c->info.dsm);
}

static void next_io(struct bd_batch *b)
{
    b->at++;
    b->done = 0;
}

/* Cuts a command from the last `left` bytes of the current io. */
static uint64_t cut_one(struct bd_queue *q, struct bd_batch *b, uint16_t index, uint64_t left)
{
    switch (b->ios[b->at].op) {
    case BD_READ:
    case BD_WRITE:
        return cut_data(q, b, index, left);
    case BD_WRITE_ZEROES:
        return cut_zeroes(q, b, index, left);
    case BD_DISCARD:
        return cut_discard(q, b, index, left);
    case BD_FLUSH:
        q->trackers[index].sqe.opcode = NVME_IO_FLUSH;
        break;
    }
    return left;
}

bool bd_cut(struct bd_queue *q, struct bd_batch *b, uint16_t index)
{
    struct bd_tracker *tracker = &q->trackers[index];
    struct bd_io *io;
    uint64_t left;

    /* Skip transfers that have failed or need no command. */
    while (b->at < b->n && (b->ios[b->at].error || needs_no_command(q->d, &b->ios[b->at])))
        next_io(b);
    if (b->at == b->n)
        return false;
    io = &b->ios[b->at];
    left = io->op == BD_FLUSH ? 0 : io->len - b->done;
    *tracker = (struct bd_tracker){.io = io, .sqe = {.cid = tracker->sqe.cid, .nsid = q->d->nsid}};
    tracker->len = (size_t)cut_one(q, b, index, left);
    b->done += tracker->len;
    if (tracker->len == left)
        next_io(b);
    return true;
}

/*
 * Returns the first LBA of a command. For a command without LBAs, returns CDW10
 * and CDW11 as one number.
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

/*
 * Returns true if the command was aborted. The driver aborts only commands that
 * have missed their deadline.
 */
static bool ended_by_us(uint16_t status)
{
    return (status & 0x7ffu) == NVME_ERR_ABORT_REQUESTED;
}

/*
 * Posts the command again and returns true if access to the namespace is about
 * to change (ANA). The controller's transition time limits the retries. The
 * command gets a new deadline each time.
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

/*
 * Posts the command again and returns true if it may still succeed within its
 * deadline.
 */
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

static void nvme_poll_succeed(struct bd_queue *q, struct bd_tracker *tracker)
{
    if (tracker->copy_to)
        memcpy(tracker->copy_to,
               (char *)q->bounce.addr + nvme_poll_index_of(q, tracker) * q->bounce_len,
               tracker->len);
    bd_tracker_put(q, tracker);
}

static void nvme_poll_fail(struct bd_queue *q, struct bd_tracker *tracker, uint16_t status)
{
    bool ours = ended_by_us(status);

    if (nvme_poll_again(q, tracker, status))
        return;
    if (nvme_status_taken(status))
        nvme_ctrlr_set_taken(q->d->c);
    if (!ours)
        nvme_count(&q->d->c->counters.errors);
    if (nvme_status_retryable(status) && tracker->tries < BD_RETRIES) {
        tracker->tries++;
        bd_post(q, tracker);
        return;
    }
    bd_io_fail(tracker->io, ours ? -ETIMEDOUT : nvme_status_errno(status), status);
    bd_tracker_put(q, tracker);
}

static void nvme_poll_complete(struct bd_queue *q, struct bd_tracker *tracker, uint16_t status)
{
    if ((status & 0x7ffu) == NVME_OK || refused_hint(tracker, status))
        nvme_poll_succeed(q, tracker);
    else
        nvme_poll_fail(q, tracker, status);
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
 * Completions arrive in any order and name their command by CID. A completion
 * whose CID is not in flight is dropped. If a command is lost because of that,
 * its deadline expires. One call handles at most one ring of completions, so
 * that the call returns even if the controller posts completions endlessly.
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
