/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements the ring of trace records. */
#include "support/trace.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "support/clock.h"

#define TRACE_RECORDS 65536u /* a power of two: 3 MiB */
#define TRACE_WORDS   (sizeof(struct trace_record) / sizeof(uint64_t))

/*
 * `number` is that of the record, from 1 on, or 0 while the record is being
 * stored.
 */
struct trace_slot {
    _Atomic uint64_t number;
    _Atomic uint64_t words[TRACE_WORDS];
};

struct trace_ring {
    _Atomic uint64_t added; /* records so far, which is the number of the latest */
    struct trace_slot slots[TRACE_RECORDS];
};

struct trace_ring *trace_ring;

int trace_open(void)
{
    if (!trace_ring)
        trace_ring = calloc(1, sizeof(*trace_ring));
    return trace_ring ? 0 : -ENOMEM;
}

/*
 * Each store releases the store of 0 before it, so a reader that has loaded a
 * new word finds another number than the one that it looked for.
 */
static void trace_store(struct trace_slot *slot, uint64_t number, const struct trace_record *record)
{
    uint64_t words[TRACE_WORDS];

    memcpy(words, record, sizeof(words));
    atomic_store_explicit(&slot->number, 0, memory_order_relaxed);
    for (size_t i = 0; i < TRACE_WORDS; i++)
        atomic_store_explicit(&slot->words[i], words[i], memory_order_release);
    atomic_store_explicit(&slot->number, number, memory_order_release);
}

void trace_add(enum trace_kind kind, uint32_t id, uint64_t a, uint64_t b, uint64_t len, int result)
{
    struct trace_record record = {
        .ns = now_ns(),
        .kind = kind,
        .id = id,
        .a = a,
        .b = b,
        .len = len < UINT32_MAX ? (uint32_t)len : UINT32_MAX,
        .result = result,
    };
    uint64_t number = 1 + atomic_fetch_add_explicit(&trace_ring->added, 1, memory_order_relaxed);

    trace_store(&trace_ring->slots[number % TRACE_RECORDS], number, &record);
}

/*
 * The loads of the words acquire, so the second load of the number follows
 * them. Returns the number of the record, or 0 if one is being stored.
 */
static uint64_t trace_load(struct trace_slot *slot, struct trace_record *out)
{
    uint64_t words[TRACE_WORDS] = {0};
    uint64_t before = atomic_load_explicit(&slot->number, memory_order_acquire);

    for (size_t i = 0; i < TRACE_WORDS; i++)
        words[i] = atomic_load_explicit(&slot->words[i], memory_order_acquire);
    memcpy(out, words, sizeof(*out));
    return before == atomic_load_explicit(&slot->number, memory_order_relaxed) ? before : 0;
}

uint64_t trace_end(void)
{
    return trace_ring ? 1 + atomic_load_explicit(&trace_ring->added, memory_order_relaxed) : 1;
}

unsigned trace_read(uint64_t *next, struct trace_record *out, unsigned max, uint64_t *lost)
{
    uint64_t end = trace_end(), oldest = end > TRACE_RECORDS ? end - TRACE_RECORDS : 1;
    unsigned n = 0;

    if (*next < oldest) {
        *lost += *next ? oldest - *next : 0;
        *next = oldest;
    }
    for (; *next < end && n < max; ++*next) {
        uint64_t found = trace_load(&trace_ring->slots[*next % TRACE_RECORDS], &out[n]);
        if (found > *next)
            ++*lost;
        else if (found == *next)
            n++;
        else
            break; /* a thread is still storing the record, which the next call returns */
    }
    return n;
}
