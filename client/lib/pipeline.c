/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the bounce pipeline. Its threads move one transfer together. Each
 * thread has a staging pair.
 */
#include "client/lib/pipeline.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/lib/staging_pair.h"
#include "support/page.h"
#include "support/thread.h"

/*
 * Bytes of a chunk of long writes and lists, and the number of pairs for them.
 * One thread makes the writes of a file, in order, so all commands in flight
 * are those of one chunk. The mount takes half as long for each piece of a list
 * of 4,096 pieces as for each of 512.
 */
#define LONG_CHUNK ((size_t)16 << 20)
#define LONG_PAIRS 2u
/*
 * Short transfers, which only the calling thread makes, have chunks of this size
 * and SHORT_PAIRS pairs of their own. If they used the pairs of the other
 * transfers, 16 threads that each read 4 KiB would wait for each other.
 */
#define SHORT_CHUNK ((size_t)128 << 10)
#define SHORT_PAIRS 32u
/* Minimum of the pieces of a half, unless the list is shorter. */
#define LEAST_PIECES 256u

/* Stores the staging pairs with chunks of one size. */
struct pool {
    size_t chunk;
    bool local; /* no ioctl uses the staging, so it is not registered */
    unsigned max, made;
    struct staging_pair *free;
};

struct pipeline {
    struct connection *owner;
    pthread_mutex_t lock; /* protects the other members */
    pthread_cond_t returned;
    struct pool pool;
    struct pool longs;  /* for long writes and lists, which otherwise take pairs of `pool` */
    struct pool shorts; /* for ranges of at most a chunk of it */
};

/*
 * Describes a transfer and the state of its threads. If the transfer has a
 * list, the members count pieces.
 */
struct job {
    struct gpunvme_buffer *b;
    const struct range *r;           /* NULL: of a list */
    const struct staging_list *list; /* NULL: of a range */
    size_t most;                     /* maximum of a half */
    pthread_mutex_t lock;            /* protects the other members */
    size_t next;                     /* the first one that no thread has taken */
    size_t end;                      /* those before it have been or will be moved */
    uint64_t bytes;                  /* of the pieces */
    int err;                         /* why the transfer ends there */
    char text[256];                  /* text of the error */
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
    p->pool = (struct pool){.chunk = chunk, .max = threads};
    p->longs = (struct pool){.chunk = LONG_CHUNK, .max = chunk < LONG_CHUNK ? LONG_PAIRS : 0};
    p->shorts = (struct pool){
        .chunk = SHORT_CHUNK, .local = true, .max = chunk > SHORT_CHUNK ? SHORT_PAIRS : 0};
    /* As in regions_new(), the lock is mostly held for less time than a thread needs to sleep. */
    p->lock = (pthread_mutex_t)PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
    pthread_cond_init(&p->returned, NULL);
    *out = p;
    return 0;
}

static void pool_free(struct pool *p)
{
    while (p->free) {
        struct staging_pair *pair = p->free;
        p->free = pair->next;
        staging_pair_free(pair);
    }
}

void pipeline_free(struct pipeline *p)
{
    if (!p)
        return;
    pool_free(&p->pool);
    pool_free(&p->longs);
    pool_free(&p->shorts);
    pthread_cond_destroy(&p->returned);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/*
 * Returns a free pair, or a new one while the limit allows it. Returns NULL with *err 0 if all are
 * in use.
 */
static struct staging_pair *get_pair(struct connection *g, struct pool *p, int *err)
{
    struct staging_pair *pair = p->free;

    *err = 0;
    if (pair)
        p->free = pair->next;
    else if (p->made < p->max && (*err = staging_pair_new(g, p->chunk, p->local, &pair)) == 0)
        p->made++;
    return pair;
}

/*
 * Takes at most `wanted` pairs of the pool. With `waits`, takes at least one pair. Returns the
 * number of pairs or -errno. Without `waits`, the number is lower if pairs are in use or memory is
 * short.
 */
static int get_pairs(struct pipeline *p, struct pool *pool, unsigned wanted, bool waits,
                     struct staging_pair **pairs)
{
    unsigned n = 0;
    int err = 0;

    pthread_mutex_lock(&p->lock);
    while (n < wanted) {
        pairs[n] = get_pair(p->owner, pool, &err);
        if (pairs[n])
            n++;
        else if (n || !waits || (err && !pool->made))
            break;
        else /* transfers of other threads end in bounded time */
            pthread_cond_wait(&p->returned, &p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return n || !waits ? (int)n : err;
}

static struct pool *pool_of(struct pipeline *p, const struct staging_pair *pair)
{
    if (pair->chunk == p->pool.chunk)
        return &p->pool;
    return pair->chunk == SHORT_CHUNK ? &p->shorts : &p->longs;
}

static void put_pairs(struct pipeline *p, struct staging_pair **pairs, int n)
{
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < n; i++) {
        struct pool *pool = pool_of(p, pairs[i]);
        pairs[i]->next = pool->free;
        pool->free = pairs[i];
    }
    pthread_cond_broadcast(&p->returned);
    pthread_mutex_unlock(&p->lock);
}

int pipeline_warm(struct pipeline *p, struct cuda_driver *cuda, int device)
{
    struct staging_pair *pairs[PIPELINE_MAX_THREADS + LONG_PAIRS + SHORT_PAIRS];
    int err = 0;
    int n = get_pairs(p, &p->pool, p->pool.max, true, pairs);

    if (n <= 0)
        return n;
    n += get_pairs(p, &p->longs, LONG_PAIRS, false, pairs + n);
    n += get_pairs(p, &p->shorts, SHORT_PAIRS, false, pairs + n);
    for (int i = 0; i < n && !err; i++)
        err = staging_pair_attach(pairs[i], cuda, device);
    put_pairs(p, pairs, n);
    return err;
}

/* Ends the job at `at`, unless it already ends earlier. */
static void pipeline_stop(struct job *j, size_t at, int err)
{
    pthread_mutex_lock(&j->lock);
    if (at < j->end) {
        j->end = at;
        j->err = err;
        snprintf(j->text, sizeof(j->text), "%s", gpunvme_error());
    }
    pthread_mutex_unlock(&j->lock);
}

/* Takes the next chunk, or the next pieces. */
static bool pipeline_claim(struct job *j, const struct staging_pair *pair, struct half *s)
{
    pthread_mutex_lock(&j->lock);
    s->at = j->next;
    s->len = j->next < j->end ? j->end - j->next : 0;
    if (s->len && j->list)
        s->len = staging_list_count(pair, j->list, s->at, j->most);
    else if (s->len > j->most)
        s->len = j->most;
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

static void add_result(struct job *j, const struct gpunvme_result *result)
{
    pthread_mutex_lock(&j->lock);
    j->result.commands += result->commands;
    if (!j->result.nvme_status)
        j->result.nvme_status = result->nvme_status;
    pthread_mutex_unlock(&j->lock);
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

    if (n < s->len)
        pipeline_stop(j, s->at + n, err);
    add_result(j, &result);
    s->len = n;
}

static void begin_pieces(struct job *j, struct staging_pair *pair, struct half *s)
{
    struct gpunvme_result result = {0};
    int err = staging_list_begin(pair, s, j->list, &result);

    add_result(j, &result);
    if (!err)
        return;
    pipeline_stop(j, s->at, err);
    s->len = 0;
}

static void finish_pieces(struct job *j, struct staging_pair *pair, struct half *s)
{
    uint64_t bytes = staging_list_finish(pair, s, j->list);

    pthread_mutex_lock(&j->lock);
    j->bytes += bytes;
    pthread_mutex_unlock(&j->lock);
}

/* Begins a chunk: when it returns, a copy is in flight. */
static void begin_chunk(struct job *j, struct staging_pair *pair, struct half *s)
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

/* Executes the second half of the work on a chunk. */
static void finish_chunk(struct job *j, struct staging_pair *pair, struct half *s)
{
    int err = staging_pair_copy_wait(pair, s);

    if (err)
        pipeline_stop(j, s->at, err);
    else if (j->r->write && !is_past(j, s->at))
        move_file(j, pair, s);
}

static void pipeline_begin(struct job *j, struct staging_pair *pair, struct half *s)
{
    if (j->list)
        begin_pieces(j, pair, s);
    else
        begin_chunk(j, pair, s);
}

static void pipeline_finish(struct job *j, struct staging_pair *pair, struct half *s)
{
    if (s->len && j->list)
        finish_pieces(j, pair, s);
    else if (s->len)
        finish_chunk(j, pair, s);
    s->len = 0;
}

/* Moves chunks. Chunk n ends before n + 2 begins in its half, and while n + 1 is being copied. */
static void run_pair(struct job *j, struct staging_pair *pair)
{
    unsigned i = 0;

    pair->halves[0].len = pair->halves[1].len = 0;
    for (;; i ^= 1) {
        pipeline_finish(j, pair, &pair->halves[i]);
        if (!pipeline_claim(j, pair, &pair->halves[i]))
            break;
        pipeline_begin(j, pair, &pair->halves[i]);
    }
    pipeline_finish(j, pair, &pair->halves[i ^ 1]);
}

static int prepare(const struct job *j, struct staging_pair *pair)
{
    int err = staging_pair_attach(pair, j->b->owner->cuda, j->b->device);

    return !err && j->list ? staging_pair_make_pieces(pair) : err;
}

/* A helper thread whose staging cannot be pinned leaves the work to the remaining ones. */
static void *help(void *arg)
{
    struct helper *h = arg;
    struct gpunvme_buffer *b = h->job->b;

    if (b->device != CUDA_NO_DEVICE)
        (void)cuda_driver_ignore_captures(b->owner->cuda); /* until the thread ends */
    if (prepare(h->job, h->pair) == 0)
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
    int err = prepare(j, pairs[0]);

    if (err)
        return err;
    int started = start_helpers(j, pairs + 1, n - 1, helpers);
    run_pair(j, pairs[0]);
    for (int i = 0; i < started; i++)
        pthread_join(helpers[i].thread, NULL);
    return 0;
}

/* Runs the job on pairs, which it returns, and adds to *result. Returns the job's error. */
static int run_job(struct pipeline *p, struct job *j, struct staging_pair **pairs, int n,
                   struct gpunvme_result *result)
{
    pthread_mutex_init(&j->lock, NULL);
    int err = run_pairs(j, pairs, n);
    pthread_mutex_destroy(&j->lock);
    put_pairs(p, pairs, n);
    if (!err && j->err)
        err = gpunvme_fail(j->err, "%s", j->text);
    result->commands += j->result.commands;
    if (!result->nvme_status)
        result->nvme_status = j->result.nvme_status;
    return err;
}

static size_t pipeline_clamp(size_t n, size_t least, size_t most)
{
    return n < least ? least : n > most ? most : n;
}

/*
 * Takes pairs for a range. Writes of one file exclude each other, and one
 * thread writes in order, so a write takes one pair. A long write has at least
 * four chunks, so that some are copied while the drive writes others.
 */
static int pairs_for_range(struct pipeline *p, struct job *j, struct staging_pair **pairs)
{
    size_t len = j->r->len, chunk = p->pool.chunk;

    j->most = chunk;
    if (len <= SHORT_CHUNK && p->shorts.max)
        return get_pairs(p, &p->shorts, 1, true, pairs);
    if (!j->r->write)
        return get_pairs(p, &p->pool,
                         (unsigned)pipeline_clamp((len - 1) / chunk + 1, 1, p->pool.max), true,
                         pairs);
    if (len <= 4 * chunk || !get_pairs(p, &p->longs, 1, false, pairs))
        return get_pairs(p, &p->pool, 1, true, pairs);
    j->most = pipeline_clamp(len / 4 / PAGE_BYTES * PAGE_BYTES, chunk, LONG_CHUNK);
    return 1;
}

size_t pipeline_run(struct pipeline *p, struct gpunvme_buffer *b, const struct range *r,
                    struct gpunvme_result *result, int *err)
{
    struct staging_pair *pairs[PIPELINE_MAX_THREADS];
    struct job j = {.b = b, .r = r, .end = r->len};

    *err = 0;
    if (!r->len)
        return 0;
    int n = pairs_for_range(p, &j, pairs);
    *err = n > 0 ? run_job(p, &j, pairs, n, result) : n;
    return *err && !j.err ? 0 : j.end;
}

/*
 * Takes pairs for a list. If the mount reads the list by READV, takes a few
 * pairs with long chunks. Otherwise takes as many pairs as the list has parts.
 */
static int pairs_for_list(struct pipeline *p, struct job *j, struct staging_pair **pairs)
{
    const struct staging_list *l = j->list;
    size_t bytes = 0;
    int n = 0;

    for (size_t i = 0; i < l->n; i++)
        bytes += l->pieces[i].len;
    if (bytes > 4 * p->pool.chunk)
        n = get_pairs(p, &p->longs, LONG_PAIRS, false, pairs);
    j->most = pipeline_clamp(l->n / 4, LEAST_PIECES, STAGING_PIECES);
    if (n && pairs[0]->staging->shared)
        return n;
    put_pairs(p, pairs, n);
    j->most = pipeline_clamp(l->n / (2 * p->pool.max), LEAST_PIECES, STAGING_PIECES);
    size_t parts = (l->n - 1) / j->most + 1 + bytes / p->pool.chunk;
    return get_pairs(p, &p->pool, (unsigned)pipeline_clamp(parts, 1, p->pool.max), true, pairs);
}

int pipeline_readv(struct pipeline *p, const struct staging_list *l, uint64_t *bytes,
                   struct gpunvme_result *result)
{
    struct staging_pair *pairs[PIPELINE_MAX_THREADS];
    struct job j = {.b = l->b, .list = l, .end = l->n};
    int n = pairs_for_list(p, &j, pairs);
    int err = n > 0 ? run_job(p, &j, pairs, n, result) : n;

    *bytes = j.bytes;
    return err;
}
