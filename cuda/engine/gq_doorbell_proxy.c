#include "cuda/engine/gq_doorbell_proxy.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "support/wait.h"

struct bell {
    volatile uint32_t *sq, *cq;
    uint32_t sq_tail, cq_head; /* rung last */
    uint32_t depth;            /* 0: nothing is rung */
};

struct gq_doorbell_proxy {
    struct nvme_transport *t;
    struct gq_proxied_doorbell *proxied_doorbells;
    pthread_t thread;
    unsigned waiting; /* atomic; threads that want the lock, which the polling one lets pass */

    pthread_mutex_t lock; /* the rest; whoever holds it may ring */
    pthread_cond_t wake;
    struct bell bells[GQ_MAX_QUEUES];
    unsigned n;
    unsigned active; /* begun and not ended */
    bool silent, closing;
};

/* The polling thread takes the lock again at once: without the note others might wait for long. */
static void lock(struct gq_doorbell_proxy *r)
{
    __atomic_fetch_add(&r->waiting, 1, __ATOMIC_RELAXED);
    pthread_mutex_lock(&r->lock);
    __atomic_fetch_sub(&r->waiting, 1, __ATOMIC_RELAXED);
}

static void unlock(struct gq_doorbell_proxy *r)
{
    pthread_mutex_unlock(&r->lock);
}

/*
 * A chain of two orders. The executor stores entries before the proxied doorbell
 * (gq_fence_entries), and the acquire sees the proxied doorbell: so the entries are in memory for
 * everyone, the controller's DMA included, before the doorbell, for the release keeps the store
 * behind the load. With CQ heads it is the executor's loads of the entries that come before the
 * controller may overwrite them.
 *
 * The tail is loaded first and rung last. An executor frees completions before it sends what fills
 * their places, so a head that is at least as new as the tail goes out before it; the other way
 * round the controller could find its CQ full for no reason.
 *
 * Each word is loaded once, for its owner may change it at any time. What is no place in the queue
 * is not passed on: some controllers stall for good on it.
 */
static bool pass_on(const struct gq_proxied_doorbell *proxied, struct bell *bell)
{
    uint32_t tail = __atomic_load_n(&proxied->sq_tail, __ATOMIC_ACQUIRE);
    uint32_t head = __atomic_load_n(&proxied->cq_head, __ATOMIC_ACQUIRE);
    if (tail >= bell->depth)
        tail = bell->sq_tail;
    if (head >= bell->depth)
        head = bell->cq_head;
    bool changed = tail != bell->sq_tail || head != bell->cq_head;

    if (head != bell->cq_head)
        __atomic_store_n(bell->cq, head, __ATOMIC_RELEASE);
    if (tail != bell->sq_tail)
        __atomic_store_n(bell->sq, tail, __ATOMIC_RELEASE);
    bell->sq_tail = tail;
    bell->cq_head = head;
    return changed;
}

/* Under the lock. A value missed is no loss: the newer one says it, too. */
static bool pass_all(struct gq_doorbell_proxy *r)
{
    bool changed = false;

    for (unsigned i = 0; i < r->n && !r->silent; i++) {
        if (r->bells[i].depth)
            changed = pass_on(&r->proxied_doorbells[i], &r->bells[i]) || changed;
    }
    if (changed && r->t->ops->kick)
        r->t->ops->kick(r->t);
    return changed;
}

/* Between two looks, the lock is free for others. */
static bool pause_polling(struct gq_doorbell_proxy *r, struct poll_wait *w, bool changed)
{
    bool slept = false;

    unlock(r);
    if (changed)
        poll_wait_reset(w);
    else
        slept = poll_wait_once(w);
    while (__atomic_load_n(&r->waiting, __ATOMIC_RELAXED))
        sched_yield();
    pthread_mutex_lock(&r->lock);
    return slept;
}

/*
 * Goes on polling for a moment after the last run, since the next often follows at once; then
 * sleeps until it is woken.
 */
static void *poll_proxied(void *arg)
{
    struct gq_doorbell_proxy *r = arg;
    struct poll_wait w = {0};

    pthread_mutex_lock(&r->lock);
    while (!r->closing) {
        bool changed = pass_all(r);

        if (!pause_polling(r, &w, changed) || r->active || r->closing)
            continue;
        pthread_cond_wait(&r->wake, &r->lock);
        poll_wait_reset(&w);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

int gq_doorbell_proxy_open(struct nvme_transport *t, struct gq_proxied_doorbell *proxied_doorbells,
                           struct gq_doorbell_proxy **out)
{
    struct gq_doorbell_proxy *r = calloc(1, sizeof(*r));
    int err;

    if (!r)
        return -ENOMEM;
    r->t = t;
    r->proxied_doorbells = proxied_doorbells;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->wake, NULL);
    err = pthread_create(&r->thread, NULL, poll_proxied, r);
    if (err) {
        pthread_cond_destroy(&r->wake);
        pthread_mutex_destroy(&r->lock);
        free(r);
        return -err;
    }
    *out = r;
    return 0;
}

void gq_doorbell_proxy_close(struct gq_doorbell_proxy *r)
{
    lock(r);
    r->closing = true;
    pthread_cond_signal(&r->wake);
    unlock(r);
    pthread_join(r->thread, NULL);
    pthread_cond_destroy(&r->wake);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

static void set(struct gq_doorbell_proxy *r, unsigned i, uint32_t sq_tail, uint32_t cq_head)
{
    r->bells[i].sq_tail = sq_tail;
    r->bells[i].cq_head = cq_head;
    __atomic_store_n(&r->proxied_doorbells[i].sq_tail, sq_tail, __ATOMIC_RELAXED);
    __atomic_store_n(&r->proxied_doorbells[i].cq_head, cq_head, __ATOMIC_RELAXED);
}

void gq_doorbell_proxy_add(struct gq_doorbell_proxy *r, unsigned i, const struct nvme_qpair *qp)
{
    lock(r);
    r->bells[i].sq = qp->sq_doorbell;
    r->bells[i].cq = qp->cq_doorbell;
    r->bells[i].depth = qp->depth;
    set(r, i, 0, 0);
    if (r->n <= i)
        r->n = i + 1;
    unlock(r);
}

void gq_doorbell_proxy_remove(struct gq_doorbell_proxy *r, unsigned i)
{
    lock(r);
    r->bells[i].depth = 0;
    unlock(r);
}

void gq_doorbell_proxy_set(struct gq_doorbell_proxy *r, unsigned i, uint32_t sq_tail,
                           uint32_t cq_head)
{
    lock(r);
    set(r, i, sq_tail, cq_head);
    unlock(r);
}

void gq_doorbell_proxy_begin(struct gq_doorbell_proxy *r)
{
    lock(r);
    r->active++;
    pthread_cond_signal(&r->wake);
    unlock(r);
}

void gq_doorbell_proxy_end(struct gq_doorbell_proxy *r)
{
    lock(r);
    pass_all(r);
    r->active--;
    unlock(r);
}

void gq_doorbell_proxy_silence(struct gq_doorbell_proxy *r)
{
    lock(r);
    r->silent = true;
    unlock(r);
}
