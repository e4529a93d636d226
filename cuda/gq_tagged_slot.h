/*
 * A tagged slot: a record in host memory through which a host hands one piece
 * of work after another to a persistent kernel. A launch takes as long as all
 * other steps of a small read together.
 *
 * The upper half of every word is the number of the piece, from 1 on: each new
 * word is recognised individually, however the bus splits the loads. The kernel
 * ends after an idle time and is launched again with the next piece, so calls
 * that wait for running kernels wait for a fraction of a millisecond.
 *
 * One piece is in progress at a time. Host and kernel agree on how its end is
 * reported.
 */
#ifndef CUDA_GQ_TAGGED_SLOT_H
#define CUDA_GQ_TAGGED_SLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/queue/gq_fence.h"

#define GQ_TAGGED_SLOT_WORDS 64u /* two for each lane of a warp */
#define GQ_TAGGED_SLOT_BYTES (GQ_TAGGED_SLOT_WORDS * sizeof(uint32_t))

/* Memory that both sides reach, initially zero. */
struct gq_tagged_slot_memory {
    uint64_t words[GQ_TAGGED_SLOT_WORDS];
    uint32_t ended; /* number of the launch that has ended */
};

/* Arguments of one launch. */
struct gq_tagged_slot_launch {
    struct gq_tagged_slot_memory *slot; /* address for the kernel */
    uint32_t launch, first;             /* number of the launch, and of its first piece */
};

/* The number after this one; 0 is not used. */
GQ_FN uint32_t gq_tagged_slot_next(uint32_t number)
{
    return number + 1 ? number + 1 : 1;
}

#ifdef __cplusplus
extern "C" {
#endif

/* The host's side; used by one thread at a time. */
struct gq_tagged_slot {
    struct gq_tagged_slot_memory *memory;
    struct gq_tagged_slot_launch launch;
    int (*run)(void *ctx,
               const struct gq_tagged_slot_launch *l); /* launches the kernel: 0 or -errno */
    void *ctx;
};

/*
 * device: address of the memory for the kernel. run and ctx are set by the
 * caller.
 */
void gq_tagged_slot_init(struct gq_tagged_slot *b, struct gq_tagged_slot_memory *memory,
                         uint64_t device);
/*
 * Posts len bytes, at most GQ_TAGGED_SLOT_BYTES. Returns the number of the
 * piece. Earlier stores are visible to the kernel that takes it.
 */
uint32_t gq_tagged_slot_post(struct gq_tagged_slot *b, const void *piece, size_t len);
/* Withdraws a piece that no kernel has taken; a taken one continues. */
void gq_tagged_slot_take_back(struct gq_tagged_slot *b);
/* True if no kernel runs. Stores of the last one are visible. */
bool gq_tagged_slot_is_alone(const struct gq_tagged_slot *b);
/*
 * Launches a kernel, to begin with the piece posted last. Precondition: none
 * runs. Returns the result of run().
 */
int gq_tagged_slot_run(struct gq_tagged_slot *b);

#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__

#include "cuda/queue/gq_lanes.h"

/*
 * For a whole warp: waits for a piece and takes it into shared memory,
 * GQ_TAGGED_SLOT_WORDS; the lanes are converged afterwards. Each lane acquires:
 * stores of the host before the post are visible, whatever the caches have of
 * an earlier piece. False after idle_ns.
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
 * For one thread, as the last step. The ends of all pieces taken are visible
 * before the end of the launch.
 */
GQ_FN void gq_tagged_slot_leave(const struct gq_tagged_slot_launch *l)
{
    gq_fence_results();
    gq_store_sign(&l->slot->ended, l->launch);
}

#endif

#endif
