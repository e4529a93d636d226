/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Counters of the process. Relaxed: each number is right by itself, and orders no other memory.
 */
#include "client/lib/call_stats.h"

#include <stdatomic.h>
#include <string.h>

struct cell {
    _Atomic uint64_t bytes, ns, buckets[GPUNVME_LATENCY_BUCKETS];
};

static struct cell cells[3][GPUNVME_CALLS_PATHS];
static _Atomic uint64_t enqueued;

static_assert(GPUNVME_CALLS_DIRECT == GPUNVME_PATH_MIXED + 1, "its cell is behind the paths'");

static void add(_Atomic uint64_t *to, uint64_t n)
{
    atomic_fetch_add_explicit(to, n, memory_order_relaxed);
}

static uint64_t load(_Atomic uint64_t *from)
{
    return atomic_load_explicit(from, memory_order_relaxed);
}

/* The least i with ns < 2^(i + 1) us, as the mount's histograms have it. */
static unsigned bucket_of(uint64_t ns)
{
    uint64_t us = ns / 1000;
    unsigned i = us ? 63u - (unsigned)__builtin_clzll(us) : 0;

    return i < GPUNVME_LATENCY_BUCKETS ? i : GPUNVME_LATENCY_BUCKETS - 1;
}

void call_stats_count(unsigned op, uint32_t path, uint64_t bytes, uint64_t begun)
{
    if (!path || !bytes)
        return;
    struct cell *c = &cells[op][path - 1];
    uint64_t ns = now_ns() - begun;

    add(&c->bytes, bytes);
    add(&c->ns, ns);
    add(&c->buckets[bucket_of(ns)], 1);
}

void call_stats_enqueued(void)
{
    add(&enqueued, 1);
}

static void fill(struct cell *from, struct gpunvme_calls_of *to)
{
    to->bytes = load(&from->bytes);
    to->latency.ns = load(&from->ns);
    for (unsigned i = 0; i < GPUNVME_LATENCY_BUCKETS; i++)
        to->latency.buckets[i] = load(&from->buckets[i]);
}

void gpunvme_calls(struct gpunvme_calls *out, size_t size)
{
    struct gpunvme_calls all = {.enqueued = load(&enqueued)};

    for (unsigned op = 0; op < 3; op++) {
        for (unsigned path = 0; path < GPUNVME_CALLS_PATHS; path++)
            fill(&cells[op][path], &all.by[op][path]);
    }
    memset(out, 0, size);
    memcpy(out, &all, size < sizeof(all) ? size : sizeof(all));
}
