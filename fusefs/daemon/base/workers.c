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
    struct limits limits;      /* user is 0 without limits */
    struct worker *next, *end; /* the thread to start next; behind the last one */
    unsigned waiting, idle;    /* jobs in the queue; started threads without a job */
};

struct worker {
    struct workers *all;
    enum work kind;
    pthread_t thread;
    bool busy; /* protected by the lock, as uid is */
    uid_t uid; /* user of the running job */
};

struct workers {
    pthread_mutex_t lock;                /* protects all fields below except all */
    struct job_queue queues[WORK_KINDS]; /* indexed by enum work */
    bool closing;
    unsigned all; /* threads that may be started */
    struct worker threads[];
};

/*
 * Counts the running jobs of a kind, of one user and of all users except root.
 */
static struct limits running(const struct workers *w, enum work kind, uid_t uid)
{
    struct limits n = {0};

    for (unsigned i = 0; i < w->all; i++) {
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
    queue->idle += self->busy;
    self->busy = false;
    while (!(job = workers_find(w, self->kind)) && !w->closing)
        pthread_cond_wait(&queue->wake, &w->lock);
    if (job) {
        TAILQ_REMOVE(&queue->jobs, job, entry);
        queue->waiting--;
        queue->idle--;
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

/* The caller holds the lock. Returns 0 or -errno. */
static int start_one(struct job_queue *queue)
{
    int err = -pthread_create(&queue->next->thread, NULL, work, queue->next);

    queue->next += !err;
    queue->idle += !err;
    return err;
}

/* Starts the first thread of each kind, so that every job runs. */
static int start_kinds(struct workers *w, const unsigned of_kind[WORK_KINDS])
{
    struct worker *next = w->threads;
    int err = 0;

    pthread_mutex_lock(&w->lock);
    for (unsigned kind = 0; kind < WORK_KINDS; kind++) {
        struct job_queue *queue = &w->queues[kind];

        queue->next = next;
        for (unsigned i = 0; i < of_kind[kind]; i++)
            *next++ = (struct worker){.all = w, .kind = (enum work)kind};
        queue->end = next;
        err = err ? err : start_one(queue);
    }
    pthread_mutex_unlock(&w->lock);
    return err;
}

int workers_open(unsigned n_transfers, struct workers **out)
{
    const unsigned of_kind[WORK_KINDS] = {n_transfers, BUFFER_THREADS, SYNC_THREADS, CACHE_THREADS};
    unsigned all = n_transfers + BUFFER_THREADS + SYNC_THREADS + CACHE_THREADS;
    struct workers *w = calloc(1, sizeof(*w) + all * sizeof(w->threads[0]));

    if (!w)
        return -ENOMEM;
    w->all = all;
    w->queues[WORK_TRANSFER].limits = (struct limits){(n_transfers * 2 + 2) / 3, n_transfers - 1};
    w->queues[WORK_BUFFER].limits = (struct limits){BUFFER_THREADS / 2, BUFFER_THREADS - 1};
    w->queues[WORK_SYNC].limits = (struct limits){SYNC_THREADS / 2, SYNC_THREADS - 1};
    pthread_mutex_init(&w->lock, NULL);
    for (unsigned i = 0; i < WORK_KINDS; i++) {
        TAILQ_INIT(&w->queues[i].jobs);
        pthread_cond_init(&w->queues[i].wake, NULL);
    }
    int err = start_kinds(w, of_kind);
    if (err) {
        workers_close(w);
        return err;
    }
    *out = w;
    return 0;
}

/* If a thread cannot be started, the job waits until one is free. */
void workers_add(struct workers *w, enum work kind, struct job *job)
{
    struct job_queue *queue = &w->queues[kind];

    pthread_mutex_lock(&w->lock);
    TAILQ_INSERT_TAIL(&queue->jobs, job, entry);
    if (++queue->waiting > queue->idle && queue->next < queue->end)
        (void)start_one(queue);
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
    struct worker *first = w->threads;
    for (unsigned i = 0; i < WORK_KINDS; i++) {
        for (; first < w->queues[i].next; first++)
            pthread_join(first->thread, NULL);
        first = w->queues[i].end;
        pthread_cond_destroy(&w->queues[i].wake);
    }
    pthread_mutex_destroy(&w->lock);
    free(w);
}
