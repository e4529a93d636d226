/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Transfers that the caller does not wait for: by threads of the handle, in the order of the calls,
 * or in stream order. Reads of one file that are submitted together become one READV.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "client/lib/handle.h"
#include "client/lib/memory_space.h"
#include "support/clock.h"
#include "support/thread.h"

/* --- Threads --------------------------------------------------------------------------------- */

struct work {
    STAILQ_ENTRY(work) entry;
    void (*run)(struct work *w); /* may free it */
};

struct submit_threads {
    pthread_mutex_t lock; /* protects the rest */
    pthread_cond_t given;
    STAILQ_HEAD(, work) queue;
    unsigned waiting, given_count; /* threads without work, and work without a thread */
    unsigned made, max;
    bool ending;
    pthread_t threads[];
};

static int submit_threads_new(unsigned threads, struct submit_threads **out)
{
    struct submit_threads *w = calloc(1, sizeof(*w) + threads * sizeof(w->threads[0]));

    if (!w)
        return gpunvme_fail(-ENOMEM, "out of memory");
    w->max = threads;
    STAILQ_INIT(&w->queue);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->given, NULL);
    *out = w;
    return 0;
}

/* The caller holds the lock. Returns NULL if no more work will come. */
static struct work *threads_take(struct submit_threads *w)
{
    w->waiting++;
    while (STAILQ_EMPTY(&w->queue) && !w->ending)
        pthread_cond_wait(&w->given, &w->lock);
    w->waiting--;
    struct work *work = STAILQ_FIRST(&w->queue);
    if (!work)
        return NULL;
    STAILQ_REMOVE_HEAD(&w->queue, entry);
    w->given_count--;
    return work;
}

static void *threads_serve(void *arg)
{
    struct submit_threads *w = arg;
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
static int start_thread(struct submit_threads *w)
{
    int err = thread_start(&w->threads[w->made], threads_serve, w);

    if (err)
        return gpunvme_fail(-err, "a thread for transfers: %s", strerror(err));
    w->made++;
    return 0;
}

static int submit_threads_ready(struct submit_threads *w)
{
    pthread_mutex_lock(&w->lock);
    int err = w->made ? 0 : start_thread(w);
    pthread_mutex_unlock(&w->lock);
    return err;
}

static int submit_threads_give(struct submit_threads *w, struct work *work)
{
    int err = 0;

    pthread_mutex_lock(&w->lock);
    if (w->given_count >= w->waiting && w->made < w->max)
        err = start_thread(w);
    if (!w->made) {
        pthread_mutex_unlock(&w->lock);
        return err;
    }
    STAILQ_INSERT_TAIL(&w->queue, work, entry);
    w->given_count++;
    pthread_cond_signal(&w->given);
    pthread_mutex_unlock(&w->lock);
    return 0;
}

static void submit_threads_free(struct submit_threads *w)
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

/* --- In stream order: the stream calls the host, and waits for a word that a thread sets ------ */

#define THREADS    16
#define PATIENCE_S 30
#define OPS        16384u /* in flight, or waiting for their turn */

struct op {
    struct work work; /* first */
    struct submitter *owner;
    struct op *next; /* free */
    struct gpunvme_file *f;
    struct gpunvme_stream_transfer what;
    uint32_t turn; /* value of the word when it has ended */
};

struct submitter {
    struct submit_threads *threads;
    pthread_mutex_t lock; /* protects the rest */
    pthread_cond_t ended;
    struct op *ops, *free; /* made when the first is needed */
    uint32_t *words;       /* one word for each op; set under the lock, polled by the GPU */
    struct memory_space space;
    struct memory_space_map map; /* of the words */
    unsigned under_way;
    bool abandoned; /* operations that have not begun never will */
};

int submit_new(struct submitter **out)
{
    struct submitter *a = calloc(1, sizeof(*a));

    if (!a)
        return gpunvme_fail(-ENOMEM, "out of memory");
    int err = submit_threads_new(THREADS, &a->threads);
    if (err) {
        free(a);
        return err;
    }
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->ended, NULL);
    *out = a;
    return 0;
}

/*
 * Returns false if no operation has ended for PATIENCE_S, as after a fault in the stream's context.
 */
static bool await_ops(struct submitter *a)
{
    int timed_out = 0;

    pthread_mutex_lock(&a->lock);
    while (a->under_way && !timed_out) {
        uint64_t until = deadline_after_ms(PATIENCE_S * MS_PER_S);
        timed_out = cond_wait_until(&a->ended, &a->lock, until);
    }
    bool idle = !a->under_way;
    a->abandoned = !idle;
    pthread_mutex_unlock(&a->lock);
    return idle;
}

bool submit_stop(struct submitter *a)
{
    bool idle = await_ops(a);

    submit_threads_free(a->threads);
    return idle; /* otherwise CUDA may call begin_op() yet */
}

void submit_free(struct submitter *a)
{
    memory_space_unshare(&a->space, &a->map);
    free(a->ops);
    pthread_cond_destroy(&a->ended);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

/* Under the lock. */
static int make_ops(struct submitter *a, struct cuda_driver *cu, int device)
{
    a->space = (struct memory_space){.cuda = cu, .device = device};
    a->ops = calloc(OPS, sizeof(*a->ops));
    if (!a->ops)
        return gpunvme_fail(-ENOMEM, "out of memory");
    int err = memory_space_alloc_host(&a->space, OPS * sizeof(*a->words), &a->map);
    if (err) {
        free(a->ops);
        a->ops = NULL;
        return err;
    }
    a->words = a->map.addr;
    for (size_t i = 0; i < OPS; i++) {
        a->ops[i].owner = a;
        a->ops[i].next = i + 1 < OPS ? &a->ops[i + 1] : NULL;
    }
    a->free = a->ops;
    return 0;
}

static int take_op(struct submitter *a, struct cuda_driver *cu, int device, struct op **out)
{
    int err = 0;

    pthread_mutex_lock(&a->lock);
    if (!a->ops)
        err = make_ops(a, cu, device);
    struct op *op = err ? NULL : a->free;
    if (op) {
        a->free = op->next;
        a->under_way++;
    } else if (!err) {
        err = gpunvme_fail(-EAGAIN, "%u transfers wait for their streams", OPS);
    }
    *out = op;
    pthread_mutex_unlock(&a->lock);
    return err;
}

static uint32_t *word_of(const struct op *op)
{
    return &op->owner->words[op - op->owner->ops];
}

/*
 * The result and the bytes are stored before the word, because the GPU starts work that uses them
 * as soon as it sees the word. Words only grow, so earlier waits for a word remain satisfied.
 */
static void end_op(struct op *op, bool begun)
{
    struct submitter *a = op->owner;
    struct gpunvme_file *f = op->f;

    pthread_mutex_lock(&a->lock);
    if (begun)
        __atomic_store_n(word_of(op), op->turn, __ATOMIC_RELEASE);
    op->next = a->free;
    a->free = op;
    a->under_way--;
    pthread_cond_broadcast(&a->ended);
    pthread_mutex_unlock(&a->lock);
    file_put(f);
}

static int64_t async_move(struct gpunvme_file *f, const struct gpunvme_stream_transfer *what,
                          struct gpunvme_result *result)
{
    char *addr = (char *)what->addr + *what->addr_offset;

    if (*what->file_offset < 0)
        return gpunvme_fail(-EINVAL, "a negative offset");
    uint64_t at = (uint64_t)*what->file_offset;
    return what->write ? gpunvme_write(f, addr, *what->len, at, result)
                       : gpunvme_read(f, addr, *what->len, at, result);
}

static void async_run(struct gpunvme_file *f, const struct gpunvme_stream_transfer *what)
{
    struct gpunvme_result result = {.why = ""};

    *what->bytes = async_move(f, what, &result);
    if (what->done)
        what->done(what->arg, what, &result);
}

static void run_op(struct work *w)
{
    struct op *op = (struct op *)w;

    async_run(op->f, &op->what);
    end_op(op, true);
}

/* Called by CUDA in stream order. It must not call CUDA. */
static void begin_op(void *arg)
{
    struct op *op = arg;
    struct submitter *a = op->owner;

    pthread_mutex_lock(&a->lock);
    int err = a->abandoned ? -ECANCELED : 0;
    pthread_mutex_unlock(&a->lock);
    if (!err)
        err = submit_threads_give(a->threads, &op->work);
    if (!err)
        return;
    *op->what.bytes = err;
    end_op(op, true);
}

/* Makes all calls that could wait for a stream before the stream waits for this library. */
static void warm(struct gpunvme_file *f, const struct gpunvme_stream_transfer *what, int device)
{
    struct region_use u;

    if (device != CUDA_NO_DEVICE)
        (void)gpunvme_warm_pipeline(f->mount, device);
    if (device != CUDA_NO_DEVICE && f->mount != f->g->local)
        (void)gpunvme_warm_pipeline(f->g->local, device);
    if (*what->len && file_use(f, (char *)what->addr + *what->addr_offset, *what->len, &u) == 0)
        regions_release(f->g->regions, &u);
}

/*
 * If a stream cannot wait for memory, this thread waits for the stream. If that fails too, the
 * process cannot use CUDA any more, and it is unknown whether the operation begins.
 */
static void await_on_host(struct op *op, struct cuda_driver *cu, void *stream, uint32_t turn)
{
    struct submitter *a = op->owner;
    const uint32_t *word = word_of(op);

    if (cuda_driver_stream_end(cu, stream))
        return;
    pthread_mutex_lock(&a->lock);
    while ((int32_t)(*word - turn) < 0)
        pthread_cond_wait(&a->ended, &a->lock);
    pthread_mutex_unlock(&a->lock);
}

static int async_enqueue(struct op *op, struct cuda_driver *cu, void *stream)
{
    struct submitter *a = op->owner;
    const uint32_t *word = word_of(op);
    uint32_t turn = op->turn = *word + 1;
    int err = cuda_driver_stream_call(cu, stream, begin_op, op);

    if (err) {
        end_op(op, false);
        return err;
    }
    uint64_t at = a->map.at + (uint64_t)((const char *)word - (const char *)a->words);
    if (cuda_driver_stream_await(cu, stream, at, turn))
        await_on_host(op, cu, stream, turn);
    return 0;
}

static int submit_direct(struct gpunvme_file *f, const struct gpunvme_stream_transfer *t,
                         void *stream)
{
    char *addr = (char *)t->addr + *t->addr_offset;
    struct region_use u;
    int err = file_use(f, addr, *t->len, &u);

    if (err)
        return err;
    err = file_direct_launch(f, &u, addr, t, stream);
    regions_release(f->g->regions, &u);
    return err;
}

int gpunvme_submit_stream(struct gpunvme_file *f, const struct gpunvme_stream_transfer *t,
                          void *stream)
{
    struct op *op;
    int device = CUDA_NO_DEVICE, err = handle_check_process(f->g);

    if (err)
        return err;
    if (f->leased)
        return submit_direct(f, t, stream);
    if (t->pieces)
        return gpunvme_fail(-EINVAL, "pieces in stream order are read from direct files");
    struct cuda_driver *cu = handle_cuda(f->g);
    if (!cu && stream)
        return gpunvme_fail(-ENODEV, "a stream, but no CUDA driver in this process");
    if (!cu) {
        async_run(f, t);
        return 0;
    }
    if (cuda_driver_is_captured(cu, stream))
        return gpunvme_fail(-ENOTSUP, "transfers cannot be captured in a graph");
    err = submit_threads_ready(f->g->submitter->threads);
    if (!err)
        err = cuda_driver_locate(cu, (uintptr_t)t->addr, &device);
    if (err)
        return err;
    warm(f, t, device);
    err = take_op(f->g->submitter, cu, device == CUDA_NO_DEVICE ? 0 : device, &op);
    if (err)
        return err;
    op->work.run = run_op;
    file_get(f);
    op->f = f;
    op->what = *t;
    return async_enqueue(op, cu, stream);
}

static_assert(sizeof(struct work) == sizeof(((struct gpunvme_transfer *)0)->reserved),
              "a request begins with the threads' part of it");

/*
 * Another thread may free the transfer after this. Without done(), the word that gpunvme_wait()
 * polls is cleared last, under the lock, which publishes the results.
 */
static void submit_finish(struct submitter *a, struct gpunvme_transfer *t)
{
    if (t->done) {
        t->done(t);
        return;
    }
    t->result.why = "";
    pthread_mutex_lock(&a->lock);
    ((struct work *)t)->run = NULL;
    pthread_cond_broadcast(&a->ended);
    pthread_mutex_unlock(&a->lock);
}

ssize_t gpunvme_wait(struct gpunvme_transfer *t)
{
    struct submitter *a = t->file->g->submitter;

    pthread_mutex_lock(&a->lock);
    while (((struct work *)t)->run)
        pthread_cond_wait(&a->ended, &a->lock);
    pthread_mutex_unlock(&a->lock);
    return t->bytes;
}

static ssize_t move_request(struct gpunvme_transfer *r)
{
    if (r->pieces)
        return gpunvme_readv(r->file, r->addr, r->len, r->pieces, r->n_pieces, &r->result);
    return r->write ? gpunvme_write(r->file, r->addr, r->len, r->file_offset, &r->result)
                    : gpunvme_read(r->file, r->addr, r->len, r->file_offset, &r->result);
}

static void async_run_request(struct work *w)
{
    struct gpunvme_transfer *r = (struct gpunvme_transfer *)w;
    struct gpunvme_file *f = r->file;

    r->bytes = move_request(r);
    submit_finish(f->g->submitter, r);
    file_put(f);
}

static int submit_one(struct gpunvme_transfer *r)
{
    struct work *w = (struct work *)r;

    if (r->write && r->pieces)
        return gpunvme_fail(-EINVAL, "pieces are read, not written");
    struct gpunvme_file *f = r->file;
    int err = handle_check_process(f->g);
    if (err)
        return err;
    file_get(f);
    w->run = async_run_request;
    err = submit_threads_give(f->g->submitter->threads, w);
    if (err)
        file_put(f);
    return err;
}

/* --- Lists: reads of one file into one buffer of its mount become one READV ------------------- */

struct list {
    struct work work;                   /* first */
    struct gpunvme_transfer **requests; /* behind the pieces */
    size_t n;
    char *addr; /* range of all their memory, from its first to its last byte */
    size_t len;
    struct gpunvme_piece pieces[];
};

static bool is_piece(const struct gpunvme_transfer *r)
{
    return !r->write && !r->pieces && r->len && r->len <= INT32_MAX && !r->file->why[0] &&
           !r->file->leased;
}

/* Returns how many of the first requests may be pieces of one READV. */
static size_t run_length(struct gpunvme_transfer *const *requests, size_t n)
{
    size_t i = 0;

    while (i < n && is_piece(requests[i]) && requests[i]->file == requests[0]->file)
        i++;
    return i;
}

static void set_memory(struct list *l)
{
    uintptr_t first = UINTPTR_MAX, end = 0;

    for (size_t i = 0; i < l->n; i++) {
        uintptr_t at = (uintptr_t)l->requests[i]->addr;
        first = at < first ? at : first;
        end = at + l->requests[i]->len > end ? at + l->requests[i]->len : end;
    }
    l->addr = (char *)first;
    l->len = end - first;
}

/*
 * Returns true if the memory has a buffer at the mount of the file. A READV of other memory would
 * read the pieces one after the other.
 */
static bool is_mounts_memory(const struct list *l)
{
    struct gpunvme_file *f = l->requests[0]->file;
    struct region_use u;

    if (file_use(f, l->addr, l->len, &u) != 0)
        return false;
    bool known = u.buffer->owner == f->mount;
    regions_release(f->g->regions, &u);
    return known;
}

/* Pieces that the call has not reached keep the result of a read that did not begin. */
static void set_pieces(struct list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        const struct gpunvme_transfer *r = l->requests[i];
        l->pieces[i] =
            (struct gpunvme_piece){.file_offset = r->file_offset,
                                   .buffer_offset = (uint64_t)((char *)r->addr - l->addr),
                                   .len = (uint32_t)r->len,
                                   .result = -ECANCELED};
    }
}

static struct list *submit_list_new(struct gpunvme_transfer *const *requests, size_t n)
{
    size_t each = sizeof(struct gpunvme_piece) + sizeof(requests[0]);
    struct list *l = calloc(1, sizeof(*l) + n * each);

    if (!l)
        return NULL;
    l->requests = (struct gpunvme_transfer **)&l->pieces[n];
    l->n = n;
    memcpy(l->requests, requests, n * sizeof(requests[0]));
    set_memory(l);
    if (is_mounts_memory(l)) {
        set_pieces(l);
        return l;
    }
    free(l);
    return NULL;
}

/* --- The transfer ---------------------------------------------------------------------------- */

static void end_request(const struct list *l, size_t i, int err, const struct gpunvme_result *sum)
{
    struct gpunvme_transfer *r = l->requests[i];
    int32_t result = l->pieces[i].result;

    if (err && result == -ECANCELED)
        result = err;
    else if (result < 0)
        gpunvme_fail(result, "a read of a list: %s", strerror(-result));
    r->bytes = result;
    r->result = *sum;
    r->result.commands = i ? 0 : sum->commands;
    r->result.nvme_status = result < 0 ? sum->nvme_status : 0;
    submit_finish(r->file->g->submitter, r);
}

static void run_list(struct work *w)
{
    struct list *l = (struct list *)w;
    struct gpunvme_file *f = l->requests[0]->file;
    struct gpunvme_result sum;
    int err = gpunvme_readv(f, l->addr, l->len, l->pieces, l->n, &sum);

    for (size_t i = 0; i < l->n; i++)
        end_request(l, i, err, &sum);
    free(l);
    file_put(f);
}

static bool submit_list(struct gpunvme_transfer *const *requests, size_t n)
{
    struct gpunvme_file *f = requests[0]->file;
    struct list *l = handle_check_process(f->g) ? NULL : submit_list_new(requests, n);

    if (!l)
        return false;
    file_get(f);
    l->work.run = run_list;
    for (size_t i = 0; i < n; i++)
        ((struct work *)requests[i])->run = async_run_request; /* until its end */
    if (submit_threads_give(f->g->submitter->threads, &l->work) == 0)
        return true;
    file_put(f);
    free(l);
    return false;
}

ssize_t gpunvme_submit(struct gpunvme_transfer *const *transfers, size_t n)
{
    size_t started = 0;
    int err = 0;

    while (started < n && !err) {
        size_t run = run_length(transfers + started, n - started);
        if (run > 1 && submit_list(transfers + started, run)) {
            started += run;
            continue;
        }
        for (size_t end = started + (run ? run : 1); started < end && !err; started += !err)
            err = submit_one(transfers[started]);
    }
    return started || !err ? (ssize_t)started : err;
}
