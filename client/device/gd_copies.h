/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Records that the host and the copy block (gd_copy_warp.h) exchange: copies from staging in host
 * memory to GPU memory. Each warp of the block has a slot, through which one thread of the host at
 * a time submits a copy. Every word of a slot has the number of the copy in its upper half.
 */
#ifndef CLIENT_DEVICE_GD_COPIES_H
#define CLIENT_DEVICE_GD_COPIES_H

#include <assert.h>
#include <stdint.h>

#include "cuda/gq_tagged_slot.h"

#define GD_COPIES_SLOTS   16u    /* warps of the block */
#define GD_COPIES_STAGING 20480u /* bytes of a slot: 16 KiB from any address in a page */

#define GD_COPY_WORDS 4u
/* The lower halves of the words of a slot. */
union gd_copy {
    uint32_t words[GD_COPY_WORDS];
    struct {
        uint64_t dst;
        uint32_t first, len; /* bytes in the slot's staging */
    };
};
static_assert(sizeof(union gd_copy) == GD_COPY_WORDS * sizeof(uint32_t), "a word has a dword");

/* A cache line pair for each word that one side polls. */
struct gd_copies_slot {
    uint64_t words[GD_COPY_WORDS];
    uint64_t pad[16 - GD_COPY_WORDS];
};
struct gd_copies_word {
    uint64_t value;
    uint64_t pad[15];
};

/* In host memory, initially zero. The block stores done, started and ended. */
struct gd_copies {
    struct gd_copies_slot slots[GD_COPIES_SLOTS];
    struct gd_copies_word done[GD_COPIES_SLOTS]; /* number of the slot's last copy */
    struct gd_copies_word started, ended;        /* numbers of launches */
};

struct gd_copies_launch {
    struct gd_copies *copies;
    uint64_t staging; /* GD_COPIES_STAGING bytes for each slot; both as the block addresses them */
    uint32_t number;
};

#endif
