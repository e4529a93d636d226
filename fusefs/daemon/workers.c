/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Worker threads for transfers and for registrations.
 */
#include "fusefs/daemon/workers.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#define BUFFER_THREADS 8u
#define CACHE_THREADS  2u
#define USER_THREADS   4u /* of BUFFER_THREADS, for one user */

struct job_queue {
    pthread_cond_t wake;
    struct job *first, **last;
};

struct worker {
    struct workers *all;
    enum work kind;
    pthread_t thread;
    bool busy; /* protected by the lock, as is uid */
    uid_t uid; /* of the running job */
};

struct workers {
    pthread_mutex_t lock; /* protects all fields below except wanted, count and thread ids */
    struct job_queue queues[WORK_KINDS]; /* indexed by enum work */
    bool closing;
    unsigned wanted, count; /* threads requested, threads started */
    struct worker threads[];
};

/* True when the user runs fewer than USER_THREADS jobs of this kind. */
static bool may_begin(const struct workers *w, enum work kind, uid_t uid)
{
    unsigned n = 0;

    if (kind != WORK_BUFFER)
        return true;
    for (unsigned i = 0; i < w->wanted; i++) {
        const struct worker *other = &w->threads[i];
        n += other->kind == kind && other->busy && other->uid == uid;
    }
    return n < USER_THREADS;
}

/*
 * The link to the first job that may begin, or to the end. While closing, every
 * job may begin.
 */
static struct job **find(struct workers *w, enum work kind)
{
    struct job **link = &w->queues[kind].first;

    while (*link && !w->closing && !may_begin(w, kind, (*link)->uid))
        link = &(*link)->next;
    return link;
}

/* NULL: closing, and the queue is empty. */
static struct job *take(struct worker *self)
{
    struct workers *w = self->all;
    struct job_queue *queue = &w->queues[self->kind];
    struct job **link, *job;

    pthread_mutex_lock(&w->lock);
    self->busy = false;
    while (!*(link = find(w, self->kind)) && !w->closing)
        pthread_cond_wait(&queue->wake, &w->lock);
    job = *link;
    if (job) {
        *link = job->next;
        if (queue->last == &job->next)
            queue->last = link;
        self->busy = true;
        self->uid = job->uid;
    }
    pthread_mutex_unlock(&w->lock);
    return job;
}

/*
 * A thread that ends a user's job takes the next job itself, so no other thread
 * is woken for it.
 */
static void *work(void *arg)
{
    struct job *job;

    while ((job = take(arg)))
        job->run(job);
    return NULL;
}

static void assign_kinds(struct workers *w, const unsigned of_kind[WORK_KINDS])
{
    struct worker *next = w->threads;

    for (unsigned kind = 0; kind < WORK_KINDS; kind++) {
        for (unsigned i = 0; i < of_kind[kind]; i++)
            *next++ = (struct worker){.all = w, .kind = (enum work)kind};
    }
}

int workers_open(unsigned n_transfers, struct workers **out)
{
    const unsigned of_kind[WORK_KINDS] = {n_transfers, BUFFER_THREADS, CACHE_THREADS};
    unsigned all = n_transfers + BUFFER_THREADS + CACHE_THREADS;
    struct workers *w = calloc(1, sizeof(*w) + all * sizeof(w->threads[0]));

    if (!w)
        return -ENOMEM;
    w->wanted = all;
    pthread_mutex_init(&w->lock, NULL);
    for (unsigned i = 0; i < WORK_KINDS; i++) {
        w->queues[i].last = &w->queues[i].first;
        pthread_cond_init(&w->queues[i].wake, NULL);
    }
    assign_kinds(w, of_kind);
    for (; w->count < all; w->count++) {
        struct worker *self = &w->threads[w->count];
        int err = pthread_create(&self->thread, NULL, work, self);
        if (err) {
            workers_close(w);
            return -err;
        }
    }
    *out = w;
    return 0;
}

void workers_add(struct workers *w, enum work kind, struct job *job)
{
    struct job_queue *queue = &w->queues[kind];

    job->next = NULL;
    pthread_mutex_lock(&w->lock);
    *queue->last = job;
    queue->last = &job->next;
    pthread_cond_signal(&queue->wake);
    pthread_mutex_unlock(&w->lock);
}

void workers_close(struct workers *w)
{
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    for (unsigned i = 0; i < WORK_KINDS; i++)
        pthread_cond_broadcast(&w->queues[i].wake);
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->count; i++)
        pthread_join(w->threads[i].thread, NULL);
    for (unsigned i = 0; i < WORK_KINDS; i++)
        pthread_cond_destroy(&w->queues[i].wake);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
