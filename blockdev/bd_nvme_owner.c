/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Owners of queues. Threads wait in order for a queue, own it exclusively, and
 * park while the controller is reset.
 */
#include <errno.h>
#include <stddef.h>

#include "blockdev/bd_nvme.h"
#include "support/clock.h"

#define BD_LEAVE_MS 1u /* interval at which a waiting borrower asks whether to leave */

/* A thread that waits for a queue; lies on its stack. */
struct bd_waiter {
    pthread_cond_t cond;
    struct bd_queue *got;
    bool refused; /* the device has failed */
    TAILQ_ENTRY(bd_waiter) entry;
};

void bd_progress(struct nvme_bdev *d)
{
    /* Readers only look for a change, so this orders no other memory. */
    __atomic_fetch_add(&d->progress, 1, __ATOMIC_RELAXED);
}

bool bd_must_park(const struct nvme_bdev *d)
{
    /*
     * A relaxed load is enough: a thread that misses the store sees it in its
     * next round, and the lock orders everything else.
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
 * others, once to be created again and once when a reset does it.
 */
uint64_t bd_recover_ms(const struct nvme_bdev *d)
{
    return BD_LATE_MS + (2 + 2 * (uint64_t)d->nqueues) * d->c->admin_timeout_ms +
           nvme_ctrlr_reset_ms(d->c);
}

/* More than an owner ever takes without any progress. */
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

/* Hands the queue to the first waiter, which no later caller overtakes. */
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

/* Waits until all owners have parked. None enters before the resume. */
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
