/* SPDX-License-Identifier: BSD-2-Clause */
/* A controller that completes every command at once and moves nothing. */
#include "bench/lib/null_ctrlr.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#define BURST 64u /* commands of one queue before its neighbour's turn */

struct null_thread {
    pthread_t pthread;
    struct null_ctrlr *c;
    unsigned first;
};

struct null_ctrlr {
    struct null_queue *queues;
    unsigned n_queues, n_threads;
    bool stop; /* atomic */
    struct null_thread threads[];
};

static uint32_t distance(uint32_t from, uint32_t to, uint32_t depth)
{
    return to >= from ? to - from : depth - from + to;
}

/* Release: orders the rest of the entry, in the same 16 bytes, before the phase. */
static void post(struct null_queue *q, uint16_t cid)
{
    struct nvme_cqe *cqe = &q->cq[q->tail];
    uint32_t last = cid | q->phase << 16;

    cqe->sq_head = (uint16_t)q->head;
    __atomic_store_n((uint32_t __attribute__((may_alias)) *)(void *)&cqe->cid, last,
                     __ATOMIC_RELEASE);
    if (++q->tail == q->depth) {
        q->tail = 0;
        q->phase ^= 1;
    }
}

/* The GPU has just written them: they arrive side by side. */
static void prefetch(const struct null_queue *q, uint32_t n)
{
    for (uint32_t i = 0, at = q->head; i < n; i++) {
        __builtin_prefetch(&q->sq[at]);
        at = at + 1 == q->depth ? 0 : at + 1;
    }
}

static void serve(struct null_queue *q)
{
    /* Acquire: the entries were written before the doorbell. */
    uint32_t tail = __atomic_load_n(q->sq_doorbell, __ATOMIC_ACQUIRE);
    uint32_t fetched = distance(q->head, tail, q->depth);
    uint32_t room;

    if (fetched == 0)
        return;
    room = q->depth - 1 -
           distance(__atomic_load_n(q->cq_doorbell, __ATOMIC_ACQUIRE), q->tail, q->depth);
    fetched = fetched < room ? fetched : room;
    fetched = fetched < BURST ? fetched : BURST;
    prefetch(q, fetched);
    for (uint32_t i = 0; i < fetched; i++) {
        const struct nvme_sqe *sqe = &q->sq[q->head];

        q->lba_sum += sqe->cdw10;
        if (++q->head == q->depth)
            q->head = 0;
        post(q, sqe->cid);
    }
    q->served += fetched;
}

static void *run(void *arg)
{
    struct null_thread *t = arg;
    struct null_ctrlr *c = t->c;

    while (!__atomic_load_n(&c->stop, __ATOMIC_RELAXED)) {
        for (unsigned i = t->first; i < c->n_queues; i += c->n_threads)
            serve(&c->queues[i]);
    }
    return NULL;
}

int null_ctrlr_start(struct null_queue *queues, unsigned n_queues, unsigned n_threads,
                     struct null_ctrlr **out)
{
    struct null_ctrlr *c = calloc(1, sizeof(*c) + n_threads * sizeof(c->threads[0]));

    if (!c)
        return -ENOMEM;
    c->queues = queues;
    c->n_queues = n_queues;
    for (unsigned i = 0; i < n_threads; i++) {
        struct null_thread *t = &c->threads[i];
        int rc;

        *t = (struct null_thread){.c = c, .first = i};
        c->n_threads = n_threads;
        rc = pthread_create(&t->pthread, NULL, run, t);
        if (rc) {
            c->n_threads = i;
            null_ctrlr_stop(c);
            return -rc;
        }
    }
    *out = c;
    return 0;
}

void null_ctrlr_stop(struct null_ctrlr *c)
{
    __atomic_store_n(&c->stop, true, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < c->n_threads; i++)
        pthread_join(c->threads[i].pthread, NULL);
    free(c);
}
