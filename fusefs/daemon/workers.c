#include "fusefs/daemon/workers.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#define BUFFER_THREADS 4u

struct lane {
    pthread_cond_t wake;
    struct job *first, **last;
};

struct workers {
    pthread_mutex_t lock; /* protects everything below but the threads */
    struct lane lanes[2]; /* by enum work */
    bool closing;
    unsigned count;
    pthread_t threads[];
};

/* The queue is empty only when NULL comes back: then the workers are closing. */
static struct job *take(struct workers *w, struct lane *lane)
{
    pthread_mutex_lock(&w->lock);
    while (!lane->first && !w->closing)
        pthread_cond_wait(&lane->wake, &w->lock);
    struct job *job = lane->first;
    if (job) {
        lane->first = job->next;
        if (!lane->first)
            lane->last = &lane->first;
    }
    pthread_mutex_unlock(&w->lock);
    return job;
}

static void *work_on(struct workers *w, enum work kind)
{
    struct job *job;
    while ((job = take(w, &w->lanes[kind])))
        job->run(job);
    return NULL;
}

static void *transfers(void *arg)
{
    return work_on(arg, WORK_TRANSFER);
}

static void *buffers(void *arg)
{
    return work_on(arg, WORK_BUFFER);
}

int workers_open(unsigned n_transfers, struct workers **out)
{
    unsigned all = n_transfers + BUFFER_THREADS;
    struct workers *w = calloc(1, sizeof(*w) + all * sizeof(w->threads[0]));
    if (!w)
        return -ENOMEM;
    pthread_mutex_init(&w->lock, NULL);
    for (unsigned i = 0; i < 2; i++) {
        w->lanes[i].last = &w->lanes[i].first;
        pthread_cond_init(&w->lanes[i].wake, NULL);
    }
    for (; w->count < all; w->count++) {
        int err = pthread_create(&w->threads[w->count], NULL,
                                 w->count < n_transfers ? transfers : buffers, w);
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
    struct lane *lane = &w->lanes[kind];
    job->next = NULL;
    pthread_mutex_lock(&w->lock);
    *lane->last = job;
    lane->last = &job->next;
    pthread_cond_signal(&lane->wake);
    pthread_mutex_unlock(&w->lock);
}

void workers_close(struct workers *w)
{
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    for (unsigned i = 0; i < 2; i++)
        pthread_cond_broadcast(&w->lanes[i].wake);
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->count; i++)
        pthread_join(w->threads[i], NULL);
    for (unsigned i = 0; i < 2; i++)
        pthread_cond_destroy(&w->lanes[i].wake);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
