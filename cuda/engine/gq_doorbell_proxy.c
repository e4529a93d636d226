/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements the thread that forwards doorbells, and the table of doorbells. */
#include "cuda/engine/gq_doorbell_proxy.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "cuda/engine/gq_internal.h"
#include "support/wait.h"

struct doorbells {
    volatile uint32_t *sq, *cq;
    uint32_t sq_tail, cq_head; /* last values stored */
    uint32_t depth;            /* 0: no doorbell is stored to */
    uint64_t submitted;        /* entries announced by the stored tails */
    bool held;
};

struct gq_doorbell_proxy {
    struct nvme_transport *t;
    struct gq_proxied_doorbell *proxied_doorbells;
    pthread_t thread;
    unsigned waiting; /* atomic; threads waiting for the lock, to which the polling thread yields */

    pthread_mutex_t lock; /* protects the fields below; its holder may store to doorbells */
    pthread_cond_t wake;
    struct doorbells doorbells[GQ_MAX_QUEUES];
    unsigned n;
    unsigned active; /* calls of begin without their end */
    bool silent, closing;
};

/*
 * Takes the lock. The counter makes the polling thread, which takes the lock
 * again at once, yield to waiting threads.
 */
static void doorbell_proxy_lock(struct gq_doorbell_proxy *p)
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
 * Forwards changed values of one pair. Two orderings combine. The executor
 * stores entries before the proxied doorbell (gq_fence_entries), and the
 * acquire load sees the proxied doorbell; the release store keeps the doorbell
 * behind that load. So the entries are in memory before the doorbell for all
 * observers, including the controller's DMA. For CQ heads the executor's loads
 * of the entries come before the controller may overwrite them.
 *
 * The tail is loaded first and stored last. An executor frees completions
 * before it posts the SQEs that fill their entries, so a head at least as new
 * as the tail is stored before it. In the opposite order the controller could
 * find its CQ full.
 *
 * Each word is loaded only once, because its owner may change it at any time. A
 * value that is no position in the queue is not forwarded, because it stalls
 * some controllers for good.
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
    to->submitted += tail >= to->sq_tail ? tail - to->sq_tail : tail + to->depth - to->sq_tail;
    to->sq_tail = tail;
    to->cq_head = head;
    return changed;
}

/*
 * The caller holds the lock. A value that is overwritten before it is seen is
 * superseded by the newer one.
 */
static bool forward_all(struct gq_doorbell_proxy *p)
{
    bool changed = false;

    for (unsigned i = 0; i < p->n && !p->silent; i++) {
        if (p->doorbells[i].depth && !p->doorbells[i].held)
            changed = forward(&p->proxied_doorbells[i], &p->doorbells[i]) || changed;
    }
    if (changed)
        nvme_wake(p->t, 1);
    return changed;
}

/* Releases the lock between two iterations. */
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
 * Keeps polling for a moment after the last run, because the next one often
 * follows at once; then sleeps until it is woken.
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
    doorbell_proxy_lock(p);
    p->closing = true;
    pthread_cond_signal(&p->wake);
    unlock(p);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static void doorbell_proxy_set(struct gq_doorbell_proxy *p, unsigned i, uint32_t sq_tail,
                               uint32_t cq_head)
{
    p->doorbells[i].sq_tail = sq_tail;
    p->doorbells[i].cq_head = cq_head;
    __atomic_store_n(&p->proxied_doorbells[i].sq_tail, sq_tail, __ATOMIC_RELAXED);
    __atomic_store_n(&p->proxied_doorbells[i].cq_head, cq_head, __ATOMIC_RELAXED);
}

void gq_doorbell_proxy_add(struct gq_doorbell_proxy *p, unsigned i, const struct nvme_qpair *qp)
{
    doorbell_proxy_lock(p);
    p->doorbells[i].sq = qp->sq_doorbell;
    p->doorbells[i].cq = qp->cq_doorbell;
    p->doorbells[i].depth = qp->depth;
    p->doorbells[i].submitted = 0;
    p->doorbells[i].held = false;
    doorbell_proxy_set(p, i, 0, 0);
    if (p->n <= i)
        p->n = i + 1;
    unlock(p);
}

void gq_doorbell_proxy_remove(struct gq_doorbell_proxy *p, unsigned i)
{
    doorbell_proxy_lock(p);
    p->doorbells[i].depth = 0;
    unlock(p);
}

void gq_doorbell_proxy_set(struct gq_doorbell_proxy *p, unsigned i, uint32_t sq_tail,
                           uint32_t cq_head)
{
    doorbell_proxy_lock(p);
    doorbell_proxy_set(p, i, sq_tail, cq_head);
    unlock(p);
}

void gq_doorbell_proxy_hold(struct gq_doorbell_proxy *p, unsigned i, bool hold)
{
    doorbell_proxy_lock(p);
    forward_all(p);
    p->doorbells[i].held = hold;
    unlock(p);
}

uint64_t gq_doorbell_proxy_submitted(struct gq_doorbell_proxy *p, unsigned i)
{
    doorbell_proxy_lock(p);
    uint64_t n = p->doorbells[i].submitted;
    unlock(p);
    return n;
}

void gq_doorbell_proxy_begin(struct gq_doorbell_proxy *p)
{
    doorbell_proxy_lock(p);
    p->active++;
    pthread_cond_signal(&p->wake);
    unlock(p);
}

void gq_doorbell_proxy_end(struct gq_doorbell_proxy *p)
{
    doorbell_proxy_lock(p);
    forward_all(p);
    p->active--;
    unlock(p);
}

void gq_doorbell_proxy_silence(struct gq_doorbell_proxy *p)
{
    doorbell_proxy_lock(p);
    p->silent = true;
    unlock(p);
}

/* --- Ports ------------------------------------------------------------------------------------ */

int gq_engine_add_port(struct gq_engine *e, unsigned i)
{
    struct nvme_qpair qp = e->queues[i].qp;

    if (e->proxy) {
        gq_doorbell_proxy_add(e->proxy, i, &qp);
        qp.sq_doorbell = &e->proxied_doorbells[i].sq_tail;
        qp.cq_doorbell = &e->proxied_doorbells[i].cq_head;
    }
    int err = e->exec->ops->port_add(e->exec, i, &qp);
    if (!err)
        e->queues[i].port_qid = qp.qid;
    return err;
}

void gq_engine_remove_port(struct gq_engine *e, unsigned i)
{
    if (e->queues[i].port_qid)
        e->exec->ops->port_remove(e->exec, i);
    e->queues[i].port_qid = 0;
}
