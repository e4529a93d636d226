/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Counters of the process, and of each connection in memory that the mount reads
 * (call_stats_share.c). All accesses are relaxed, because each counter is independent and orders no
 * other memory.
 */
#include "client/lib/call_stats.h"

#include <string.h>

#include "client/lib/client_internal.h"

static struct gpunvme_calls process;

static_assert(GPUNVME_CALLS_DIRECT == GPUNVME_PATH_MIXED + 1, "its cell is behind the paths'");

static void call_stats_add(uint64_t *to, uint64_t n)
{
    __atomic_fetch_add(to, n, __ATOMIC_RELAXED);
}

/* Returns the least i with ns < 2^(i + 1) us, like the histograms of the mount. */
static unsigned bucket_of(uint64_t ns)
{
    uint64_t us = ns / 1000;
    unsigned i = us ? 63u - (unsigned)__builtin_clzll(us) : 0;

    return i < GPUNVME_LATENCY_BUCKETS ? i : GPUNVME_LATENCY_BUCKETS - 1;
}

static void count_call(struct gpunvme_calls_of *c, uint64_t bytes, uint64_t ns)
{
    call_stats_add(&c->bytes, bytes);
    call_stats_add(&c->latency.ns, ns);
    call_stats_add(&c->latency.buckets[bucket_of(ns)], 1);
}

/* Returns NULL if the counters are not shared. */
static struct gpunvme_calls *shared_by(struct connection *g)
{
    return atomic_load_explicit(&g->calls, memory_order_acquire);
}

void call_stats_count(struct connection *g, unsigned op, uint32_t path, uint64_t bytes,
                      uint64_t begun)
{
    struct gpunvme_calls *shared = shared_by(g);

    if (!path || !bytes)
        return;
    uint64_t ns = now_ns() - begun;
    count_call(&process.by[op][path - 1], bytes, ns);
    if (shared)
        count_call(&shared->by[op][path - 1], bytes, ns);
}

static void count_pipeline(struct gpunvme_calls *c, unsigned op, uint64_t bytes)
{
    call_stats_add(op == GPUNVME_OP_WRITE ? &c->pipeline_written_bytes : &c->pipeline_read_bytes,
                   bytes);
}

void call_stats_pipeline(struct connection *g, unsigned op, uint64_t bytes)
{
    struct gpunvme_calls *shared = shared_by(g);

    count_pipeline(&process, op, bytes);
    if (shared)
        count_pipeline(shared, op, bytes);
}

static void count_enqueued(struct gpunvme_calls *c, uint64_t bytes)
{
    call_stats_add(&c->enqueued, 1);
    call_stats_add(&c->enqueued_bytes, bytes);
}

void call_stats_enqueued(struct connection *g, uint64_t bytes)
{
    struct gpunvme_calls *shared = shared_by(g);

    count_enqueued(&process, bytes);
    if (shared)
        count_enqueued(shared, bytes);
}

void gpunvme_calls(struct gpunvme_calls *out, size_t size)
{
    uint64_t all[sizeof(process) / sizeof(uint64_t)] = {0};
    const uint64_t *from = (const uint64_t *)&process;

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        all[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
    memset(out, 0, size);
    memcpy(out, all, size < sizeof(all) ? size : sizeof(all));
}
