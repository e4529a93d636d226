/* SPDX-License-Identifier: BSD-2-Clause */
/* Threads for work that the caller does not wait for. */
#include "client/lib/io_threads.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/error.h"
#include "client/lib/thread.h"

struct io_threads {
    pthread_mutex_t lock; /* protects the rest */
    pthread_cond_t given;
    struct work *first, **last;
    unsigned waiting, given_count; /* threads without work; work without a thread */
    unsigned made, max;
    bool ending;
    pthread_t threads[];
};

int io_threads_new(unsigned threads, struct io_threads **out)
{
    struct io_threads *w = calloc(1, sizeof(*w) + threads * sizeof(w->threads[0]));

    if (!w)
        return gpunvme_fail(-ENOMEM, "out of memory");
    w->max = threads;
    w->last = &w->first;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->given, NULL);
    *out = w;
    return 0;
}

/* Under the lock; NULL: no more will come. */
static struct work *threads_take(struct io_threads *w)
{
    w->waiting++;
    while (!w->first && !w->ending)
        pthread_cond_wait(&w->given, &w->lock);
    w->waiting--;
    struct work *work = w->first;
    if (!work)
        return NULL;
    w->first = work->next;
    if (!w->first)
        w->last = &w->first;
    w->given_count--;
    return work;
}

static void *threads_serve(void *arg)
{
    struct io_threads *w = arg;
    struct work *work;

    pthread_mutex_lock(&w->lock);
    while ((work = threads_take(w))) {
        pthread_mutex_unlock(&w->lock);
        work->run(work);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* Under the lock. */
static int start_thread(struct io_threads *w)
{
    int err = thread_start(&w->threads[w->made], threads_serve, w);

    if (err)
        return gpunvme_fail(-err, "a thread for transfers: %s", strerror(err));
    w->made++;
    return 0;
}

int io_threads_ready(struct io_threads *w)
{
    pthread_mutex_lock(&w->lock);
    int err = w->made ? 0 : start_thread(w);
    pthread_mutex_unlock(&w->lock);
    return err;
}

int io_threads_give(struct io_threads *w, struct work *work)
{
    int err = 0;

    pthread_mutex_lock(&w->lock);
    if (w->given_count >= w->waiting && w->made < w->max)
        err = start_thread(w);
    if (!w->made) {
        pthread_mutex_unlock(&w->lock);
        return err;
    }
    work->next = NULL;
    *w->last = work;
    w->last = &work->next;
    w->given_count++;
    pthread_cond_signal(&w->given);
    pthread_mutex_unlock(&w->lock);
    return 0;
}

void io_threads_free(struct io_threads *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->ending = true;
    pthread_cond_broadcast(&w->given);
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->made; i++)
        pthread_join(w->threads[i], NULL);
    pthread_cond_destroy(&w->given);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
