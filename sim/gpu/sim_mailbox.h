/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A mailbox hands copies to a copy kernel (sim_copy_kernel.cu). It is host
 * memory with three users: the poster fills tagged slots, the kernel empties
 * them and counts, the keeper launches the kernel if there is work and no
 * kernel runs. Poster and keeper are either one thread (sim_copy_kernel.h) or
 * two processes. In the second case the memory is a memfd, the keeper is the
 * process that owns the destination, and the poster trusts no value that it
 * reads.
 *
 * Plain C: no CUDA is called here.
 */
#ifndef SIM_GPU_SIM_MAILBOX_H
#define SIM_GPU_SIM_MAILBOX_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One copy, in addresses of the process or device that makes it. */
struct sim_gather {
    uint64_t dst;
    uint64_t src;
    uint64_t len;
};

#define SIM_COPY_KERNEL_BLOCKS   8u  /* maximum of a mailbox; each has its own slots */
#define SIM_COPY_KERNEL_SLOTS    8u  /* slots of a block, filled and emptied in turn */
#define SIM_COPY_KERNEL_BATCH    31u /* copies in a slot */
#define SIM_COPY_KERNEL_WORDS    (2 + 2 * SIM_COPY_KERNEL_BATCH)
#define SIM_COPY_KERNEL_LINE     16u  /* words that are loaded together first */
#define SIM_COPY_KERNEL_RENEWAL  64u  /* every so many fillings all words are written */
#define SIM_COPY_KERNEL_THREADS  320u /* of a block: of ten warps one takes batches, one counts */
#define SIM_COPY_KERNEL_SHORTEST 512u
#define SIM_COPY_KERNEL_LONGEST  (64u << 10)

/*
 * A tagged slot. The seven uppermost bits of every word, which no user address
 * has, are the number of the filling modulo 128: each new word is recognised
 * individually, however the bus splits the loads. words[0]: length (log2) and
 * number of the copies; words[2 + 2 i], words[3 + 2 i]: destination and source
 * of copy i. SIM_COPY_KERNEL_VOID in words[0]: a cancelled batch, which is
 * counted and makes no copy.
 */
struct sim_copy_slot {
    uint64_t words[SIM_COPY_KERNEL_WORDS];
};
static_assert(sizeof(struct sim_copy_slot) == 512, "a slot is four lines of 128 bytes");

#define SIM_COPY_KERNEL_TAG_SHIFT 57
#define SIM_COPY_KERNEL_TAG(fill) ((uint64_t)((fill)&0x7fu) << SIM_COPY_KERNEL_TAG_SHIFT)
#define SIM_COPY_KERNEL_VALUE     ((1ull << SIM_COPY_KERNEL_TAG_SHIFT) - 1)
#define SIM_COPY_KERNEL_VOID      (1ull << 16)

/* Counts of all blocks on one cache line, with one writer. */
struct sim_copy_kernel_counts {
    uint32_t of[SIM_COPY_KERNEL_BLOCKS];
    uint32_t pad[32 - SIM_COPY_KERNEL_BLOCKS];
};

/* A mailbox, initially zero: one poster, one keeper. */
struct sim_mailboxes {
    struct sim_copy_slot slots[SIM_COPY_KERNEL_BLOCKS * SIM_COPY_KERNEL_SLOTS]; /* by block */
    struct sim_copy_kernel_counts posted;   /* poster: batches posted, ever */
    struct sim_copy_kernel_counts done;     /* kernel: batches done, ever */
    struct sim_copy_kernel_counts ended;    /* kernel: number of the last launch that has ended */
    struct sim_copy_kernel_counts launched; /* keeper: number of the last launch */
    /*
     * Kernel: number of the last launch that has started. Stored before the
     * launch loads a slot, with sequential consistency: sim_poster_cancel().
     */
    struct sim_copy_kernel_counts started;
};
static_assert(sizeof(struct sim_mailboxes) == 33408, "shared by two processes");

/*
 * The memory shared by poster and keeper in two processes: this head, then the
 * mailboxes, each on its own pages. asleep is a futex: the keeper exchanges it
 * for 1 and checks for work once more before it waits; the side that exchanges
 * it for 0 wakes the keeper.
 */
struct sim_mailbox_head {
    uint32_t asleep;
    uint32_t pad[1023];
};
#define SIM_MAILBOX_SET_BYTES 36864u
static_assert(SIM_MAILBOX_SET_BYTES >= sizeof(struct sim_mailboxes), "whole pages");
#define SIM_MAILBOX_BYTES(sets) \
    (sizeof(struct sim_mailbox_head) + (size_t)(sets)*SIM_MAILBOX_SET_BYTES)

static inline struct sim_mailboxes *sim_mailbox_set(struct sim_mailbox_head *head, unsigned i)
{
    return (struct sim_mailboxes *)(void *)((char *)(head + 1) + (size_t)i * SIM_MAILBOX_SET_BYTES);
}

/*
 * Distance of data that different threads write often: processors fetch cache
 * lines in pairs.
 */
#define SIM_OWN_LINES __attribute__((aligned(128)))

/* The poster's side; used by one thread. */
struct sim_poster {
    struct sim_mailboxes *m;
    unsigned blocks; /* 1 to SIM_COPY_KERNEL_BLOCKS */
    uint32_t posted[SIM_COPY_KERNEL_BLOCKS];
    uint32_t cancellations;
} SIM_OWN_LINES;

/* Number of batches of each block at which the ticket is done. */
struct sim_copy_kernel_ticket {
    uint32_t need[SIM_COPY_KERNEL_BLOCKS];
    uint32_t cancellations; /* of the poster, before the ticket */
};

/*
 * True if a slot can encode the copy: length a power of two, 512 bytes to 64
 * KiB, addresses aligned to 16.
 */
static inline bool sim_copy_kernel_takes(const struct sim_gather *copy)
{
    return copy->len >= SIM_COPY_KERNEL_SHORTEST && copy->len <= SIM_COPY_KERNEL_LONGEST &&
           (copy->len & (copy->len - 1)) == 0 && ((copy->dst | copy->src) & 15) == 0;
}
/*
 * Room for n copies that satisfy sim_copy_kernel_takes(): 0, -EAGAIN: not at
 * present, -ENOSPC: more than all slots hold.
 */
int sim_poster_room(const struct sim_poster *p, const struct sim_gather *copies, unsigned n);
/* Posts n copies. Precondition: sim_poster_room() has returned 0. */
void sim_poster_post(struct sim_poster *p, const struct sim_gather *copies, unsigned n,
                     struct sim_copy_kernel_ticket *ticket);
/* True if the bytes are visible to the device (copies from it: to the host). */
bool sim_poster_done(const struct sim_poster *p, const struct sim_copy_kernel_ticket *ticket);
/* True if a block has work and no kernel. */
bool sim_poster_is_stuck(const struct sim_poster *p);
/*
 * True if the rest of the ticket is on blocks without a kernel: it is not being
 * copied.
 */
bool sim_poster_is_lost(const struct sim_poster *p, const struct sim_copy_kernel_ticket *ticket);
/*
 * Withdraws all batches that no kernel has taken; no batch is posted
 * afterwards. Batches that were taken may still be copied while their kernel
 * runs.
 */
void sim_poster_take_back(struct sim_poster *p);
/* Number of batches done, of all blocks, modulo 2^32: it changes with progress. */
uint32_t sim_poster_total(const struct sim_poster *p);
/* True if no batch is under way, cancelled ones included. */
bool sim_poster_is_empty(const struct sim_poster *p);
/* True if the counts are such that no kernel can have stored them. */
bool sim_poster_is_wrong(const struct sim_poster *p);
/*
 * Makes the batches that are not done void: a kernel that takes them later
 * counts them without a copy. Tickets posted before are cancelled, whether they
 * are done or not; batches may be posted afterwards.
 */
void sim_poster_cancel(struct sim_poster *p);
bool sim_poster_is_cancelled(const struct sim_poster *p,
                             const struct sim_copy_kernel_ticket *ticket);
/*
 * Of a cancelled ticket: true if no kernel makes a copy of it any more. Each
 * block has passed its batches, or has no kernel that started before the
 * cancellation; one that starts later finds void batches.
 */
bool sim_poster_is_settled(const struct sim_poster *p, const struct sim_copy_kernel_ticket *ticket);
/*
 * Wakes a keeper that is needed. Called after posting and after each poll
 * without result.
 */
void sim_mailbox_ring(struct sim_mailbox_head *head, const struct sim_poster *p);

/* Arguments of one launch: its blocks, and the first batch of each. */
struct sim_copy_kernel_launch {
    const struct sim_copy_slot *slots; /* SIM_COPY_KERNEL_SLOTS for each block */
    uint32_t *done;                    /* of each block: number of batches done, ever */
    uint32_t *ended;                   /* of each block: number of the launch that has ended */
    uint32_t *started;                 /* of each block: number of the launch that has started */
    uint32_t
        launch[SIM_COPY_KERNEL_BLOCKS];     /* number of this launch of the block; 0: not started */
    uint32_t first[SIM_COPY_KERNEL_BLOCKS]; /* the batch it begins with */
    uint64_t idle_ns; /* idle time after which a block ends; longer after many batches */
};

/*
 * Blocks end individually, so launches overlap, each in a stream whose last
 * launch has ended. With at least as many streams as blocks no launch waits for
 * another one, which may take 0.1 s.
 */
#define SIM_KEEPER_STREAMS 4u

/* The keeper's side; used by one thread. */
struct sim_keeper {
    struct sim_mailboxes *m;
    unsigned blocks;
    struct sim_copy_kernel_launch launch; /* in addresses of the kernel */
    uint32_t launched[SIM_COPY_KERNEL_BLOCKS];
    uint32_t in_stream[SIM_KEEPER_STREAMS]
                      [SIM_COPY_KERNEL_BLOCKS]; /* number of the launch; 0: none */
    /* Launches the kernel in stream 0 to SIM_KEEPER_STREAMS - 1: 0 or -errno. */
    int (*run)(void *ctx, const struct sim_copy_kernel_launch *l, unsigned blocks, unsigned stream);
    void *ctx;
};

/* device: address of m for the kernel. */
void sim_keeper_init(struct sim_keeper *k, struct sim_mailboxes *m, uint64_t device,
                     unsigned blocks, uint64_t idle_ns);
/*
 * If a block has work and no kernel: launches all blocks without a kernel.
 * Returns the result of run(), else 0. After an error they have no kernel, and
 * the next launch copies the posted batches.
 */
int sim_keeper_peek(struct sim_keeper *k);
/*
 * True if a block has work and no kernel: sim_keeper_peek() must be called, now
 * or when a stream is free.
 */
bool sim_keeper_is_needed(const struct sim_keeper *k);

#ifdef __cplusplus
}
#endif

#endif
