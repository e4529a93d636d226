/*
 * Small copies between pinned host memory and a GPU's memory, by a kernel that stays: it takes
 * batches out of mailboxes in host memory, and says in host memory how many it has done. A launch
 * for each batch would do as well, were it not that launches wait behind every warp that polls
 * host memory.
 *
 * The kernel ends by itself when it has had nothing to do for a while, and is launched again with
 * the next batch; so calls that wait for running kernels wait a fraction of a millisecond.
 */
#ifndef CUDA_GQ_COPIER_H
#define CUDA_GQ_COPIER_H

#include <assert.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/gq_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GQ_COPIER_BLOCKS  16u /* at most; each has mailboxes of its own */
#define GQ_COPIER_BOXES   4u  /* of a block, filled and emptied in turn */
#define GQ_COPIER_BATCH   31u /* copies in a box */
#define GQ_COPIER_LINE    16u /* words that are looked at together */
#define GQ_COPIER_THREADS 256u

/*
 * A mailbox. Every word carries in its seven uppermost bits, which no address of a process has,
 * the number of times the box has been filled: a reader knows of each word whether it is new,
 * however the bus may have cut its loads. words[0]: lengths of the copies and how many there are;
 * words[2 + 2 i], words[3 + 2 i]: destination and source of copy i.
 */
struct gq_copier_box {
    uint64_t words[2 + 2 * GQ_COPIER_BATCH];
};
static_assert(sizeof(struct gq_copier_box) == 512, "a box is four lines of 128 bytes");

#define GQ_COPIER_TAG_SHIFT 57
#define GQ_COPIER_TAG(fill) ((uint64_t)((fill)&0x7fu) << GQ_COPIER_TAG_SHIFT)
#define GQ_COPIER_VALUE     ((1ull << GQ_COPIER_TAG_SHIFT) - 1)

/* What one launch is told: which blocks it is, and where each goes on. */
struct gq_copier_launch {
    const struct gq_copier_box *boxes; /* GQ_COPIER_BOXES for each block */
    uint32_t *done;                    /* of each block: batches done, ever */
    uint32_t *ended;                   /* of each block: number of the launch that has ended */
    uint32_t launch[GQ_COPIER_BLOCKS]; /* number of this launch of the block; 0: not started */
    uint32_t first[GQ_COPIER_BLOCKS];  /* the batch it begins with */
};
cudaError_t gq_copier_load(void);
cudaError_t gq_copier_run(const struct gq_copier_launch *l, unsigned blocks, cudaStream_t stream);

/* A kernel and its mailboxes; used by one thread. */
struct gq_copier;

/* blocks: 1 to GQ_COPIER_BLOCKS. -ENOMEM, -EIO. */
int gq_copier_open(unsigned blocks, struct gq_copier **out);
/* Waits for the kernel to end. No copy may be under way. */
void gq_copier_close(struct gq_copier *c);

/* How many batches of each block a ticket waits for. */
struct gq_copier_ticket {
    uint32_t need[GQ_COPIER_BLOCKS];
};

/* Is it something that a mailbox can say? A power of two, 512 bytes to 64 KiB, aligned to 16. */
bool gq_copier_takes(const struct gq_gather *copy);
/*
 * n copies that it takes: 0 and a ticket; -EAGAIN when the mailboxes have no room for all now,
 * -ENOSPC when they never have; -EIO.
 */
int gq_copier_submit(struct gq_copier *c, const struct gq_gather *copies, unsigned n,
                     struct gq_copier_ticket *ticket);
/* 1: done and visible to the device (copies from it: to the host), 0: not yet, -EIO. */
int gq_copier_poll(struct gq_copier *c, const struct gq_copier_ticket *ticket);

#ifdef __cplusplus
}
#endif

#endif
