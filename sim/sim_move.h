/*
 * Submissions to the DMA engine as they are filled: move.c's, and what reads that need no more than
 * a copy (io.c) add to them on the way.
 */
#ifndef SIM_SIM_MOVE_H
#define SIM_SIM_MOVE_H

#include "blockdev/transport.h"
#include "sim/sim_internal.h"

#define SIM_SUBS 32u /* submissions of a thread being filled or under way */

struct sim_copy_ref {
    struct sim_cmd *cmd;
    void *media; /* of a bounced write: where the bytes go once they are here */
};

struct sim_sub {
    struct nvme_copy *copies;
    struct sim_copy_ref *refs;
    uint64_t ticket, ring_end, bytes;
    unsigned n;
    bool to_device, refused;
    bool failed; /* of one that has ended */
};

struct sim_ring {
    unsigned char *base;
    uint64_t head, tail; /* bytes ever taken and given back */
};

struct sim_move {
    const struct nvme_dma_engine *dma_engine;
    pthread_mutex_t *channel_lock; /* NULL: the channel is this thread's alone */
    unsigned channel, max_copies;
    struct sim_sub subs[SIM_SUBS];
    struct sim_sub *fill[2]; /* being filled, by to_device */
    struct sim_sub *free[SIM_SUBS];
    unsigned n_free;
    struct sim_sub *flying[SIM_SUBS]; /* FIFO */
    unsigned first, n_flying;
    unsigned n_ended; /* of them, the first ones: sim_move_look() has seen it */
    struct sim_ring ring[2];
    void *bounce;
    bool pinned;

    /* With th->blocked: the command whose copies are being queued, and how many bytes are. */
    struct sim_cmd *cur;
    size_t queued;
};

/* Release: whoever sees 0 sees what the copies have written. */
static inline void sim_count_moving(struct sim_thread *th, unsigned change)
{
    unsigned now = atomic_load_explicit(&th->moving, memory_order_relaxed) + change;

    atomic_store_explicit(&th->moving, now, memory_order_release);
}

/* The device's side is one mapping; the host's is one namespace's media, or the bounce memory. */
static inline uint64_t sim_region(uint64_t mapping, uint32_t nsid, bool bounced)
{
    static_assert(2 * (SIM_MAX_NAMESPACES + 1) < NVME_PAGE_SIZE, "fits below a mapping's address");

    return mapping + (bounced ? 1 : 2 * nsid);
}

/* A submission of copies to the device, with room for one more (max_copies); NULL: none now. */
struct sim_sub *sim_sub_of_reads(struct sim_thread *th);

/* There must be room. media: of a bounced write. */
static SIM_HOT void sim_add_copy(struct sim_sub *sub, struct sim_cmd *cmd, struct nvme_copy copy,
                                 void *media)
{
    sub->copies[sub->n] = copy;
    sub->refs[sub->n++] = (struct sim_copy_ref){.cmd = cmd, .media = media};
    sub->bytes += copy.len;
    cmd->subs++;
}

#endif
