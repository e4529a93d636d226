/* SPDX-License-Identifier: BSD-2-Clause */
/* Keeps records of operations, and their sums. */
#include "fusefs/daemon/state/op.h"

#include <errno.h>

#include "fusefs/daemon/state/activity.h"
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

static uint64_t op_load(_Atomic uint64_t *from)
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

static void op_count_file(const struct op *op)
{
    uint64_t bounced = min_u64(op->bounced, op->bytes);

    if (!op->activity)
        return;
    if (op_is_kernels(op)) {
        activity_add(op->activity, ACTIVITY_KERNEL, op_is_write(op), op->bytes);
        return;
    }
    activity_add(op->activity, ACTIVITY_BOUNCE, op_is_write(op), bounced);
    activity_add(op->activity, ACTIVITY_GPU, op_is_write(op), op->bytes - bounced);
}

static void op_count_path(const struct op *op)
{
    struct op_totals *t = op->totals;
    uint64_t ns = now_ns() - op->begun_ns;

    op_count(&t->latency[op->kind][op->path - 1].ns, ns);
    op_count(&t->latency[op->kind][op->path - 1].buckets[op_bucket(ns)], 1);
    if (op->path & GPUNVME_PATH_BOUNCE) {
        op_count(&t->bounce_transfers, 1);
        op_count(&t->bounce_bytes[op_is_write(op)], op->bounced);
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
