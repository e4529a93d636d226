#include "fusefs/daemon/workers.h"

#include <errno.h>
#include <stdlib.h>

struct workers {
    pthread_mutex_t lock; /* protects everything below but the threads */
    pthread_cond_t wake;
    struct job *first, **last;
    bool closing;
    unsigned count;
    pthread_t threads[];
};

/* The queue is empty only when NULL comes back: then the workers are closing. */
static struct job *take(struct workers *w)
{
    pthread_mutex_lock(&w->lock);
    while (!w->first && !w->closing)
        pthread_cond_wait(&w->wake, &w->lock);
    struct job *job = w->first;
    if (job) {
        w->first = job->next;
        if (!w->first)
            w->last = &w->first;
    }
    pthread_mutex_unlock(&w->lock);
    return job;
}

static void *work(void *arg)
{
    struct job *job;
    while ((job = take(arg)))
        job->run(job);
    return NULL;
}

int workers_open(unsigned threads, struct workers **out)
{
    struct workers *w = calloc(1, sizeof(*w) + threads * sizeof(w->threads[0]));
    if (!w)
        return -ENOMEM;
    w->last = &w->first;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    for (; w->count < threads; w->count++) {
        int err = pthread_create(&w->threads[w->count], NULL, work, w);
        if (err) {
            workers_close(w);
            return -err;
        }
    }
    *out = w;
    return 0;
}

void workers_add(struct workers *w, struct job *job)
{
    job->next = NULL;
    pthread_mutex_lock(&w->lock);
    *w->last = job;
    w->last = &job->next;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

void workers_close(struct workers *w)
{
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->count; i++)
        pthread_join(w->threads[i], NULL);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
