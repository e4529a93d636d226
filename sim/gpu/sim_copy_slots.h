/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Copy slots hand copies to the copy kernel (sim_copy_kernel.cu). They are pinned host memory with
 * three users: the poster fills slots, the kernel empties them and counts, and the keeper launches
 * the kernel when a block has work and no kernel runs. Poster and keeper are one thread.
 *
 * Plain C: no CUDA is called here.
 */
#ifndef SIM_GPU_SIM_COPY_SLOTS_H
#define SIM_GPU_SIM_COPY_SLOTS_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

/* One copy. Pinned host memory has the same address for the GPU as for the host. */
struct sim_gather {
    uint64_t dst;
    uint64_t src;
    uint64_t len;
};

#define SIM_COPY_KERNEL_BLOCKS   8u  /* maximum; each block has its own slots */
#define SIM_COPY_KERNEL_SLOTS    8u  /* slots of a block, filled and emptied in turn */
#define SIM_COPY_KERNEL_BATCH    31u /* copies in a slot */
#define SIM_COPY_KERNEL_WORDS    (2 + 2 * SIM_COPY_KERNEL_BATCH)
#define SIM_COPY_KERNEL_LINE     16u  /* words that are loaded together first */
#define SIM_COPY_KERNEL_RENEWAL  64u  /* one of so many fillings writes all words */
#define SIM_COPY_KERNEL_THREADS  320u /* per block: one warp takes batches, one counts */
#define SIM_COPY_KERNEL_SHORTEST 512u
#define SIM_COPY_KERNEL_LONGEST  (64u << 10)

/*
 * Lays out a tagged slot. The seven uppermost bits of every word, which no user
 * address uses, are the number of the filling modulo 128. So each new word is
 * recognised individually, however the bus splits the loads. words[0] holds the
 * length (log2) and number of the copies, words[2 + 2 i] and words[3 + 2 i] the
 * destination and source of copy i.
 */
struct sim_copy_slot {
    uint64_t words[SIM_COPY_KERNEL_WORDS];
};
static_assert(sizeof(struct sim_copy_slot) == 512, "a slot is four lines of 128 bytes");

#define SIM_COPY_KERNEL_TAG_SHIFT 57
#define SIM_COPY_KERNEL_TAG(fill) ((uint64_t)((fill)&0x7fu) << SIM_COPY_KERNEL_TAG_SHIFT)
#define SIM_COPY_KERNEL_VALUE     ((1ull << SIM_COPY_KERNEL_TAG_SHIFT) - 1)

/* Counts of all blocks on one cache line, with one writer. */
struct sim_copy_kernel_counts {
    uint32_t of[SIM_COPY_KERNEL_BLOCKS];
    uint32_t pad[32 - SIM_COPY_KERNEL_BLOCKS];
};

/* The slots and counts of all blocks, initially zero. */
struct sim_copy_slots {
    struct sim_copy_slot slots[SIM_COPY_KERNEL_BLOCKS * SIM_COPY_KERNEL_SLOTS]; /* by block */
    struct sim_copy_kernel_counts done;  /* stored by the kernel: total batches done */
    struct sim_copy_kernel_counts ended; /* stored by the kernel: last ended launch */
};

/*
 * Separates data that different threads write often, because processors fetch
 * cache lines in pairs.
 */
#define SIM_OWN_LINES __attribute__((aligned(128)))

/* Holds the state of the poster. Only one thread uses it. */
struct sim_poster {
    struct sim_copy_slots *m;
    unsigned blocks;                         /* 1 to SIM_COPY_KERNEL_BLOCKS */
    uint32_t posted[SIM_COPY_KERNEL_BLOCKS]; /* total batches */
} SIM_OWN_LINES;

/* Number of batches of each block at which the ticket is done. */
struct sim_copy_kernel_ticket {
    uint32_t need[SIM_COPY_KERNEL_BLOCKS];
};

/*
 * Returns true if a slot can encode the copy: length a power of two, 512 bytes
 * to 64 KiB, addresses aligned to 16.
 */
static inline bool sim_copy_kernel_takes(const struct sim_gather *copy)
{
    return copy->len >= SIM_COPY_KERNEL_SHORTEST && copy->len <= SIM_COPY_KERNEL_LONGEST &&
           (copy->len & (copy->len - 1)) == 0 && ((copy->dst | copy->src) & 15) == 0;
}
/*
 * Returns 0 if there is room for n copies that satisfy sim_copy_kernel_takes(),
 * -EAGAIN if there is none at present, and -ENOSPC if all slots together are
 * too small.
 */
int sim_poster_room(const struct sim_poster *p, const struct sim_gather *copies, unsigned n);
/* Posts n copies, after sim_poster_room() has returned 0. */
void sim_poster_post(struct sim_poster *p, const struct sim_gather *copies, unsigned n,
                     struct sim_copy_kernel_ticket *ticket);
/*
 * Returns true if the bytes are visible to the device (or to the host, for
 * copies from the device).
 */
bool sim_poster_done(const struct sim_poster *p, const struct sim_copy_kernel_ticket *ticket);
/* Holds the arguments of one launch: its blocks, and the first batch of each block. */
struct sim_copy_kernel_launch {
    const struct sim_copy_slot *slots; /* SIM_COPY_KERNEL_SLOTS for each block */
    uint32_t *done;                    /* total batches done, by block */
    uint32_t *ended;                   /* number of the launch that has ended, by block */
    /* Number of this launch by block; 0 if it does not start the block. */
    uint32_t launch[SIM_COPY_KERNEL_BLOCKS];
    uint32_t first[SIM_COPY_KERNEL_BLOCKS]; /* the batch it begins with */
    uint64_t idle_ns; /* idle time after which a block ends; longer after many batches */
};

/*
 * Number of streams. Blocks end individually, so launches overlap, each in a
 * stream whose last launch has ended. With enough streams no launch waits for
 * another one, which may take 0.1 s.
 */
#define SIM_KEEPER_STREAMS 4u

/* Holds the state of the keeper. Only the poster's thread uses it. */
struct sim_keeper {
    const struct sim_poster *poster;
    struct sim_copy_kernel_launch launch;
    uint32_t launched[SIM_COPY_KERNEL_BLOCKS]; /* number of the last launch */
    /* Number of the launch of each block in each stream, or 0. */
    uint32_t in_stream[SIM_KEEPER_STREAMS][SIM_COPY_KERNEL_BLOCKS];
    /*
     * Launches the kernel in a stream, 0 to SIM_KEEPER_STREAMS - 1. Returns 0
     * or -errno.
     */
    int (*run)(void *ctx, const struct sim_copy_kernel_launch *l, unsigned blocks, unsigned stream);
    void *ctx;
};

void sim_keeper_init(struct sim_keeper *k, const struct sim_poster *p, uint64_t idle_ns);
/*
 * Launches all blocks without a kernel if one of them has work. Returns the
 * result of run(), or 0 without a launch. After an error the blocks have no
 * kernel, and the next launch copies the posted batches.
 */
int sim_keeper_peek(struct sim_keeper *k);
/*
 * Returns true if a block has work and no kernel. sim_keeper_peek() must then
 * be called, at once or when a stream is free.
 */
bool sim_keeper_is_needed(const struct sim_keeper *k);
/*
 * Returns true if the rest of the ticket is on blocks without a kernel, so that
 * it is not being copied.
 */
bool sim_keeper_has_lost(const struct sim_keeper *k, const struct sim_copy_kernel_ticket *ticket);

__END_DECLS

#endif
