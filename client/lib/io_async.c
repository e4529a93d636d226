/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Transfers in stream order. The stream calls the host when it is an operation's turn, which gives
 * it to a thread, and then waits for a word in host memory that the thread sets when it has ended.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/lib/io.h"
#include "client/lib/io_threads.h"
#include "support/clock.h"

#define THREADS    16
#define PATIENCE_S 30
#define OPS        16384u /* under way or waiting for their turn */

struct op {
    struct work work; /* first */
    struct io_async *owner;
    struct op *next; /* free */
    struct gpunvme_io_file *f;
    struct gpunvme_io_async what;
    uint32_t turn; /* value of its word when it has ended */
};

struct io_async {
    struct io_threads *threads;
    pthread_mutex_t lock; /* protects the rest */
    pthread_cond_t ended;
    struct op *ops, *free; /* made when the first is needed */
    uint32_t *words;       /* one for each op; set under the lock, polled by the GPU */
    uint64_t mapped;       /* where they are for the GPU */
    unsigned under_way;
    bool abandoned; /* what has not begun never will */
    struct cuda_driver *cuda;
    int device; /* that the words are pinned for */
};

int io_async_new(struct io_async **out)
{
    struct io_async *a = calloc(1, sizeof(*a));

    if (!a)
        return gpunvme_fail(-ENOMEM, "out of memory");
    int err = io_threads_new(THREADS, &a->threads);
    if (err) {
        free(a);
        return err;
    }
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->ended, NULL);
    *out = a;
    return 0;
}

/* False: none has ended for PATIENCE_S, as after a fault in the stream's context. */
static bool await_ops(struct io_async *a)
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

void io_async_free(struct io_async *a)
{
    if (!a)
        return;
    bool idle = await_ops(a);
    io_threads_free(a->threads);
    if (!idle) /* CUDA may call begin_op() yet */
        return;
    if (a->words) {
        cuda_driver_unpin(a->cuda, a->device, a->words);
        munmap(a->words, OPS * sizeof(*a->words));
    }
    free(a->ops);
    pthread_cond_destroy(&a->ended);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

/* Under the lock. */
static int make_ops(struct io_async *a, struct cuda_driver *cu, int device)
{
    size_t len = OPS * sizeof(*a->words);

    a->ops = calloc(OPS, sizeof(*a->ops));
    void *words =
        mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    int err = a->ops && words != MAP_FAILED ? 0 : gpunvme_fail(-ENOMEM, "out of memory");
    if (!err)
        err = cuda_driver_map(cu, device, words, len, CUDA_HOST_MEMORY, &a->mapped);
    if (err) {
        if (words != MAP_FAILED)
            munmap(words, len);
        free(a->ops);
        a->ops = NULL;
        return err;
    }
    a->words = words;
    a->cuda = cu;
    a->device = device;
    for (size_t i = 0; i < OPS; i++) {
        a->ops[i].owner = a;
        a->ops[i].next = i + 1 < OPS ? &a->ops[i + 1] : NULL;
    }
    a->free = a->ops;
    return 0;
}

static int take_op(struct io_async *a, struct cuda_driver *cu, int device, struct op **out)
{
    int err = 0;

    pthread_mutex_lock(&a->lock);
    if (!a->ops)
        err = make_ops(a, cu, device);
    struct op *op = a->free;
    if (!err && !op) {
        gpunvme_fail(-EAGAIN, "%u transfers wait for their streams", OPS);
        err = -EAGAIN;
    }
    if (!err) {
        a->free = op->next;
        a->under_way++;
        *out = op;
    }
    pthread_mutex_unlock(&a->lock);
    return err;
}

static uint32_t *word_of(const struct op *op)
{
    return &op->owner->words[op - op->owner->ops];
}

/*
 * The result and the bytes are stored before the word: the GPU that sees the word lets work begin
 * that uses them. A word that moves on keeps earlier waits for it satisfied.
 */
static void end_op(struct op *op, bool begun)
{
    struct io_async *a = op->owner;

    pthread_mutex_lock(&a->lock);
    if (begun)
        __atomic_store_n(word_of(op), op->turn, __ATOMIC_RELEASE);
    op->next = a->free;
    a->free = op;
    a->under_way--;
    pthread_cond_broadcast(&a->ended);
    pthread_mutex_unlock(&a->lock);
}

static int64_t async_move(struct gpunvme_io_file *f, const struct gpunvme_io_async *what,
                          struct gpunvme_result *result)
{
    char *addr = (char *)what->addr + *what->addr_offset;

    if (*what->file_offset < 0)
        return gpunvme_fail(-EINVAL, "a negative offset");
    uint64_t at = (uint64_t)*what->file_offset;
    return what->write ? gpunvme_io_write(f, addr, *what->len, at, result)
                       : gpunvme_io_read(f, addr, *what->len, at, result);
}

static void async_run(struct gpunvme_io_file *f, const struct gpunvme_io_async *what)
{
    struct gpunvme_result result = {.why = ""};

    *what->bytes = async_move(f, what, &result);
    if (what->done)
        what->done(what->arg, what, &result);
}

static void run_op(struct work *w)
{
    struct op *op = (struct op *)w;

    struct gpunvme_io_file *f = op->f;

    async_run(f, &op->what);
    end_op(op, true);
    io_file_put(f);
}

static bool is_abandoned(struct io_async *a)
{
    pthread_mutex_lock(&a->lock);
    bool abandoned = a->abandoned;
    pthread_mutex_unlock(&a->lock);
    return abandoned;
}

/* Called by CUDA in stream order, and calls none of it. */
static void begin_op(void *arg)
{
    struct op *op = arg;
    int err = is_abandoned(op->owner) ? -ECANCELED : io_threads_give(op->owner->threads, &op->work);

    if (!err)
        return;
    struct gpunvme_io_file *f = op->f;
    *op->what.bytes = err;
    end_op(op, true);
    io_file_put(f);
}

/* What could wait for a stream is done before the stream waits for us. */
static void warm(struct gpunvme_io_file *f, const struct gpunvme_io_async *what, int device)
{
    struct region_use u;

    if (device != CUDA_NO_DEVICE)
        (void)gpunvme_warm_pipeline(f->mount->g, device);
    if (device != CUDA_NO_DEVICE && f->mount != f->io->local)
        (void)gpunvme_warm_pipeline(f->io->local->g, device);
    if (*what->len && io_use(f, (char *)what->addr + *what->addr_offset, *what->len, &u) == 0)
        regions_release(f->io->regions, &u);
}

/*
 * A stream that cannot wait for memory is waited for. Where that fails too, CUDA is lost to the
 * process, and whether the operation begins is not known.
 */
static void await_on_host(struct op *op, struct cuda_driver *cu, void *stream, uint32_t turn)
{
    struct io_async *a = op->owner;
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
    struct io_async *a = op->owner;
    const uint32_t *word = word_of(op);
    uint32_t turn = op->turn = *word + 1;
    int err = cuda_driver_stream_call(cu, stream, begin_op, op);

    if (err) {
        end_op(op, false);
        return err;
    }
    uint64_t at = a->mapped + (uint64_t)((const char *)word - (const char *)a->words);
    if (cuda_driver_stream_await(cu, stream, at, turn))
        await_on_host(op, cu, stream, turn);
    return 0;
}

int gpunvme_io_submit(struct gpunvme_io_file *f, const struct gpunvme_io_async *a, void *stream)
{
    struct op *op;
    int device = CUDA_NO_DEVICE, err = io_check_process(f->io);

    if (err)
        return err;
    struct cuda_driver *cu = io_cuda(f->io);
    if (!cu && stream)
        return gpunvme_fail(-ENODEV, "a stream, but no CUDA driver in this process");
    if (!cu) {
        async_run(f, a);
        return 0;
    }
    if (cuda_driver_is_captured(cu, stream))
        return gpunvme_fail(-ENOTSUP, "transfers cannot be captured in a graph");
    err = io_threads_ready(f->io->async->threads);
    if (!err)
        err = cuda_driver_locate(cu, (uintptr_t)a->addr, &device);
    if (err)
        return err;
    warm(f, a, device);
    err = take_op(f->io->async, cu, device == CUDA_NO_DEVICE ? 0 : device, &op);
    if (err)
        return err;
    op->work.run = run_op;
    io_file_get(f);
    op->f = f;
    op->what = *a;
    err = async_enqueue(op, cu, stream);
    if (err)
        io_file_put(f);
    return err;
}

static_assert(sizeof(struct work) == sizeof(((struct gpunvme_io_request *)0)->reserved),
              "a request begins with the threads' part of it");

int io_async_give(struct io_async *a, struct work *work)
{
    return io_threads_give(a->threads, work);
}

static ssize_t move_request(struct gpunvme_io_request *r)
{
    if (r->pieces)
        return gpunvme_io_readv(r->file, r->addr, r->len, r->pieces, r->n_pieces, &r->result);
    return r->write ? gpunvme_io_write(r->file, r->addr, r->len, r->file_offset, &r->result)
                    : gpunvme_io_read(r->file, r->addr, r->len, r->file_offset, &r->result);
}

static void async_run_request(struct work *w)
{
    struct gpunvme_io_request *r = (struct gpunvme_io_request *)w;
    struct gpunvme_io_file *f = r->file;

    r->bytes = move_request(r);
    r->done(r); /* may free r */
    io_file_put(f);
}

int gpunvme_io_start(struct gpunvme_io_request *r)
{
    struct work *w = (struct work *)r;

    if (r->write && r->pieces)
        return gpunvme_fail(-EINVAL, "pieces are read, not written");
    struct gpunvme_io_file *f = r->file;
    int err = io_check_process(f->io);
    if (err)
        return err;
    io_file_get(f);
    w->run = async_run_request;
    err = io_threads_give(f->io->async->threads, w);
    if (err)
        io_file_put(f);
    return err;
}
