/* SPDX-License-Identifier: BSD-2-Clause */
/* How long transfers of buffers take, and why they leave the GPU path. */
#include "fusefs/daemon/state/transfer_stats.h"

#include <errno.h>

#define NS_PER_US 1000u

static_assert(sizeof(((struct transfer_stats *)0)->fallbacks) ==
                  sizeof(((struct gpunvme_ioc_stats *)0)->fallbacks),
              "reasons");

static void add(_Atomic uint64_t *to, uint64_t n)
{
    atomic_fetch_add_explicit(to, n, memory_order_relaxed);
}

static uint64_t load(_Atomic uint64_t *from)
{
    return atomic_load_explicit(from, memory_order_relaxed);
}

/* The least i with ns < 2^(i + 1) us. */
static unsigned bucket_of(uint64_t ns)
{
    uint64_t us = ns / NS_PER_US;
    unsigned i = us ? 63u - (unsigned)__builtin_clzll(us) : 0;

    return i < GPUNVME_LATENCY_BUCKETS ? i : GPUNVME_LATENCY_BUCKETS - 1;
}

void transfer_stats_count(struct transfer_stats *s, unsigned op, unsigned path, uint64_t ns)
{
    if (!path)
        return;
    add(&s->latency[op][path - 1].ns, ns);
    add(&s->latency[op][path - 1].buckets[bucket_of(ns)], 1);
}

static unsigned reason_of(int err)
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

void transfer_stats_fell_back(struct transfer_stats *s, int err)
{
    add(&s->fallbacks[reason_of(err)], 1);
}

void transfer_stats_fill(struct transfer_stats *s, struct gpunvme_ioc_stats *out)
{
    for (unsigned i = 0; i < 9; i++) {
        struct gpunvme_latency *l = &out->latency[i / 3][i % 3];
        l->ns = load(&s->latency[i / 3][i % 3].ns);
        for (unsigned k = 0; k < GPUNVME_LATENCY_BUCKETS; k++)
            l->buckets[k] = load(&s->latency[i / 3][i % 3].buckets[k]);
    }
    for (unsigned i = 0; i < sizeof(s->fallbacks) / sizeof(s->fallbacks[0]); i++)
        out->fallbacks[i] = load(&s->fallbacks[i]);
}
