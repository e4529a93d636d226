/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Steps are placed in the ring in the order of the plan, read by threads, given to the caller, and
 * given back by a call of the host in stream order. The ring's free part is what lies between the
 * newest step placed and the oldest one not given back.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/io/io.h"
#include "client/io/io_stream_direct.h"
#include "client/lib/thread.h"
#include "gpunvme/gpunvme_stream.h"
#include "support/clock.h"

#define READERS     2
#define MAX_READERS 64
#define LIVE        64u /* steps between placed and given back */
#define PATIENCE_S  30

struct live {
    struct gpunvme_stream *owner;
    const struct gpunvme_step *step;
    size_t start, len;  /* in the ring */
    size_t begun, left; /* ranges that a reader has taken; ranges that are not read yet */
    int err;
    char why[160];
    bool leaving, returned; /* the stream has been asked to say that it passed; it did */
};

struct gpunvme_stream {
    struct gpunvme_io *io;
    char *ring;
    size_t ring_len;
    struct gpunvme_step *plan;
    struct gpunvme_range *ranges;
    size_t steps;
    bool loop, on_gpu;       /* where the ring is */
    pthread_mutex_t lock;    /* protects the rest */
    pthread_cond_t changed;  /* anything of it */
    struct live live[LIVE];  /* by their number modulo LIVE */
    uint64_t oldest, placed; /* numbers: not given back; next to be placed */
    uint64_t reading, given; /* oldest with ranges to take; next to be given */
    unsigned calls;          /* of the host, that streams have not come to */
    bool ending;
    unsigned readers, started;
    struct io_stream_direct *direct; /* NULL: gpunvme_io_read() */
    pthread_t threads[MAX_READERS];
};

/* --- The ring -------------------------------------------------------------------------------- */

static size_t aligned(size_t len)
{
    return (len + GPUNVME_STREAM_ALIGN - 1) / GPUNVME_STREAM_ALIGN * GPUNVME_STREAM_ALIGN;
}

static size_t length_of(const struct gpunvme_step *step)
{
    size_t len = 0;

    for (size_t i = 0; i < step->n; i++)
        len += aligned(step->ranges[i].len);
    return len;
}

static struct live *live_of(struct gpunvme_stream *s, uint64_t number)
{
    return &s->live[number % LIVE];
}

/* Under the lock: where `len` bytes are free. */
static bool find_room(struct gpunvme_stream *s, size_t len, size_t *start)
{
    *start = 0;
    if (s->oldest == s->placed)
        return true;
    const struct live *newest = live_of(s, s->placed - 1);
    size_t head = newest->start + newest->len, tail = live_of(s, s->oldest)->start;
    if (newest->start < tail) { /* around the end */
        *start = head;
        return tail - head >= len;
    }
    if (s->ring_len - head >= len) {
        *start = head;
        return true;
    }
    return tail >= len;
}

/* Under the lock. */
static bool place_next(struct gpunvme_stream *s)
{
    size_t start, len;

    if (s->placed - s->oldest == LIVE || (!s->loop && s->placed == s->steps))
        return false;
    const struct gpunvme_step *step = &s->plan[s->placed % s->steps];
    len = length_of(step);
    if (!find_room(s, len, &start))
        return false;
    struct live *l = live_of(s, s->placed++);
    *l = (struct live){.owner = s, .step = step, .start = start, .len = len, .left = step->n};
    return true;
}

/* Under the lock. Steps may be given back in another order by several streams. */
static void give_back(struct live *l)
{
    struct gpunvme_stream *s = l->owner;

    l->returned = true;
    while (s->oldest < s->given && live_of(s, s->oldest)->returned)
        s->oldest++;
    pthread_cond_broadcast(&s->changed);
}

/* --- Readers --------------------------------------------------------------------------------- */

/* Under the lock: the oldest range that no reader has taken. */
static struct live *take_range(struct gpunvme_stream *s, size_t *range)
{
    for (;;) {
        while (s->reading < s->placed) {
            struct live *l = live_of(s, s->reading);
            if (l->begun < l->step->n) {
                *range = l->begun++;
                return l;
            }
            s->reading++;
        }
        if (!place_next(s))
            return NULL;
    }
}

static int read_range(struct gpunvme_stream *s, unsigned reader, const struct live *l, size_t range)
{
    const struct gpunvme_range *r = &l->step->ranges[range];
    size_t at = l->start;

    for (size_t i = 0; i < range; i++)
        at += aligned(l->step->ranges[i].len);
    ssize_t n = s->direct ? io_stream_direct_read(s->direct, reader, r, s->ring + at)
                          : gpunvme_io_read(r->file, s->ring + at, r->len, r->offset, NULL);
    if (n >= 0 && (size_t)n < r->len)
        return gpunvme_fail(-EIO, "the file ends %zu bytes early", r->len - (size_t)n);
    return n < 0 ? (int)n : 0;
}

/* Under the lock. */
static void end_range(struct gpunvme_stream *s, struct live *l, int err)
{
    if (err && !l->err) {
        l->err = err;
        strncpy(l->why, gpunvme_error(), sizeof(l->why) - 1);
    }
    l->left--;
    pthread_cond_broadcast(&s->changed);
}

static void *read_ahead(void *arg)
{
    struct gpunvme_stream *s = arg;
    size_t range;

    pthread_mutex_lock(&s->lock);
    unsigned reader = s->started++;
    while (!s->ending) {
        struct live *l = take_range(s, &range);
        if (!l) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        int err = read_range(s, reader, l, range);
        pthread_mutex_lock(&s->lock);
        end_range(s, l, err);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static int start_readers(struct gpunvme_stream *s, unsigned readers)
{
    int err = 0;

    while (!err && s->readers < readers) {
        err = thread_start(&s->threads[s->readers], read_ahead, s);
        s->readers += !err;
    }
    return s->readers ? 0 : gpunvme_fail(-err, "a thread for reads: %s", strerror(err));
}

/* --- Open ------------------------------------------------------------------------------------ */

static int check_plan(const struct gpunvme_step *plan, size_t steps, size_t ring_len,
                      size_t *ranges)
{
    *ranges = 0;
    if (!steps)
        return gpunvme_fail(-EINVAL, "the plan is empty");
    for (size_t i = 0; i < steps; i++) {
        size_t len = 0;
        for (size_t k = 0; k < plan[i].n; k++) {
            size_t one = plan[i].ranges[k].len;
            if (!one || one > ring_len || aligned(one) > ring_len - len)
                return gpunvme_fail(
                    -EINVAL, "step %zu: empty, or larger than the ring of %zu bytes", i, ring_len);
            len += aligned(one);
        }
        if (!len)
            return gpunvme_fail(-EINVAL, "step %zu is empty", i);
        *ranges += plan[i].n;
    }
    return 0;
}

static int copy_plan(struct gpunvme_stream *s, const struct gpunvme_step *plan, size_t steps,
                     size_t ranges)
{
    assert(steps && ranges); /* check_plan() */
    s->plan = calloc(steps, sizeof(*s->plan));
    s->ranges = calloc(ranges, sizeof(*s->ranges));
    if (!s->plan || !s->ranges)
        return gpunvme_fail(-ENOMEM, "out of memory");
    struct gpunvme_range *to = s->ranges;
    for (size_t i = 0; i < steps; i++) {
        s->plan[i] = (struct gpunvme_step){.ranges = to, .n = plan[i].n};
        memcpy(to, plan[i].ranges, plan[i].n * sizeof(*to));
        to += plan[i].n;
    }
    s->steps = steps;
    return 0;
}

static void stream_free(struct gpunvme_stream *s)
{
    io_stream_direct_close(s->direct);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s->plan);
    free(s->ranges);
    free(s);
}

static int stream_start(struct gpunvme_stream *s, const struct gpunvme_step *plan, size_t steps,
                        size_t ranges, unsigned readers, bool direct)
{
    pthread_cond_init(&s->changed, NULL);
    pthread_mutex_init(&s->lock, NULL);
    int err = copy_plan(s, plan, steps, ranges);
    if (!err && direct)
        err = io_stream_direct_open(s->io, s->ranges, ranges, s->ring, s->ring_len, readers,
                                    &s->direct);
    return err ? err : start_readers(s, readers);
}

static bool is_on_gpu(struct gpunvme_io *io, const void *ring)
{
    struct cuda_driver *cu = io_cuda(io);
    int device = CUDA_NO_DEVICE;

    return cu && cuda_driver_locate(cu, (uintptr_t)ring, &device) == 0 && device != CUDA_NO_DEVICE;
}

int gpunvme_stream_open(struct gpunvme_io *io, const struct gpunvme_step *plan, size_t steps,
                        void *ring, size_t ring_len, const struct gpunvme_stream_options *options,
                        struct gpunvme_stream **out)
{
    unsigned readers = options && options->readers ? options->readers : READERS;
    size_t ranges;
    int err = check_plan(plan, steps, ring_len, &ranges);

    if (!err && (readers > MAX_READERS || (options && (options->loop > 1 || options->direct > 1))))
        err = gpunvme_fail(-EINVAL, "options of the stream: a value is out of range");
    if (err)
        return err;
    struct gpunvme_stream *s = calloc(1, sizeof(*s));
    if (!s)
        return gpunvme_fail(-ENOMEM, "out of memory");
    s->io = io;
    s->on_gpu = is_on_gpu(io, ring);
    s->ring = ring;
    s->ring_len = ring_len;
    s->loop = options && options->loop;
    err = stream_start(s, plan, steps, ranges, readers, options && options->direct);
    if (err)
        stream_free(s);
    else
        *out = s;
    return err;
}

/* --- Next ------------------------------------------------------------------------------------ */

/* Called by CUDA in stream order, and calls none of it. */
static void stream_has_passed(void *arg)
{
    struct live *l = arg;
    struct gpunvme_stream *s = l->owner;

    pthread_mutex_lock(&s->lock);
    s->calls--;
    give_back(l);
    pthread_mutex_unlock(&s->lock);
}

/* Under the lock: the step that was given last, if it is still the caller's. */
static struct live *last_given(struct gpunvme_stream *s)
{
    struct live *last = s->given ? live_of(s, s->given - 1) : NULL;

    return last && !last->leaving ? last : NULL;
}

static int call_in(struct cuda_driver *cu, void *stream, struct live *last)
{
    struct gpunvme_stream *s = last->owner;
    int err = cuda_driver_stream_call(cu, stream, stream_has_passed, last);

    if (!err)
        return 0;
    pthread_mutex_lock(&s->lock);
    last->leaving = false;
    s->calls--;
    pthread_mutex_unlock(&s->lock);
    return err;
}

/* The step that was given last, when the stream comes here. */
static int give_back_in(struct gpunvme_stream *s, void *stream)
{
    struct cuda_driver *cu = io_cuda(s->io);
    bool waits = cu && (stream || s->on_gpu);

    if (!cu && stream)
        return gpunvme_fail(-ENODEV, "a stream, but no CUDA driver in this process");
    if (waits && cuda_driver_is_captured(cu, stream))
        return gpunvme_fail(-ENOTSUP, "steps cannot be captured in a graph");
    pthread_mutex_lock(&s->lock);
    struct live *last = last_given(s);
    if (last)
        last->leaving = true;
    if (last && waits)
        s->calls++;
    else if (last)
        give_back(last);
    pthread_mutex_unlock(&s->lock);
    return last && waits ? call_in(cu, stream, last) : 0;
}

/* Under the lock: until the step `number` has been read. A read has the bounds of its path. */
static int await_step(struct gpunvme_stream *s, uint64_t number)
{
    uint64_t seen = s->oldest;
    uint64_t until = deadline_after_ms(PATIENCE_S * MS_PER_S);

    while (number >= s->placed || live_of(s, number)->left) {
        bool is_placed = number < s->placed;
        int late = cond_wait_until(&s->changed, &s->lock, until);
        if (is_placed || s->oldest != seen) {
            seen = s->oldest;
            until = deadline_after_ms(PATIENCE_S * MS_PER_S);
        } else if (late) {
            return gpunvme_fail(-ETIMEDOUT, "the stream has not come to a step for %d s",
                                PATIENCE_S);
        }
    }
    return 0;
}

ssize_t gpunvme_stream_next(struct gpunvme_stream *s, void *stream, void **addr)
{
    ssize_t n = give_back_in(s, stream);

    if (n || (!s->loop && s->given == s->steps))
        return n;
    pthread_mutex_lock(&s->lock);
    n = await_step(s, s->given);
    if (!n) {
        const struct live *l = live_of(s, s->given++);
        *addr = s->ring + l->start;
        n = l->err ? gpunvme_fail(l->err, "%s", l->why) : (ssize_t)l->len;
    }
    pthread_mutex_unlock(&s->lock);
    return n;
}

void gpunvme_stream_close(struct gpunvme_stream *s)
{
    uint64_t until = deadline_after_ms(PATIENCE_S * MS_PER_S);
    int late = 0;

    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->ending = true;
    pthread_cond_broadcast(&s->changed);
    while (s->calls && !late)
        late = cond_wait_until(&s->changed, &s->lock, until);
    bool idle = !s->calls;
    pthread_mutex_unlock(&s->lock);
    for (unsigned i = 0; i < s->readers; i++)
        pthread_join(s->threads[i], NULL);
    if (idle) /* else CUDA may call stream_has_passed() yet */
        stream_free(s);
}
