/* SPDX-License-Identifier: BSD-2-Clause */
/* Runs worker threads for transfers and registrations. */
#include "fusefs/daemon/base/workers.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#define BUFFER_THREADS 9u /* four of them for one user */
#define SYNC_THREADS   9u
#define CACHE_THREADS  2u

/* The number of threads of one kind that may run jobs at a time. */
struct limits {
    unsigned user, ordinary; /* one user; all users except root */
};

struct job_queue {
    pthread_cond_t wake;
    TAILQ_HEAD(, job) jobs;
    struct limits limits; /* user is 0 without limits */
};

struct worker {
    struct workers *all;
    enum work kind;
    pthread_t thread;
    bool busy; /* protected by the lock, as uid is */
    uid_t uid; /* user of the running job */
};

struct workers {
    pthread_mutex_t lock; /* protects all fields below except wanted, count and thread ids */
    struct job_queue queues[WORK_KINDS]; /* indexed by enum work */
    bool closing;
    unsigned wanted, count; /* threads requested, threads started */
    struct worker threads[];
};

/*
 * Counts the running jobs of a kind, of one user and of all users except root.
 */
static struct limits running(const struct workers *w, enum work kind, uid_t uid)
{
    struct limits n = {0};

    for (unsigned i = 0; i < w->wanted; i++) {
        const struct worker *other = &w->threads[i];
        bool counts = other->kind == kind && other->busy;
        n.user += counts && other->uid == uid;
        n.ordinary += counts && other->uid != 0;
    }
    return n;
}

/*
 * Returns the job that is started next, or NULL. Among the users below the
 * limits, it is the first job of the user with the fewest running jobs. While the
 * workers close, and for a kind without limits, it is the first job of all.
 */
static struct job *workers_find(const struct workers *w, enum work kind)
{
    const struct job_queue *queue = &w->queues[kind];
    struct job *job = TAILQ_FIRST(&queue->jobs), *last = NULL, *best = NULL;
    unsigned fewest = queue->limits.user;

    if (w->closing || queue->limits.user == 0)
        return job;
    for (; job && fewest > 0; last = job, job = TAILQ_NEXT(job, entry)) {
        if (last && last->uid == job->uid) /* judged already */
            continue;
        struct limits n = running(w, kind, job->uid);
        if (n.user < fewest && (job->uid == 0 || n.ordinary < queue->limits.ordinary)) {
            fewest = n.user;
            best = job;
        }
    }
    return best;
}

/*
 * Returns the next job, or NULL if the workers are closing and the queue is
 * empty.
 */
static struct job *workers_take(struct worker *self)
{
    struct workers *w = self->all;
    struct job_queue *queue = &w->queues[self->kind];
    struct job *job;

    pthread_mutex_lock(&w->lock);
    self->busy = false;
    while (!(job = workers_find(w, self->kind)) && !w->closing)
        pthread_cond_wait(&queue->wake, &w->lock);
    if (job) {
        TAILQ_REMOVE(&queue->jobs, job, entry);
        self->busy = true;
        self->uid = job->uid;
    }
    pthread_mutex_unlock(&w->lock);
    return job;
}

/*
 * A thread that finishes a user's job takes the next job itself, so no other
 * thread is woken for it.
 */
static void *work(void *arg)
{
    struct job *job;

    while ((job = workers_take(arg)))
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
    const unsigned of_kind[WORK_KINDS] = {n_transfers, BUFFER_THREADS, SYNC_THREADS, CACHE_THREADS};
    unsigned all = n_transfers + BUFFER_THREADS + SYNC_THREADS + CACHE_THREADS;
    struct workers *w = calloc(1, sizeof(*w) + all * sizeof(w->threads[0]));

    if (!w)
        return -ENOMEM;
    w->wanted = all;
    w->queues[WORK_TRANSFER].limits = (struct limits){(n_transfers * 2 + 2) / 3, n_transfers - 1};
    w->queues[WORK_BUFFER].limits = (struct limits){BUFFER_THREADS / 2, BUFFER_THREADS - 1};
    w->queues[WORK_SYNC].limits = (struct limits){SYNC_THREADS / 2, SYNC_THREADS - 1};
    pthread_mutex_init(&w->lock, NULL);
    for (unsigned i = 0; i < WORK_KINDS; i++) {
        TAILQ_INIT(&w->queues[i].jobs);
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

    pthread_mutex_lock(&w->lock);
    TAILQ_INSERT_TAIL(&queue->jobs, job, entry);
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
