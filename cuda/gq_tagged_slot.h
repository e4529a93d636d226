/*
 * A slot in host memory, by which a host hands one piece of work after another to a kernel that
 * stays on the GPU: a launch takes as long as all the rest of a small read.
 *
 * Every word carries in its upper half the number of the piece: a reader knows of each word whether
 * it is new, however the bus may have cut its loads. Pieces have numbers from 1 on. The kernel ends
 * by itself when it has had nothing to do for a while, and is launched again with the next piece;
 * so calls that wait for running kernels wait a fraction of a millisecond.
 *
 * One piece is under way at a time. How its end is told is between host and kernel.
 */
#ifndef CUDA_GQ_BOX_H
#define CUDA_GQ_BOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/queue/gq_fence.h"

#define GQ_TAGGED_SLOT_WORDS 64u /* two for each lane of a warp */
#define GQ_TAGGED_SLOT_BYTES (GQ_TAGGED_SLOT_WORDS * sizeof(uint32_t))

/* Memory that both sides reach; begins as zeros. */
struct gq_tagged_slot_memory {
    uint64_t words[GQ_TAGGED_SLOT_WORDS];
    uint32_t ended; /* number of the launch that has ended */
};

/* What one launch of the kernel is told. */
struct gq_tagged_slot_launch {
    struct gq_tagged_slot_memory *slot; /* as the kernel has it */
    uint32_t launch, first;             /* its number, and that of the piece it begins with */
};

/* The number after this one: 0 is nobody's. */
GQ_FN uint32_t gq_tagged_slot_next(uint32_t number)
{
    return number + 1 ? number + 1 : 1;
}

#ifdef __cplusplus
extern "C" {
#endif

/* The host's half, of one thread at a time. */
struct gq_tagged_slot {
    struct gq_tagged_slot_memory *memory;
    struct gq_tagged_slot_launch launch;
    int (*launch_kernel)(
        void *ctx, const struct gq_tagged_slot_launch *l); /* launches the kernel: 0 or -errno */
    void *ctx;
};

/* device: where the kernel has the memory. launch_kernel and ctx are the caller's to set. */
void gq_tagged_slot_init(struct gq_tagged_slot *b, struct gq_tagged_slot_memory *memory,
                         uint64_t device);
/*
 * Hands over len bytes, at most GQ_TAGGED_SLOT_BYTES: the number of the piece. All that was written
 * before is seen by the kernel that takes it.
 */
uint32_t gq_tagged_slot_post(struct gq_tagged_slot *b, const void *piece, size_t len);
/* A piece that nobody has taken yet never will be; one that was goes on. */
void gq_tagged_slot_retract(struct gq_tagged_slot *b);
/* No kernel is there. What the last one has told before it left is seen. */
bool gq_tagged_slot_is_unserved(const struct gq_tagged_slot *b);
/* Launches one, when there is none: what launch_kernel() says. It begins with the piece put last.
 */
int gq_tagged_slot_start(struct gq_tagged_slot *b);

#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__

#include "cuda/queue/gq_lanes.h"

/*
 * A whole warp waits for a piece and takes it into shared memory, GQ_TAGGED_SLOT_WORDS; the lanes
 * have met then. Each lane acquires: what the host wrote before it put the piece is seen, whatever
 * the processor's cache has of a piece before. False after idle_ns.
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

/* One thread, last of all. Who sees that it is gone has seen the ends of all pieces it took. */
GQ_FN void gq_tagged_slot_leave(const struct gq_tagged_slot_launch *l)
{
    gq_fence_results();
    gq_store_relaxed(&l->slot->ended, l->launch);
}

#endif

#endif
