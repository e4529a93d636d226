/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds the places of chunks. */
#ifndef MKFS_FSCK_FIND_CHUNKS_H
#define MKFS_FSCK_FIND_CHUNKS_H

#include "mkfs/fsck/fsck.h"

/* Describes a place where a chunk may be. */
struct fsck_chunk {
    uint64_t number, place; /* place: its first block */
    uint64_t tid;           /* the newest of its blocks there */
    uint32_t score;         /* blocks there that bear its addresses */
    bool mapped;            /* a sound block of the map says so */
    bool second;            /* a block of the map names it as the copy */
    bool empty;             /* found by a search, and no block of it is in use */
    bool won;               /* it was chosen as the place of its chunk, or of the copy */
};

/* Fills a place from that of one segment; false if no chunk can be there. */
bool fsck_chunk_at(const struct fsck *f, uint64_t segment, uint64_t block, struct fsck_chunk *out);
/* Returns true if the block is sealed for this address. */
bool fsck_bears_address(const struct fsck *f, const union lay_block *b, uint64_t addr);
/*
 * Adds the places (struct fsck_chunk) of chunks whose element of `taken` is 0,
 * where the entries of a segment are, or with `deep` any of its blocks. Returns
 * 0, -ENOMEM or a device error.
 */
int fsck_scan_chunks(struct fsck *f, const uint8_t *taken, struct fsck_list *chunks, bool deep);

#endif
