/* SPDX-License-Identifier: BSD-2-Clause */
/* Keeps records of operations, and their sums. */
#include "fusefs/daemon/state/op.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "fusefs/daemon/state/daemon.h"
#include "fusefs/metrics.h"
#include "support/clock.h"
#include "support/minmax.h"
#include "support/trace.h"

#define OP_NS_PER_US 1000u

static_assert(sizeof(((struct op_totals *)0)->fallbacks) ==
                  sizeof(((struct gpunvme_ioc_stats *)0)->fallbacks),
              "reasons");

static void op_count(_Atomic uint64_t *to, uint64_t n)
{
    atomic_fetch_add_explicit(to, n, memory_order_relaxed);
}

static uint64_t op_load(const _Atomic uint64_t *from)
{
    return atomic_load_explicit(from, memory_order_relaxed);
}

unsigned op_bucket(uint64_t ns)
{
    uint64_t us = ns / OP_NS_PER_US;
    unsigned i = us ? 63u - (unsigned)__builtin_clzll(us) : 0;

    return i < GPUNVME_LATENCY_BUCKETS ? i : GPUNVME_LATENCY_BUCKETS - 1;
}

static bool op_is_write(const struct op *op)
{
    return op->kind == GPUNVME_OP_WRITE || op->kind == OP_KERNEL_WRITE;
}

static bool op_is_kernels(const struct op *op)
{
    return op->kind == OP_KERNEL_READ || op->kind == OP_KERNEL_WRITE;
}

void op_begin(struct op *op)
{
    if (!op_is_kernels(op))
        op->begun_ns = now_ns();
    trace(TRACE_OP, op->kind, op->ino, op->offset, op->len, 0);
}

/* A block that was read again has been counted twice. */
static uint64_t op_bounced(const struct op *op)
{
    return min_u64(op->bounced, op->bytes);
}

/* Counts one call for the file. A call of 0 bytes is not counted. */
static void op_count_call(const struct op *op, enum activity_path path, uint64_t bytes)
{
    if (!bytes)
        return;
    op_count(&op->activity->calls, 1);
    op_count(&op->activity->bytes[path][op_is_write(op)], bytes);
}

static void op_count_file(const struct op *op)
{
    uint64_t bounced = op_bounced(op);

    if (!op->activity)
        return;
    if (op_is_kernels(op)) {
        op_count_call(op, ACTIVITY_KERNEL, op->bytes);
        return;
    }
    op_count_call(op, ACTIVITY_BOUNCE, bounced);
    op_count_call(op, ACTIVITY_GPU, op->bytes - bounced);
}

static void op_count_path(const struct op *op)
{
    struct op_totals *t = op->totals;
    uint64_t ns = now_ns() - op->begun_ns;

    op_count(&t->latency[op->kind][op->path - 1].ns, ns);
    op_count(&t->latency[op->kind][op->path - 1].buckets[op_bucket(ns)], 1);
    if (op->path & GPUNVME_PATH_BOUNCE) {
        op_count(&t->bounce_transfers, 1);
        op_count(&t->bounce_bytes[op_is_write(op)], op_bounced(op));
    }
}

void op_end(struct op *op)
{
    op_count_file(op);
    if (op->path && !op_is_kernels(op))
        op_count_path(op);
    trace(TRACE_OP_DONE, op->kind, op->ino, op->commands, op->bytes, op->error);
}

static unsigned op_reason(int err)
{
    switch (err) {
    case 0:
        return GPUNVME_FALLBACK_NO_EXECUTOR;
    case -ETIMEDOUT:
        return GPUNVME_FALLBACK_LOST_COMMAND;
    case -ENOMEM:
        return GPUNVME_FALLBACK_NO_MEMORY;
    case -EAGAIN:
    case -EBUSY:
        return GPUNVME_FALLBACK_BUSY;
    case -ENODEV:
        return GPUNVME_FALLBACK_NO_QUEUE;
    case -ENOTSUP:
        return GPUNVME_FALLBACK_UNSUPPORTED;
    case -ENOSPC:
        return GPUNVME_FALLBACK_NO_SPACE;
    default:
        return GPUNVME_FALLBACK_DRIVE_ERROR;
    }
}

void op_fell_back(struct op *op, int err)
{
    op_count(&op->totals->fallbacks[op_reason(err)], 1);
}

void op_totals_fill(struct op_totals *t, struct gpunvme_ioc_stats *out)
{
    for (unsigned i = 0; i < 9; i++) {
        struct gpunvme_latency *l = &out->latency[i / 3][i % 3];
        l->ns = op_load(&t->latency[i / 3][i % 3].ns);
        for (unsigned k = 0; k < GPUNVME_LATENCY_BUCKETS; k++)
            l->buckets[k] = op_load(&t->latency[i / 3][i % 3].buckets[k]);
    }
    for (unsigned i = 0; i < sizeof(t->fallbacks) / sizeof(t->fallbacks[0]); i++)
        out->fallbacks[i] = op_load(&t->fallbacks[i]);
    out->fuse_requests = op_load(&t->requests);
    out->bounce_transfers = op_load(&t->bounce_transfers);
    out->bounce_read_bytes = op_load(&t->bounce_bytes[0]);
    out->bounce_written_bytes = op_load(&t->bounce_bytes[1]);
}

/* --- Open files ------------------------------------------------------------------------------ */

static_assert(ACTIVITY_CLOSED < GPUNVME_OPEN_FILES_MAX, "the first answer has room for open ones");

static void activity_describe(const struct open_file *file, struct gpunvme_open_file *out)
{
    const struct activity *a = &file->activity;
    uint64_t caller = op_load(&a->caller);

    *out = (struct gpunvme_open_file){
        .id = a->id,
        .ino = ffs_ino(file->inode),
        .uid = (uint32_t)(caller >> 32),
        .pid = (uint32_t)caller,
        .calls = op_load(&a->calls),
        .gpu_read_bytes = op_load(&a->bytes[ACTIVITY_GPU][0]),
        .gpu_written_bytes = op_load(&a->bytes[ACTIVITY_GPU][1]),
        .bounce_read_bytes = op_load(&a->bytes[ACTIVITY_BOUNCE][0]),
        .bounce_written_bytes = op_load(&a->bytes[ACTIVITY_BOUNCE][1]),
        .kernel_read_bytes = op_load(&a->bytes[ACTIVITY_KERNEL][0]),
        .kernel_written_bytes = op_load(&a->bytes[ACTIVITY_KERNEL][1]),
    };
    if (file->shared_calls)
        shared_calls_describe(file->shared_calls, out);
}

void activity_end(struct activity_log *log, const struct open_file *file)
{
    struct gpunvme_open_file last;

    activity_describe(file, &last);
    if (!last.calls)
        return;
    last.closed = 1;
    log->closed[log->next++ % ACTIVITY_CLOSED] = last;
}

void activity_caller(struct activity *a, uid_t uid, pid_t pid)
{
    uint64_t caller = (uint64_t)uid << 32 | (uint32_t)pid;

    /*
     * Avoids repeated writes to the cache line by threads that share the file.
     */
    if (pid && op_load(&a->caller) != caller)
        atomic_store_explicit(&a->caller, caller, memory_order_relaxed);
}

/* --- Answers --------------------------------------------------------------------------------- */

bool activity_visible(uid_t uid, uint32_t owner)
{
    return uid == 0 || uid == owner;
}

static void activity_add_file(struct gpunvme_ioc_open_files *arg, uid_t uid,
                              const struct gpunvme_open_file *file)
{
    if (file->calls && activity_visible(uid, file->uid))
        arg->files[arg->count++] = *file;
}

int activity_files(struct daemon *d, uid_t uid, struct gpunvme_ioc_open_files *arg)
{
    const uint64_t below = arg->below ? arg->below : UINT64_MAX;
    struct gpunvme_open_file found;

    if (arg->reserved)
        return -EINVAL;
    *arg = (struct gpunvme_ioc_open_files){.abi = arg->abi};
    pthread_mutex_lock(&d->files_lock);
    for (unsigned i = 0; below == UINT64_MAX && i < ACTIVITY_CLOSED; i++)
        activity_add_file(arg, uid, &d->activity.closed[i]);
    for (const struct open_file *f = LIST_FIRST(&d->files); f; f = LIST_NEXT(f, entry)) {
        if (f->activity.id >= below)
            continue;
        if (arg->count == GPUNVME_OPEN_FILES_MAX)
            break;
        activity_describe(f, &found);
        activity_add_file(arg, uid, &found);
        arg->below = f->activity.id;
    }
    pthread_mutex_unlock(&d->files_lock);
    /* Only a full reply is followed by another one. */
    if (arg->count < GPUNVME_OPEN_FILES_MAX)
        arg->below = 0;
    return 0;
}

/* --- Counters of programs -------------------------------------------------------------------- */

struct shared_calls {
    int fd; /* memfd */
    uid_t uid;
    struct gpunvme_calls last; /* values of the last reading */
    LIST_ENTRY(shared_calls) entry;
};

/* If the memfd has become too short, the values stay unchanged. */
static const struct gpunvme_calls *shared_calls_refresh(struct shared_calls *c)
{
    struct gpunvme_calls now;

    if (pread(c->fd, &now, sizeof(now), 0) == (ssize_t)sizeof(now))
        c->last = now;
    return &c->last;
}

static void add_calls(struct gpunvme_calls *sum, const struct gpunvme_calls *c)
{
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)c;

    for (size_t i = 0; i < sizeof(*c) / sizeof(*from); i++)
        to[i] += from[i];
}

/* The caller holds the lock. */
static int state_shared_calls_add(struct shared_calls_log *log, struct open_file *file,
                                  struct shared_calls *new)
{
    unsigned all = 0, of_user = 0;

    for (const struct shared_calls *c = LIST_FIRST(&log->all); c; c = LIST_NEXT(c, entry)) {
        all++;
        of_user += c->uid == new->uid;
    }
    if (file->shared_calls)
        return -EALREADY;
    if (all >= SHARED_CALLS_MAX || (new->uid != 0 && of_user >= SHARED_CALLS_OF_USER))
        return -EMFILE;
    LIST_INSERT_HEAD(&log->all, new, entry);
    file->shared_calls = new;
    return 0;
}

int shared_calls_add(struct daemon *d, struct open_file *file, uid_t uid, int fd)
{
    struct shared_calls *new = calloc(1, sizeof(*new));
    int err = -ENOMEM;

    if (new) {
        *new = (struct shared_calls){.fd = fd, .uid = uid};
        pthread_mutex_lock(&d->files_lock);
        err = state_shared_calls_add(&d->shared_calls, file, new);
        pthread_mutex_unlock(&d->files_lock);
    }
    if (err) {
        close(fd);
        free(new);
    }
    return err;
}

void shared_calls_end(struct shared_calls_log *log, struct open_file *file)
{
    struct shared_calls *c = file->shared_calls;

    add_calls(&log->ended, shared_calls_refresh(c));
    LIST_REMOVE(c, entry);
    file->shared_calls = NULL;
    close(c->fd);
    free(c);
}

static uint64_t shared_calls_count_of(const struct gpunvme_calls *c)
{
    uint64_t n = c->enqueued;

    for (unsigned i = 0; i < 3 * GPUNVME_CALLS_PATHS; i++) {
        n += metrics_calls(&c->by[i / GPUNVME_CALLS_PATHS][i % GPUNVME_CALLS_PATHS].latency);
    }
    return n;
}

void shared_calls_describe(struct shared_calls *c, struct gpunvme_open_file *out)
{
    const struct gpunvme_calls *now = shared_calls_refresh(c);
    const struct gpunvme_calls_of *direct = &now->by[GPUNVME_OP_READ][GPUNVME_CALLS_DIRECT - 1];

    out->shared_calls = 1;
    out->calls = shared_calls_count_of(now);
    out->gpu_read_bytes = direct->bytes + now->enqueued_bytes;
    out->bounce_read_bytes = now->pipeline_read_bytes;
    out->bounce_written_bytes = now->pipeline_written_bytes;
}

void shared_calls_sum(struct daemon *d, struct gpunvme_calls *out)
{
    pthread_mutex_lock(&d->files_lock);
    *out = d->shared_calls.ended;
    for (struct shared_calls *c = LIST_FIRST(&d->shared_calls.all); c; c = LIST_NEXT(c, entry))
        add_calls(out, shared_calls_refresh(c));
    pthread_mutex_unlock(&d->files_lock);
}
