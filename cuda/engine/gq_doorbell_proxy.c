#include "cuda/engine/gq_doorbell_proxy.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "support/wait.h"

struct doorbells {
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
    struct doorbells doorbells[GQ_MAX_QUEUES];
    unsigned n;
    unsigned active; /* begun and not ended */
    bool silent, closing;
};

/* The polling thread takes the lock again at once: without the note others might wait for long. */
static void lock(struct gq_doorbell_proxy *p)
{
    __atomic_fetch_add(&p->waiting, 1, __ATOMIC_RELAXED);
    pthread_mutex_lock(&p->lock);
    __atomic_fetch_sub(&p->waiting, 1, __ATOMIC_RELAXED);
}

static void unlock(struct gq_doorbell_proxy *p)
{
    pthread_mutex_unlock(&p->lock);
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
static bool forward(const struct gq_proxied_doorbell *proxied, struct doorbells *to)
{
    uint32_t tail = __atomic_load_n(&proxied->sq_tail, __ATOMIC_ACQUIRE);
    uint32_t head = __atomic_load_n(&proxied->cq_head, __ATOMIC_ACQUIRE);
    if (tail >= to->depth)
        tail = to->sq_tail;
    if (head >= to->depth)
        head = to->cq_head;
    bool changed = tail != to->sq_tail || head != to->cq_head;

    if (head != to->cq_head)
        __atomic_store_n(to->cq, head, __ATOMIC_RELEASE);
    if (tail != to->sq_tail)
        __atomic_store_n(to->sq, tail, __ATOMIC_RELEASE);
    to->sq_tail = tail;
    to->cq_head = head;
    return changed;
}

/* Under the lock. A value missed is no loss: the newer one says it, too. */
static bool forward_all(struct gq_doorbell_proxy *p)
{
    bool changed = false;

    for (unsigned i = 0; i < p->n && !p->silent; i++) {
        if (p->doorbells[i].depth)
            changed = forward(&p->proxied_doorbells[i], &p->doorbells[i]) || changed;
    }
    if (changed && p->t->ops->kick)
        p->t->ops->kick(p->t);
    return changed;
}

/* Between two looks, the lock is free for others. */
static bool pause_polling(struct gq_doorbell_proxy *p, struct poll_wait *w, bool changed)
{
    bool slept = false;

    unlock(p);
    if (changed)
        poll_wait_reset(w);
    else
        slept = poll_wait_once(w);
    while (__atomic_load_n(&p->waiting, __ATOMIC_RELAXED))
        sched_yield();
    pthread_mutex_lock(&p->lock);
    return slept;
}

/*
 * Goes on polling for a moment after the last run, since the next often follows at once; then
 * sleeps until it is woken.
 */
static void *poll_proxied(void *arg)
{
    struct gq_doorbell_proxy *p = arg;
    struct poll_wait w = {0};

    pthread_mutex_lock(&p->lock);
    while (!p->closing) {
        bool changed = forward_all(p);

        if (!pause_polling(p, &w, changed) || p->active || p->closing)
            continue;
        pthread_cond_wait(&p->wake, &p->lock);
        poll_wait_reset(&w);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

int gq_doorbell_proxy_open(struct nvme_transport *t, struct gq_proxied_doorbell *proxied_doorbells,
                           struct gq_doorbell_proxy **out)
{
    struct gq_doorbell_proxy *p = calloc(1, sizeof(*p));
    int err;

    if (!p)
        return -ENOMEM;
    p->t = t;
    p->proxied_doorbells = proxied_doorbells;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    err = pthread_create(&p->thread, NULL, poll_proxied, p);
    if (err) {
        pthread_cond_destroy(&p->wake);
        pthread_mutex_destroy(&p->lock);
        free(p);
        return -err;
    }
    *out = p;
    return 0;
}

void gq_doorbell_proxy_close(struct gq_doorbell_proxy *p)
{
    lock(p);
    p->closing = true;
    pthread_cond_signal(&p->wake);
    unlock(p);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static void set(struct gq_doorbell_proxy *p, unsigned i, uint32_t sq_tail, uint32_t cq_head)
{
    p->doorbells[i].sq_tail = sq_tail;
    p->doorbells[i].cq_head = cq_head;
    __atomic_store_n(&p->proxied_doorbells[i].sq_tail, sq_tail, __ATOMIC_RELAXED);
    __atomic_store_n(&p->proxied_doorbells[i].cq_head, cq_head, __ATOMIC_RELAXED);
}

void gq_doorbell_proxy_add(struct gq_doorbell_proxy *p, unsigned i, const struct nvme_qpair *qp)
{
    lock(p);
    p->doorbells[i].sq = qp->sq_doorbell;
    p->doorbells[i].cq = qp->cq_doorbell;
    p->doorbells[i].depth = qp->depth;
    set(p, i, 0, 0);
    if (p->n <= i)
        p->n = i + 1;
    unlock(p);
}

void gq_doorbell_proxy_remove(struct gq_doorbell_proxy *p, unsigned i)
{
    lock(p);
    p->doorbells[i].depth = 0;
    unlock(p);
}

void gq_doorbell_proxy_set(struct gq_doorbell_proxy *p, unsigned i, uint32_t sq_tail,
                           uint32_t cq_head)
{
    lock(p);
    set(p, i, sq_tail, cq_head);
    unlock(p);
}

void gq_doorbell_proxy_begin(struct gq_doorbell_proxy *p)
{
    lock(p);
    p->active++;
    pthread_cond_signal(&p->wake);
    unlock(p);
}

void gq_doorbell_proxy_end(struct gq_doorbell_proxy *p)
{
    lock(p);
    forward_all(p);
    p->active--;
    unlock(p);
}

void gq_doorbell_proxy_silence(struct gq_doorbell_proxy *p)
{
    lock(p);
    p->silent = true;
    unlock(p);
}
