/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Blocks that a repair has changed. They stay in memory until they go to the device as a
 * transaction of the journal, or in place when the journal itself is damaged: then its header,
 * written last, begins it anew.
 *
 * A power cut after any write leaves the file system as it was, or with some of the transactions;
 * each leaves something that another run repairs, because whatever refers to new blocks is written
 * after them, and old blocks are not reused before nothing refers to them.
 */
#ifndef MKFS_FSCK_STORE_H
#define MKFS_FSCK_STORE_H

#include "mkfs/fsck/fsck.h"

/* The journal is as recovery left it in memory. 0 or -ENOMEM. */
int store_init(struct fsck *f);
void store_destroy(struct fsck *f);

/* The log cannot be used: blocks go in place from transaction `tid` on. */
void store_begin_anew(struct fsck *f, uint64_t tid);
/* Where the next transaction begins in a sound log. */
void store_append_at(struct fsck *f, uint64_t pos);

/*
 * A changed block: its head is set to this block and sealed. May first write the
 * blocks before it. The block is copied.
 */
int store_put(struct fsck *f, uint64_t block, union lay_block *b);
/* A block that nothing refers to yet, from fsck_alloc(): goes in place at once. */
int store_put_new(struct fsck *f, uint64_t block, union lay_block *b);
/*
 * Copies `len` blocks of the device, as they are in place, to blocks from fsck_alloc(), at once.
 * tolerant: those that cannot be read become zeros.
 */
int store_copy(struct fsck *f, uint64_t from, uint64_t to, uint64_t len, bool tolerant);
/* The transaction that blocks belong to which are put now. */
uint64_t store_tid(const struct fsck *f);
/* Writes everything, and the superblocks, durably. */
int store_commit(struct fsck *f);
/* After the last commit: the journal's header, when the log begins anew. */
int store_finish(struct fsck *f);

#endif
