/* SPDX-License-Identifier: BSD-2-Clause */
/* The bounce pipeline: threads that move one transfer, each with a staging pair. */
#include "client/lib/pipeline.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/staging_pair.h"
#include "client/lib/thread.h"

struct pipeline {
    struct connection *owner;
    unsigned max;
    size_t chunk;
    pthread_mutex_t lock; /* protects the other members */
    pthread_cond_t returned;
    struct staging_pair *free;
    unsigned made;
};

/* A transfer and the state of its threads. */
struct job {
    struct gpunvme_buffer *b;
    const struct range *r;
    size_t chunk;
    pthread_mutex_t lock; /* protects the other members */
    size_t next;          /* the first byte that no thread has taken */
    size_t end;           /* bytes before it have been or will be moved */
    int err;              /* why the transfer ends there */
    char text[256];       /* text of the error */
    struct gpunvme_result result;
};

struct helper {
    pthread_t thread;
    struct staging_pair *pair;
    struct job *job;
};

int pipeline_new(struct connection *g, unsigned threads, size_t chunk, struct pipeline **out)
{
    struct pipeline *p = calloc(1, sizeof(*p));

    if (!p)
        return gpunvme_fail(-ENOMEM, "out of memory");
    p->owner = g;
    p->max = threads;
    p->chunk = chunk;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->returned, NULL);
    *out = p;
    return 0;
}

void pipeline_free(struct pipeline *p)
{
    if (!p)
        return;
    while (p->free) {
        struct staging_pair *pair = p->free;
        p->free = pair->next;
        staging_pair_free(pair);
    }
    pthread_cond_destroy(&p->returned);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/*
 * Returns a free pair, or a new one while the limit allows it. Returns NULL with *err 0 if all are
 * in use.
 */
static struct staging_pair *get_pair(struct pipeline *p, int *err)
{
    struct staging_pair *pair = p->free;

    *err = 0;
    if (pair)
        p->free = pair->next;
    else if (p->made < p->max && (*err = staging_pair_new(p->owner, p->chunk, &pair)) == 0)
        p->made++;
    return pair;
}

/*
 * Takes at least one pair, for which it waits, and at most `wanted`. Returns how many, or -errno.
 */
static int get_pairs(struct pipeline *p, unsigned wanted, struct staging_pair **pairs)
{
    unsigned n = 0;
    int err = 0;

    pthread_mutex_lock(&p->lock);
    while (n < wanted) {
        pairs[n] = get_pair(p, &err);
        if (pairs[n])
            n++;
        else if (n || (err && !p->made))
            break;
        else /* transfers of other threads end in bounded time */
            pthread_cond_wait(&p->returned, &p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return n ? (int)n : err;
}

static void put_pairs(struct pipeline *p, struct staging_pair **pairs, int n)
{
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < n; i++) {
        pairs[i]->next = p->free;
        p->free = pairs[i];
    }
    pthread_cond_broadcast(&p->returned);
    pthread_mutex_unlock(&p->lock);
}

int pipeline_warm(struct pipeline *p, struct cuda_driver *cuda, int device)
{
    struct staging_pair *pairs[PIPELINE_MAX_THREADS];
    int err = 0;
    int n = get_pairs(p, p->max, pairs);

    if (n <= 0)
        return n;
    for (int i = 0; i < n && !err; i++)
        err = staging_pair_attach(pairs[i], cuda, device);
    put_pairs(p, pairs, n);
    return err;
}

/* Ends the job at `at`, unless it already ends earlier. */
static void stop_locked(struct job *j, size_t at, int err)
{
    if (at >= j->end)
        return;
    j->end = at;
    j->err = err;
    snprintf(j->text, sizeof(j->text), "%s", gpunvme_error());
}

static void pipeline_stop(struct job *j, size_t at, int err)
{
    pthread_mutex_lock(&j->lock);
    stop_locked(j, at, err);
    pthread_mutex_unlock(&j->lock);
}

/* Takes the next chunk. */
static bool pipeline_claim(struct job *j, struct half *s)
{
    pthread_mutex_lock(&j->lock);
    if (atomic_load_explicit(&j->b->ending, memory_order_relaxed))
        stop_locked(j, j->next, gpunvme_fail(-EINTR, "the buffer was unregistered"));
    s->at = j->next;
    s->len = j->next < j->end ? j->end - j->next : 0;
    if (s->len > j->chunk)
        s->len = j->chunk;
    j->next += s->len;
    pthread_mutex_unlock(&j->lock);
    return s->len > 0;
}

static bool is_past(struct job *j, size_t at)
{
    pthread_mutex_lock(&j->lock);
    bool past = at >= j->end;
    pthread_mutex_unlock(&j->lock);
    return past;
}

static char *address_of(const struct job *j, const struct half *s)
{
    return (char *)j->b->addr + j->r->buffer_offset + s->at;
}

/* Moves bytes between the file and the half. The half keeps the number of bytes moved. */
static void move_file(struct job *j, struct staging_pair *pair, struct half *s)
{
    struct gpunvme_result result = {0};
    int err;
    size_t n = staging_pair_move_file(pair, s, j->r, j->r->file_offset + s->at, &result, &err);

    pthread_mutex_lock(&j->lock);
    if (n < s->len)
        stop_locked(j, s->at + n, err);
    j->result.commands += result.commands;
    if (!j->result.nvme_status)
        j->result.nvme_status = result.nvme_status;
    pthread_mutex_unlock(&j->lock);
    s->len = n;
}

/* Begins a chunk: when it returns, a copy is in flight. */
static void pipeline_begin(struct job *j, struct staging_pair *pair, struct half *s)
{
    staging_pair_place(pair, s, j->r, address_of(j, s));
    if (!j->r->write)
        move_file(j, pair, s);
    int err = s->len ? staging_pair_copy_start(pair, s, address_of(j, s), j->r->write) : 0;
    if (!err)
        return;
    pipeline_stop(j, s->at, err);
    s->len = 0;
}

/* Does the second half of the work on a chunk. */
static void pipeline_finish(struct job *j, struct staging_pair *pair, struct half *s)
{
    if (!s->len)
        return;
    int err = staging_pair_copy_wait(pair, s);
    if (err)
        pipeline_stop(j, s->at, err);
    else if (j->r->write && !is_past(j, s->at))
        move_file(j, pair, s);
    s->len = 0;
}

/* Moves chunks. Chunk n ends before n + 2 begins in its half, and while n + 1 is being copied. */
static void run_pair(struct job *j, struct staging_pair *pair)
{
    unsigned i = 0;

    pair->halves[0].len = pair->halves[1].len = 0;
    for (;; i ^= 1) {
        pipeline_finish(j, pair, &pair->halves[i]);
        if (!pipeline_claim(j, &pair->halves[i]))
            break;
        pipeline_begin(j, pair, &pair->halves[i]);
    }
    pipeline_finish(j, pair, &pair->halves[i ^ 1]);
}

/* A helper thread whose staging cannot be pinned leaves the work to the remaining ones. */
static void *help(void *arg)
{
    struct helper *h = arg;
    struct gpunvme_buffer *b = h->job->b;

    if (b->device != CUDA_NO_DEVICE)
        (void)cuda_driver_ignore_captures(b->owner->cuda); /* until the thread ends */
    if (staging_pair_attach(h->pair, b->owner->cuda, b->device) == 0)
        run_pair(h->job, h->pair);
    return NULL;
}

/* Starts as many helper threads as the system allows. */
static int start_helpers(struct job *j, struct staging_pair **pairs, int n, struct helper *helpers)
{
    int started = 0;

    while (started < n) {
        struct helper *h = &helpers[started];
        *h = (struct helper){.pair = pairs[started], .job = j};
        if (thread_start(&h->thread, help, h) != 0)
            break;
        started++;
    }
    return started;
}

static int run_pairs(struct job *j, struct staging_pair **pairs, int n)
{
    struct helper helpers[PIPELINE_MAX_THREADS];
    int err = staging_pair_attach(pairs[0], j->b->owner->cuda, j->b->device);

    if (err)
        return err;
    int started = start_helpers(j, pairs + 1, n - 1, helpers);
    run_pair(j, pairs[0]);
    for (int i = 0; i < started; i++)
        pthread_join(helpers[i].thread, NULL);
    return 0;
}

/*
 * Returns one thread for writes, because writes of one file exclude each other and one thread
 * writes in order.
 */
static unsigned threads_for(const struct pipeline *p, const struct range *r)
{
    size_t chunks = (r->len - 1) / p->chunk + 1;

    if (r->write)
        return 1;
    return chunks < p->max ? (unsigned)chunks : p->max;
}

size_t pipeline_run(struct pipeline *p, struct gpunvme_buffer *b, const struct range *r,
                    struct gpunvme_result *result, int *err)
{
    struct staging_pair *pairs[PIPELINE_MAX_THREADS];
    struct job j = {.b = b, .r = r, .chunk = p->chunk, .end = r->len};

    *err = 0;
    if (!r->len)
        return 0;
    int n = get_pairs(p, threads_for(p, r), pairs);
    if (n <= 0) {
        *err = n;
        return 0;
    }
    pthread_mutex_init(&j.lock, NULL);
    *err = run_pairs(&j, pairs, n);
    pthread_mutex_destroy(&j.lock);
    put_pairs(p, pairs, n);
    if (*err)
        return 0;
    if (j.err)
        *err = gpunvme_fail(j.err, "%s", j.text);
    result->commands += j.result.commands;
    if (!result->nvme_status)
        result->nvme_status = j.result.nvme_status;
    return j.end;
}
