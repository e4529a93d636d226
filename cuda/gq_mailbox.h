/*
 * A mailbox hands copies to a copy kernel (gq_copy_kernel.cu). It is host
 * memory with three users: the poster fills tagged slots, the kernel empties
 * them and counts, the keeper launches the kernel if there is work and no
 * kernel runs. Poster and keeper are either one thread (gq_copy_kernel.h) or
 * two processes. In the second case the memory is a memfd, the keeper is the
 * process that owns the destination, and the poster trusts no value that it
 * reads.
 *
 * Plain C: no CUDA is called here.
 */
#ifndef CUDA_GQ_MAILBOX_H
#define CUDA_GQ_MAILBOX_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One copy, in addresses of the process or device that makes it. */
struct gq_gather {
    uint64_t dst;
    uint64_t src;
    uint64_t len;
};

#define GQ_COPY_KERNEL_BLOCKS   8u  /* maximum of a mailbox; each has its own slots */
#define GQ_COPY_KERNEL_SLOTS    8u  /* slots of a block, filled and emptied in turn */
#define GQ_COPY_KERNEL_BATCH    31u /* copies in a slot */
#define GQ_COPY_KERNEL_WORDS    (2 + 2 * GQ_COPY_KERNEL_BATCH)
#define GQ_COPY_KERNEL_LINE     16u  /* words that are loaded together first */
#define GQ_COPY_KERNEL_RENEWAL  64u  /* every so many fillings all words are written */
#define GQ_COPY_KERNEL_THREADS  320u /* of a block: of ten warps one takes batches, one counts */
#define GQ_COPY_KERNEL_SHORTEST 512u
#define GQ_COPY_KERNEL_LONGEST  (64u << 10)

/*
 * A tagged slot. The seven uppermost bits of every word, which no user address
 * has, are the number of the filling modulo 128: each new word is recognised
 * individually, however the bus splits the loads. words[0]: length (log2) and
 * number of the copies; words[2 + 2 i], words[3 + 2 i]: destination and source
 * of copy i.
 */
struct gq_copy_slot {
    uint64_t words[GQ_COPY_KERNEL_WORDS];
};
static_assert(sizeof(struct gq_copy_slot) == 512, "a slot is four lines of 128 bytes");

#define GQ_COPY_KERNEL_TAG_SHIFT 57
#define GQ_COPY_KERNEL_TAG(fill) ((uint64_t)((fill)&0x7fu) << GQ_COPY_KERNEL_TAG_SHIFT)
#define GQ_COPY_KERNEL_VALUE     ((1ull << GQ_COPY_KERNEL_TAG_SHIFT) - 1)

/* Counts of all blocks on one cache line, with one writer. */
struct gq_copy_kernel_counts {
    uint32_t of[GQ_COPY_KERNEL_BLOCKS];
    uint32_t pad[32 - GQ_COPY_KERNEL_BLOCKS];
};

/* A mailbox, initially zero: one poster, one keeper. */
struct gq_mailboxes {
    struct gq_copy_slot slots[GQ_COPY_KERNEL_BLOCKS * GQ_COPY_KERNEL_SLOTS]; /* by block */
    struct gq_copy_kernel_counts posted;   /* poster: batches posted, ever */
    struct gq_copy_kernel_counts done;     /* kernel: batches done, ever */
    struct gq_copy_kernel_counts ended;    /* kernel: number of the last launch that has ended */
    struct gq_copy_kernel_counts launched; /* keeper: number of the last launch */
};
static_assert(sizeof(struct gq_mailboxes) == 33280, "shared by two processes");

/*
 * The memory shared by poster and keeper in two processes: this head, then the
 * mailboxes, each on its own pages. asleep is a futex: the keeper exchanges it
 * for 1 and checks for work once more before it waits; the side that exchanges
 * it for 0 wakes the keeper.
 */
struct gq_mailbox_head {
    uint32_t asleep;
    uint32_t pad[1023];
};
#define GQ_MAILBOX_SET_BYTES 36864u
static_assert(GQ_MAILBOX_SET_BYTES >= sizeof(struct gq_mailboxes), "whole pages");
#define GQ_MAILBOX_BYTES(sets) \
    (sizeof(struct gq_mailbox_head) + (size_t)(sets)*GQ_MAILBOX_SET_BYTES)

static inline struct gq_mailboxes *gq_mailbox_set(struct gq_mailbox_head *head, unsigned i)
{
    return (struct gq_mailboxes *)(void *)((char *)(head + 1) + (size_t)i * GQ_MAILBOX_SET_BYTES);
}

/*
 * Distance of data that different threads write often: processors fetch cache
 * lines in pairs.
 */
#define GQ_APART __attribute__((aligned(128)))

/* The poster's side; used by one thread. */
struct gq_poster {
    struct gq_mailboxes *m;
    unsigned blocks; /* 1 to GQ_COPY_KERNEL_BLOCKS */
    uint32_t posted[GQ_COPY_KERNEL_BLOCKS];
} GQ_APART;

/* Number of batches of each block at which the ticket is done. */
struct gq_copy_kernel_ticket {
    uint32_t need[GQ_COPY_KERNEL_BLOCKS];
};

/*
 * True if a slot can encode the copy: length a power of two, 512 bytes to 64
 * KiB, addresses aligned to 16.
 */
static inline bool gq_copy_kernel_takes(const struct gq_gather *copy)
{
    return copy->len >= GQ_COPY_KERNEL_SHORTEST && copy->len <= GQ_COPY_KERNEL_LONGEST &&
           (copy->len & (copy->len - 1)) == 0 && ((copy->dst | copy->src) & 15) == 0;
}
/*
 * Room for n copies that satisfy gq_copy_kernel_takes(): 0, -EAGAIN: not at
 * present, -ENOSPC: more than all slots hold.
 */
int gq_poster_room(const struct gq_poster *p, const struct gq_gather *copies, unsigned n);
/* Posts n copies. Precondition: gq_poster_room() has returned 0. */
void gq_poster_post(struct gq_poster *p, const struct gq_gather *copies, unsigned n,
                    struct gq_copy_kernel_ticket *ticket);
/* True if the bytes are visible to the device (copies from it: to the host). */
bool gq_poster_done(const struct gq_poster *p, const struct gq_copy_kernel_ticket *ticket);
/* True if a block has work and no kernel. */
bool gq_poster_is_stuck(const struct gq_poster *p);
/*
 * True if the rest of the ticket is on blocks without a kernel: it is not being
 * copied.
 */
bool gq_poster_is_lost(const struct gq_poster *p, const struct gq_copy_kernel_ticket *ticket);
/*
 * Withdraws all batches that no kernel has taken; no batch is posted
 * afterwards. Batches that were taken may still be copied while their kernel
 * runs.
 */
void gq_poster_take_back(struct gq_poster *p);
/*
 * Wakes a keeper that is needed. Called after posting and after each poll
 * without result.
 */
void gq_mailbox_ring(struct gq_mailbox_head *head, const struct gq_poster *p);

/* Arguments of one launch: its blocks, and the first batch of each. */
struct gq_copy_kernel_launch {
    const struct gq_copy_slot *slots;       /* GQ_COPY_KERNEL_SLOTS for each block */
    uint32_t *done;                         /* of each block: number of batches done, ever */
    uint32_t *ended;                        /* of each block: number of the launch that has ended */
    uint32_t launch[GQ_COPY_KERNEL_BLOCKS]; /* number of this launch of the block; 0: not started */
    uint32_t first[GQ_COPY_KERNEL_BLOCKS];  /* the batch it begins with */
    uint64_t idle_ns; /* idle time after which a block ends; longer after many batches */
};

/*
 * Blocks end individually, so launches overlap, each in a stream whose last
 * launch has ended. With at least as many streams as blocks no launch waits for
 * another one, which may take 0.1 s.
 */
#define GQ_KEEPER_STREAMS 4u

/* The keeper's side; used by one thread. */
struct gq_keeper {
    struct gq_mailboxes *m;
    unsigned blocks;
    struct gq_copy_kernel_launch launch; /* in addresses of the kernel */
    uint32_t launched[GQ_COPY_KERNEL_BLOCKS];
    uint32_t in_stream[GQ_KEEPER_STREAMS]
                      [GQ_COPY_KERNEL_BLOCKS]; /* number of the launch; 0: none */
    /* Launches the kernel in stream 0 to GQ_KEEPER_STREAMS - 1: 0 or -errno. */
    int (*run)(void *ctx, const struct gq_copy_kernel_launch *l, unsigned blocks, unsigned stream);
    void *ctx;
};

/* device: address of m for the kernel. */
void gq_keeper_init(struct gq_keeper *k, struct gq_mailboxes *m, uint64_t device, unsigned blocks,
                    uint64_t idle_ns);
/*
 * If a block has work and no kernel: launches all blocks without a kernel.
 * Returns the result of run(), else 0. After an error they have no kernel, and
 * the next launch copies the posted batches.
 */
int gq_keeper_peek(struct gq_keeper *k);
/*
 * True if a block has work and no kernel: gq_keeper_peek() must be called, now
 * or when a stream is free.
 */
bool gq_keeper_is_needed(const struct gq_keeper *k);

#ifdef __cplusplus
}
#endif

#endif
