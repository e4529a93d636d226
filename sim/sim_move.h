/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Submissions to the DMA engine. sim_move.c fills them. Reads on the short path
 * (sim_io.c) add their copies directly.
 */
#ifndef SIM_SIM_MOVE_H
#define SIM_SIM_MOVE_H

#include "blockdev/transport.h"
#include "sim/sim_internal.h"

#define SIM_SUBS 32u /* submissions per thread, filled or in flight */

struct sim_copy_ref {
    struct sim_cmd *cmd;
    void *media; /* final destination of a bounced write */
};

struct sim_sub {
    struct sim_copy *copies;
    struct sim_copy_ref *refs;
    uint64_t ticket, ring_end, bytes;
    unsigned n;
    bool to_device, refused;
    bool failed; /* result of an ended submission */
};

struct sim_ring {
    unsigned char *base;
    uint64_t head, tail; /* total bytes allocated and freed */
};

/* Each thread has submissions for each device. */
struct sim_move {
    const struct sim_dma_engine *dma_engine;
    pthread_mutex_t *channel_lock; /* NULL if only this thread uses the channel */
    unsigned channel, max_copies;
    struct sim_sub subs[SIM_SUBS];
    struct sim_sub *fill[2]; /* being filled, by to_device */
    struct sim_sub *free[SIM_SUBS];
    unsigned n_free;
    struct sim_sub *flying[SIM_SUBS]; /* FIFO */
    unsigned first, n_flying;
    unsigned n_ended; /* number of first ones that sim_move_poll() has seen end */
    struct sim_ring ring[2];
    void *bounce;
    bool pinned;
    struct sim_move *next; /* in a list of submissions to be freed */
};

/* Release: the data of the copies is visible before the count 0. */
static inline void sim_count_moving(struct sim_thread *th, unsigned change)
{
    unsigned now = atomic_load_explicit(&th->moving, memory_order_relaxed) + change;

    atomic_store_explicit(&th->moving, now, memory_order_release);
}

/*
 * Returns the region of a copy: one mapping on the device's side, and on the
 * host's side the media of one namespace or the bounce memory.
 */
static inline uint64_t sim_region(uint64_t mapping, uint32_t nsid, bool bounced)
{
    static_assert(2 * (SIM_MAX_NAMESPACES + 1) < NVME_PAGE_SIZE, "fits below a mapping's address");

    return mapping + (bounced ? 1 : 2 * nsid);
}

/*
 * Returns a submission of copies to the device with room for one more
 * (max_copies), or NULL if there is none at present.
 */
struct sim_sub *sim_sub_of_reads(struct sim_move *m);

/* Adds a copy; sub has room. `media`: destination of a bounced write. */
static SIM_HOT void sim_add_copy(struct sim_sub *sub, struct sim_cmd *cmd, struct sim_copy copy,
                                 void *media)
{
    sub->copies[sub->n] = copy;
    sub->refs[sub->n++] = (struct sim_copy_ref){.cmd = cmd, .media = media};
    sub->bytes += copy.len;
    cmd->subs++;
}

#endif
