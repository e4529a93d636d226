/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Keeps the blocks that a repair has changed in memory until a transaction
 * writes these blocks to the log. The first write of a repair makes a new
 * incarnation (FORMAT.md 4.2). The last write notes that the log holds nothing.
 *
 * If the log itself is damaged, blocks are written in place until the log has
 * been kept in a file. The next transaction then begins the log again. If only
 * blocks ahead in the log are bad, the log's images are written in place, and
 * the log begins again behind those blocks.
 *
 * A power cut after any write leaves the file system unchanged, or with some of
 * the transactions. Another run can repair either state, because references to
 * new blocks are written after the blocks, and old blocks are reused only when
 * nothing refers to them.
 *
 * The store enters the ages of written blocks in the blocks that name these
 * ages. A naming block that is damaged or stale is skipped. The pass that
 * rebuilds the naming block takes the ages from the written blocks
 * (fsck_fill_ages()).
 */
#ifndef MKFS_FSCK_STORE_H
#define MKFS_FSCK_STORE_H

#include "mkfs/fsck/fsck.h"

/* So many empty transactions precede the first one of a repair. */
#define STORE_FIRST_COMMITS 2u

/*
 * Returns true if writes to this place of a block have failed, and the other
 * place has the block.
 */
bool store_place_is_bad(const struct fsck *f, uint64_t place);

/* Initialises the store. Returns 0 or -ENOMEM. */
int store_init(struct fsck *f);
/* Frees the store and the blocks not written. */
void store_destroy(struct fsck *f);

/*
 * Sets the next transaction and its position in the log. With in_place, blocks
 * are written in place until the log begins again at that position. This is
 * necessary if the log is damaged or has no room for the first commits.
 */
void store_start_at(struct fsck *f, uint64_t tid, uint64_t pos, bool in_place);

/*
 * Puts a copy of a changed block, after setting its head to this address and
 * sealing it. May first write the blocks put before.
 */
int store_put(struct fsck *f, uint64_t addr, union lay_block *b);
/* Writes an unreferenced block of fsck_alloc() directly to its place. */
int store_put_new(struct fsck *f, uint64_t addr, union lay_block *b);
/* Writes a data block directly to a block of fsck_alloc(). */
int store_put_data(struct fsck *f, uint64_t block, const void *data);
/*
 * Copies `len` blocks, as they are on the device, directly to blocks from
 * fsck_alloc(). With `tolerant` unreadable blocks become zeros.
 */
int store_copy(struct fsck *f, uint64_t from, uint64_t to, uint64_t len, bool tolerant);
/*
 * Writes all blocks and the superblocks durably. A place that cannot be written
 * is reported, and then skipped if the block's other place can be written.
 */
int store_commit(struct fsck *f);
/* Notes after the last commit that the log holds nothing. */
int store_finish(struct fsck *f);

#endif
