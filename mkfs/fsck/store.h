/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Blocks that a repair has changed. They stay in memory until they are written
 * in a transaction of the journal. If the journal itself is damaged, they are
 * written in place, and a new journal header, written last, starts an empty
 * log.
 *
 * A power cut after any write leaves the file system as it was, or with some of
 * the transactions, in a state that another run can repair. This holds because
 * references to new blocks are written after the blocks, and old blocks are
 * reused only when nothing refers to them.
 */
#ifndef MKFS_FSCK_STORE_H
#define MKFS_FSCK_STORE_H

#include "mkfs/fsck/fsck.h"

/* Initialises the store after recovery in memory. Returns 0 or -ENOMEM. */
int store_init(struct fsck *f);
/* Frees the store and the blocks not written. */
void store_destroy(struct fsck *f);

/* Declares the log unusable: writes are in place from `tid` on. */
void store_begin_anew(struct fsck *f, uint64_t tid);
/* Sets the start of the next transaction in a valid log. */
void store_append_at(struct fsck *f, uint64_t pos);

/*
 * Puts a copy of a changed block, after setting its head to this address and
 * sealing it. May first write the blocks put before.
 */
int store_put(struct fsck *f, uint64_t block, union lay_block *b);
/* Writes an unreferenced block of fsck_alloc() directly to its place. */
int store_put_new(struct fsck *f, uint64_t block, union lay_block *b);
/*
 * Copies `len` blocks, as they are on the device, directly to blocks from
 * fsck_alloc(). With `tolerant` unreadable blocks become zeros.
 */
int store_copy(struct fsck *f, uint64_t from, uint64_t to, uint64_t len, bool tolerant);
/* Returns the transaction of the blocks that are put now. */
uint64_t store_tid(const struct fsck *f);
/* Writes all blocks and the superblocks durably. */
int store_commit(struct fsck *f);
/* After the last commit: writes a header if the log starts empty. */
int store_finish(struct fsck *f);

#endif
