/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Counts the calls of the process, and the calls of each connection. The
 * counters of a connection lie in memory that the mount reads
 * (call_stats_share.c). All accesses are relaxed, because each counter is
 * independent and orders no other memory.
 *
 * Shows calls as ranges of the NVTX domain "gpunvme".
 */
#include "client/lib/call_stats.h"

#include <string.h>

#include "client/lib/client_internal.h"
#include "client/lib/nvtx_range.h"

static struct gpunvme_calls process;

static_assert(GPUNVME_CALLS_DIRECT == GPUNVME_PATH_MIXED + 1, "its cell is behind the paths'");

/* Adds to a counter of `process`, and to the same one of the connection if that is shared. */
static void call_stats_add(struct connection *g, uint64_t *counter, uint64_t n)
{
    struct gpunvme_calls *shared = atomic_load_explicit(&g->calls, memory_order_acquire);

    __atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
    if (shared)
        __atomic_fetch_add((uint64_t *)shared + (counter - (uint64_t *)&process), n,
                           __ATOMIC_RELAXED);
}

/* Returns the least i with ns < 2^(i + 1) us, like the histograms of the mount. */
static unsigned bucket_of(uint64_t ns)
{
    uint64_t us = ns / 1000;
    unsigned i = us ? 63u - (unsigned)__builtin_clzll(us) : 0;

    return i < GPUNVME_LATENCY_BUCKETS ? i : GPUNVME_LATENCY_BUCKETS - 1;
}

void call_stats_count(struct connection *g, unsigned op, uint32_t path, uint64_t bytes,
                      uint64_t begun)
{
    if (!path || !bytes)
        return;
    struct gpunvme_calls_of *c = &process.by[op][path - 1];
    uint64_t ns = now_ns() - begun;
    call_stats_add(g, &c->bytes, bytes);
    call_stats_add(g, &c->latency.ns, ns);
    call_stats_add(g, &c->latency.buckets[bucket_of(ns)], 1);
}

void call_stats_pipeline(struct connection *g, unsigned op, uint64_t bytes)
{
    call_stats_add(
        g, op == GPUNVME_OP_WRITE ? &process.pipeline_written_bytes : &process.pipeline_read_bytes,
        bytes);
}

void call_stats_enqueued(struct connection *g, uint64_t bytes)
{
    call_stats_add(g, &process.enqueued, 1);
    call_stats_add(g, &process.enqueued_bytes, bytes);
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

#ifdef GPUNVME_HAVE_NVTX
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>

static nvtxDomainHandle_t domain;

/* Creates the domain. The first NVTX call loads the tool that the environment names, if any. */
static void make_domain(void)
{
    domain = nvtxDomainCreateA("gpunvme");
}

void nvtx_range_begin(const char *name, uint64_t bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    nvtxEventAttributes_t what = {
        .version = NVTX_VERSION,
        .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
        .payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64,
        .payload.ullValue = bytes,
        .messageType = NVTX_MESSAGE_TYPE_ASCII,
        .message.ascii = name,
    };

    pthread_once(&once, make_domain);
    nvtxDomainRangePushEx(domain, &what);
}

void nvtx_range_end(void)
{
    nvtxDomainRangePop(domain);
}
#endif
