/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the service, a persistent kernel that executes items for which
 * threads of a host wait. Launching a kernel for each item would take as long
 * as the rest of a small read. Each block of the kernel serves one tagged slot,
 * a record in host memory. A thread claims a slot, posts an item, waits for the
 * end of the item outside of the slot's words, and releases the slot.
 *
 * The upper half of every word of a slot is the number of the item. So a reader
 * recognises each new word, in whatever order the words arrive over the bus.
 * Numbers start at 1 and differ between successive items.
 *
 * All blocks leave together when no block had an item for GQ_SERVICE_IDLE_NS.
 * Even with items they leave after GQ_SERVICE_STAY_NS, because calls of other
 * threads may wait for all kernels to end. The next kernel executes the items
 * that arrive afterwards. A thread that waits for its item launches that kernel
 * when all blocks have left. A kernel has as many blocks as threads have used
 * the service at the same time.
 */
#ifndef CUDA_GQ_SERVICE_H
#define CUDA_GQ_SERVICE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/queue/gq_atomic.h"

#define GQ_SERVICE_SLOTS      16u
#define GQ_SERVICE_WORDS      16u /* of a slot: 128 bytes, which a warp polls by one load */
#define GQ_SERVICE_ITEM_BYTES (GQ_SERVICE_WORDS * sizeof(uint32_t))
#define GQ_SERVICE_IDLE_NS    200000u
#define GQ_SERVICE_STAY_NS    100000000u

struct gq_service_slot {
    uint64_t words[GQ_SERVICE_WORDS];
    uint64_t answer;  /* for the user of the service */
    uint32_t started; /* number of the last launch whose block serves the slot */
    uint32_t served;  /* number of the last item taken, stored when the block leaves */
    uint64_t unused[14];
};
static_assert(sizeof(struct gq_service_slot) == 256,
              "polls of one slot load no line that another slot uses");

/* Describes host memory that both sides access. All words are initially zero. */
struct gq_service_memory {
    struct gq_service_slot slots[GQ_SERVICE_SLOTS];
    uint32_t ended[2]; /* number of the last launch all blocks of which have left; 0 */
};

/*
 * Holds the words of the blocks in the executor's memory, which are initially
 * zero. The last block that leaves clears them for the next launch.
 */
struct gq_service_stay {
    uint32_t left;    /* number of blocks that have left */
    uint32_t leaving; /* 1: no block takes another item */
    uint32_t active;  /* GQ_SERVICE_TICKS() of the last item of any block */
};
/* A unit of about a microsecond, whose differences fit into 32 bits. */
#define GQ_SERVICE_TICKS(ns) ((uint32_t)((ns) >> 10))

/* Holds the arguments of a launch. */
struct gq_service_launch {
    struct gq_service_memory *memory; /* the executor's address */
    uint32_t number;                  /* of the launch */
    uint32_t slots;                   /* and blocks */
};

/* --- A block. These functions are called by one of its threads. ------------ */

/* Returns the number of the last item of the slot that was taken. */
GQ_FN uint32_t gq_service_begin(const struct gq_service_launch *l, struct gq_service_stay *stay,
                                uint32_t slot, uint64_t now_ns)
{
    struct gq_service_slot *s = &l->memory->slots[slot];

    gq_atomic_store(&stay->active, GQ_SERVICE_TICKS(now_ns));
    gq_store_relaxed(&s->started, l->number);
    return gq_load_flag(&s->served);
}

/* Called after an item: the idle time of all blocks starts again. */
GQ_FN void gq_service_touch(struct gq_service_stay *stay, uint64_t now_ns)
{
    gq_atomic_store(&stay->active, GQ_SERVICE_TICKS(now_ns));
}

/*
 * Called as the last action of the block. The first fence orders its answers
 * before its part of the count; the second one those of all blocks, which the
 * count has acquired, before the end of the launch. So a host that sees the end
 * also sees the answers to all items that were taken.
 */
GQ_FN void gq_service_leave(const struct gq_service_launch *l, struct gq_service_stay *stay,
                            uint32_t slot, uint32_t served)
{
    gq_store_relaxed(&l->memory->slots[slot].served, served);
    gq_fence_results();
    if (gq_atomic_fetch_add(&stay->left, 1) + 1 != l->slots)
        return;
    gq_atomic_store(&stay->left, 0);
    gq_atomic_store(&stay->leaving, 0);
    gq_fence_results();
    gq_store_pair(l->memory->ended, l->number, 0);
}

#ifndef __CUDACC__

/* --- The host. Functions may be called by any thread. ---------------------- */

#include <pthread.h>

struct gq_service {
    struct gq_service_memory *memory;
    pthread_mutex_t lock;            /* protects launches */
    struct gq_service_launch launch; /* the last one; number and slots are atomic */
    /* Launches the kernel, with l->slots blocks. Returns 0 or -errno. */
    int (*launch_kernel)(void *ctx, const struct gq_service_launch *l);
    void *ctx;
    pthread_mutex_t claims[GQ_SERVICE_SLOTS]; /* each is held by the thread that uses the slot */
    uint32_t numbers[GQ_SERVICE_SLOTS];       /* numbers of the last items; protected by claims */
    uint32_t users, most_users;               /* atomic: threads that use the service, or wait */
};

/* `device` is the kernel's address of the memory. */
void gq_service_init(struct gq_service *s, struct gq_service_memory *memory, uint64_t device,
                     int (*launch_kernel)(void *ctx, const struct gq_service_launch *l), void *ctx);
/* No slot is claimed. */
void gq_service_destroy(struct gq_service *s);

/*
 * Claims a slot for the calling thread, which releases it. Without a free one
 * `waits` waits for it, for as long as its users take; otherwise -EBUSY is
 * returned. A slot other than the first is only claimed while its block runs: a
 * GPU may have room for some blocks only.
 */
int gq_service_claim(struct gq_service *s, bool waits);
void gq_service_release(struct gq_service *s, int slot);

/*
 * Posts len bytes, at most GQ_SERVICE_ITEM_BYTES, and returns the number of the
 * item. Stores before the call are visible to the block that takes the item.
 */
uint32_t gq_service_post(struct gq_service *s, int slot, const void *item, size_t len);
/* Withdraws an item that was not taken yet; one that was taken continues. */
void gq_service_retract(struct gq_service *s, int slot);

/* Returns true if no kernel is running. Stores of the last kernel are then visible. */
bool gq_service_is_unserved(const struct gq_service *s);
/*
 * Launches a kernel if none is running. A thread whose item in the slot has not
 * ended calls it repeatedly if gq_service_is_unserved() returned true before it
 * looked for the item's end. Returns 0, or the error of launch_kernel(). After an
 * error the item is withdrawn, and no block will take it. It may have ended by
 * an earlier launch, whose stores are then visible.
 */
int gq_service_start(struct gq_service *s, int slot);
/* Returns the number of the last launch. */
uint32_t gq_service_launched(const struct gq_service *s);
/* Returns true if that launch has ended. */
bool gq_service_has_ended(const struct gq_service *s, uint32_t launch);

#endif

#endif
