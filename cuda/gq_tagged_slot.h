/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Tagged slot: a record in host memory through which a host passes work items
 * to a persistent kernel, because launching a kernel takes as long as the rest
 * of a small read.
 *
 * The upper half of every word is the number of the item, so a reader can tell
 * for each word whether it is new, in whatever order the words arrive over the
 * bus. Numbers start at 1. The kernel ends after a bounded idle time and is
 * launched again with the next item, so calls that wait for running kernels
 * wait a fraction of a millisecond.
 *
 * One item is in progress at a time. Its completion is reported outside of the
 * slot.
 */
#ifndef CUDA_GQ_TAGGED_SLOT_H
#define CUDA_GQ_TAGGED_SLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/queue/gq_fence.h"

#define GQ_TAGGED_SLOT_WORDS 64u /* two per lane of a warp */
#define GQ_TAGGED_SLOT_BYTES (GQ_TAGGED_SLOT_WORDS * sizeof(uint32_t))

/* Memory that both sides access; initially zero. */
struct gq_tagged_slot_memory {
    uint64_t words[GQ_TAGGED_SLOT_WORDS];
    uint32_t ended; /* number of the last launch that has ended */
};

/* Arguments of a launch. */
struct gq_tagged_slot_launch {
    struct gq_tagged_slot_memory *slot; /* device address */
    uint32_t launch, first;             /* number of the launch; first item that it takes */
};

/* Returns the next number; 0 is not used. */
GQ_FN uint32_t gq_tagged_slot_next(uint32_t number)
{
    return number + 1 ? number + 1 : 1;
}

#ifdef __cplusplus
extern "C" {
#endif

/* The host's side, used by one thread at a time. */
struct gq_tagged_slot {
    struct gq_tagged_slot_memory *memory;
    struct gq_tagged_slot_launch launch;
    /* Launches the kernel. Returns 0 or -errno. */
    int (*launch_kernel)(void *ctx, const struct gq_tagged_slot_launch *l);
    void *ctx;
};

/*
 * `device` is the kernel's address of the memory. The caller sets launch_kernel
 * and ctx.
 */
void gq_tagged_slot_init(struct gq_tagged_slot *s, struct gq_tagged_slot_memory *memory,
                         uint64_t device);
/*
 * Posts len bytes, at most GQ_TAGGED_SLOT_BYTES, and returns the number of the
 * item. Stores before the call are visible to the kernel that takes the item.
 */
uint32_t gq_tagged_slot_post(struct gq_tagged_slot *s, const void *item, size_t len);
/* Withdraws an item that was not taken yet; one that was taken continues. */
void gq_tagged_slot_retract(struct gq_tagged_slot *s);
/* True if no kernel is running. Stores of the last kernel are then visible. */
bool gq_tagged_slot_is_unserved(const struct gq_tagged_slot *s);
/*
 * Launches a kernel if gq_tagged_slot_is_unserved(). It starts with the item
 * posted last. Returns the result of launch_kernel().
 */
int gq_tagged_slot_start(struct gq_tagged_slot *s);

#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__

#include "cuda/queue/gq_lanes.h"

/*
 * Called by a whole warp. Waits for an item and copies its GQ_TAGGED_SLOT_WORDS
 * words to shared memory; the lanes have synchronised on return. Each lane
 * acquires: stores of the host before the post are visible, even if the cache
 * holds words of an earlier item. Returns false after idle_ns.
 */
GQ_FN bool gq_tagged_slot_poll(const struct gq_tagged_slot_memory *slot, uint32_t number,
                               uint64_t idle_ns, uint32_t *out)
{
    uint64_t since = gq_clock_ns();
    uint32_t lane = gq_thread();

    while (true) {
        uint64_t high = gq_load_word(&slot->words[GQ_LANES + lane]);
        uint64_t low = gq_acquire_word(&slot->words[lane]);

        if (__all_sync(GQ_LANE_ALL, low >> 32 == number && high >> 32 == number)) {
            out[lane] = (uint32_t)low;
            out[GQ_LANES + lane] = (uint32_t)high;
            __syncwarp();
            return true;
        }
        if (__any_sync(GQ_LANE_ALL, gq_clock_ns() - since > idle_ns))
            return false;
    }
}

/*
 * Called by one thread as its last action. A host that sees the end of the
 * launch also sees the completions of all items that it took.
 */
GQ_FN void gq_tagged_slot_leave(const struct gq_tagged_slot_launch *l)
{
    gq_fence_results();
    gq_store_relaxed(&l->slot->ended, l->launch);
}

#endif

#endif
