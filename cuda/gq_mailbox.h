/*
 * Mailboxes: how copies are handed to a copy kernel (gq_copy_kernel.cu), a kernel that stays on the
 * GPU for a while. They are host memory of three parties: the poster fills slots, the kernel
 * empties them and counts, the keeper launches the kernel where there is work and none runs. Poster
 * and keeper are one thread of a process (gq_copy_kernel.h), or two processes: then the memory is a
 * memfd, the keeper is the process that owns the destination, and the poster trusts nothing that it
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

/* One copy, within the address space of whoever makes it. */
struct gq_gather {
    uint64_t dst;
    uint64_t src;
    uint64_t len;
};

#define GQ_COPY_KERNEL_BLOCKS   8u  /* of a set at most; each has mailboxes of its own */
#define GQ_COPY_KERNEL_BOXES    8u  /* of a block, filled and emptied in turn */
#define GQ_COPY_KERNEL_BATCH    31u /* copies in a slot */
#define GQ_COPY_KERNEL_WORDS    (2 + 2 * GQ_COPY_KERNEL_BATCH)
#define GQ_COPY_KERNEL_LINE     16u  /* of them, which are looked at together */
#define GQ_COPY_KERNEL_RENEWAL  64u  /* each such filling writes all words */
#define GQ_COPY_KERNEL_THREADS  320u /* of a block: of ten warps one takes slots, one counts */
#define GQ_COPY_KERNEL_SHORTEST 512u
#define GQ_COPY_KERNEL_LONGEST  (64u << 10)

/*
 * A mailbox. Every word carries in its seven uppermost bits, which no address of a process has,
 * the number of times the slot has been filled: a reader knows of each word whether it is new,
 * however the bus may have cut its loads. words[0]: lengths of the copies and how many there are;
 * words[2 + 2 i], words[3 + 2 i]: destination and source of copy i.
 */
struct gq_copy_slot {
    uint64_t words[GQ_COPY_KERNEL_WORDS];
};
static_assert(sizeof(struct gq_copy_slot) == 512, "a box is four lines of 128 bytes");

#define GQ_COPY_KERNEL_TAG_SHIFT 57
#define GQ_COPY_KERNEL_TAG(fill) ((uint64_t)((fill)&0x7fu) << GQ_COPY_KERNEL_TAG_SHIFT)
#define GQ_COPY_KERNEL_VALUE     ((1ull << GQ_COPY_KERNEL_TAG_SHIFT) - 1)

/* A line for each that writes: counts of each block. */
struct gq_copy_kernel_counts {
    uint32_t of[GQ_COPY_KERNEL_BLOCKS];
    uint32_t pad[32 - GQ_COPY_KERNEL_BLOCKS];
};

/* A set of mailboxes, zeroed at first: one poster's, one keeper's. */
struct gq_mailboxes {
    struct gq_copy_slot slots[GQ_COPY_KERNEL_BLOCKS * GQ_COPY_KERNEL_BOXES]; /* by block */
    struct gq_copy_kernel_counts posted;   /* poster: batches, ever */
    struct gq_copy_kernel_counts done;     /* kernel: batches, ever */
    struct gq_copy_kernel_counts ended;    /* kernel: number of the last launch that has ended */
    struct gq_copy_kernel_counts launched; /* keeper: number of the last launch */
};
static_assert(sizeof(struct gq_mailboxes) == 33280, "two processes agree on it");

/*
 * The memory of poster and keeper in two processes: this, then the sets, each on pages of its own.
 * asleep is a futex; the keeper exchanges it for 1 and looks for work once more before it waits,
 * whoever exchanges it for 0 wakes him.
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

/* What threads write all the time lies that far apart: processors fetch cache lines in pairs. */
#define GQ_APART __attribute__((aligned(128)))

/* The poster's half; used by one thread. */
struct gq_poster {
    struct gq_mailboxes *m;
    unsigned blocks; /* 1 to GQ_COPY_KERNEL_BLOCKS */
    uint32_t posted[GQ_COPY_KERNEL_BLOCKS];
} GQ_APART;

/* How many batches of each block a ticket waits for. */
struct gq_copy_kernel_ticket {
    uint32_t need[GQ_COPY_KERNEL_BLOCKS];
};

/* Is it something that a mailbox can say? A power of two, 512 bytes to 64 KiB, aligned to 16. */
static inline bool gq_copy_kernel_takes(const struct gq_gather *copy)
{
    return copy->len >= GQ_COPY_KERNEL_SHORTEST && copy->len <= GQ_COPY_KERNEL_LONGEST &&
           (copy->len & (copy->len - 1)) == 0 && ((copy->dst | copy->src) & 15) == 0;
}
/* n copies that it takes: 0, -EAGAIN: no room for all now, -ENOSPC: there never is. */
int gq_poster_room(const struct gq_poster *p, const struct gq_gather *copies, unsigned n);
/* n copies that have room. */
void gq_poster_post(struct gq_poster *p, const struct gq_gather *copies, unsigned n,
                    struct gq_copy_kernel_ticket *ticket);
/* The bytes are in place, where the device (copies from it: the host) sees them. */
bool gq_poster_done(const struct gq_poster *p, const struct gq_copy_kernel_ticket *ticket);
/* Some block has work and no kernel. */
bool gq_poster_is_stuck(const struct gq_poster *p);
/* What is missing of the ticket waits for kernels that are not there: nobody is copying it. */
bool gq_poster_is_lost(const struct gq_poster *p, const struct gq_copy_kernel_ticket *ticket);
/*
 * Nothing is posted any more. What no kernel has taken yet none will take; a few batches a block
 * may be under way, and end while that kernel has its turn.
 */
void gq_poster_take_back(struct gq_poster *p);
/* After posting, and whenever a ticket is waited for in vain: wakes a keeper that is needed. */
void gq_mailbox_ring(struct gq_mailbox_head *head, const struct gq_poster *p);

/* What one launch of the kernel is told: which blocks it is, and where each goes on. */
struct gq_copy_kernel_launch {
    const struct gq_copy_slot *slots;       /* GQ_COPY_KERNEL_BOXES for each block */
    uint32_t *done;                         /* of each block: batches done, ever */
    uint32_t *ended;                        /* of each block: number of the launch that has ended */
    uint32_t launch[GQ_COPY_KERNEL_BLOCKS]; /* number of this launch of the block; 0: not started */
    uint32_t first[GQ_COPY_KERNEL_BLOCKS];  /* the batch it begins with */
    uint64_t idle_ns; /* it ends when it has had nothing to do for so long, or longer after much */
};

/*
 * Blocks end one by one, so launches overlap, each in a stream whose last launch has ended. Of no
 * more blocks than streams none has to wait for another to end, which takes up to 0.1 s.
 */
#define GQ_KEEPER_STREAMS 4u

/* The keeper's half; used by one thread. */
struct gq_keeper {
    struct gq_mailboxes *m;
    unsigned blocks;
    struct gq_copy_kernel_launch launch; /* addresses as the kernel has them */
    uint32_t launched[GQ_COPY_KERNEL_BLOCKS];
    uint32_t in_stream[GQ_KEEPER_STREAMS][GQ_COPY_KERNEL_BLOCKS]; /* launches; 0: none */
    /* Launches the kernel in stream 0 to GQ_KEEPER_STREAMS - 1: 0 or -errno. */
    int (*run)(void *ctx, const struct gq_copy_kernel_launch *l, unsigned blocks, unsigned stream);
    void *ctx;
};

/* device: where the kernel has m. */
void gq_keeper_init(struct gq_keeper *k, struct gq_mailboxes *m, uint64_t device, unsigned blocks,
                    uint64_t idle_ns);
/*
 * When a block has work and no kernel: launches all that have none. What run() says, else 0; after
 * an error they have none still, and what was posted is copied by the next that is launched.
 */
int gq_keeper_peek(struct gq_keeper *k);
/* Some block has work and no kernel: it has to look, now or once a stream is free. */
bool gq_keeper_is_needed(const struct gq_keeper *k);

#ifdef __cplusplus
}
#endif

#endif
