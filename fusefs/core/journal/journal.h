/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The journal: the running transaction, the log ring, and the images that are still to be written
 * to where they belong. Private to the storage half; FORMAT.md 10 has the rules for the disk.
 *
 * A transaction lives through three states, one of each kind at most:
 *   running     handles add blocks to it, under ffs.meta
 *   committing  snapshot taken; its images go to the log (ffs_commit, under commit_lock)
 *   committed   its images are in ffs.home until a checkpoint has written them in place
 * A checkpoint writes all of ffs.home, so that afterwards the log is empty.
 */
#ifndef FUSEFS_CORE_JOURNAL_JOURNAL_H
#define FUSEFS_CORE_JOURNAL_JOURNAL_H

#include "fusefs/core/base/cache.h"
#include "fusefs/core/base/ranges.h"

/* Protected by ffs.meta, held exclusively to change it. */
struct ffs_running {
    uint64_t tid;
    struct ffs_cbuf **bufs; /* each referenced */
    size_t n, cap;
    struct ffs_ranges freed;   /* blocks that its commit makes reusable */
    struct ffs_ranges revoked; /* metadata blocks among them */
};

struct ffs_journal {
    pthread_mutex_t commit_lock;  /* one commit or checkpoint at a time; protects what follows */
    uint64_t head;                /* log position of the next transaction */
    uint64_t used;                /* log blocks between tail and head */
    uint64_t super_tid;           /* head.tid of the superblock in place */
    void *staging;                /* FFS_STAGING_BLOCKS of DMA memory */
    _Atomic uint64_t committed;   /* last durable transaction */
    _Atomic uint64_t running_tid; /* = running.tid, for those without ffs.meta */
    struct ffs_running running;   /* under ffs.meta */
    /*
     * A transaction whose commit failed. Its blocks stay in the cache, because the device has older
     * contents.
     */
    struct ffs_running failed;
};
#define FFS_STAGING_BLOCKS 256u

int ffs_journal_init(struct ffs *fs);
void ffs_journal_destroy(struct ffs *fs);

/* --- The running transaction (commit.c). Under ffs.meta, exclusively. ------------------------- */

/* Returns true if the log can hold the running transaction with so many more blocks. */
bool ffs_running_has_room(struct ffs *fs, unsigned blocks);
/* Reserves memory for so many more blocks. Returns 0 or -ENOMEM. */
int ffs_running_reserve(struct ffs *fs, unsigned blocks);
/* Adds a block. The transaction takes over the caller's reference. */
void ffs_running_add(struct ffs *fs, struct ffs_cbuf *cb);
/* Adds the blocks that a handle has freed. Revoked blocks leave the transaction and the cache. */
void ffs_running_free(struct ffs *fs, const struct ffs_ranges *freed,
                      const struct ffs_ranges *revoked);
bool ffs_running_empty(const struct ffs_running *r);

/* --- Checkpoints (commit.c) ------------------------------------------------------------------- */

/*
 * Writes all images in place, makes them durable, reads them back, and empties the log, whose next
 * transaction is next_tid, at the head. If block 0 is among the images, the superblock copies are
 * written as well. The caller holds commit_lock. Returns -EIO if the file system has stopped
 * writing, and -EINTR if the mount was interrupted and the log is unchanged.
 */
int ffs_checkpoint(struct ffs *fs, uint64_t next_tid);

/* Takes commit_lock and makes a checkpoint if the log uses more than log_blocks blocks. */
int ffs_checkpoint_above(struct ffs *fs, uint64_t log_blocks);
/* Takes commit_lock and makes a checkpoint unless the log is empty. */
int ffs_checkpoint_now(struct ffs *fs);

/*
 * Commits everything, empties the log and returns with shape_lock, commit_lock and ffs.meta held
 * exclusively. No handle has begun since the commit. The caller holds no lock. On failure no lock
 * is held; the errors are those of ffs_tx_begin() and ffs_commit().
 */
int ffs_freeze(struct ffs *fs);
void ffs_thaw(struct ffs *fs);

/* --- The log (commit.c). Under commit_lock. --------------------------------------------------- */

/* Returns the log blocks that a transaction needs. Needs no lock. */
uint64_t ffs_log_need(uint64_t images, uint64_t revokes);

/* A transaction that is written to the log. The caller owns the arrays. */
struct ffs_log_tx {
    uint64_t tid;
    struct ffs_image **images; /* sealed */
    size_t n;
    const uint64_t *revoked;
    size_t nrevoked;
};
/*
 * Writes the transaction at the head of the log, and makes it and all data written before it
 * durable.
 */
int ffs_log_write(struct ffs *fs, const struct ffs_log_tx *tx);
/*
 * Writes the journal's header: the log is empty, and its next transaction is tail_tid, at the head.
 */
int ffs_log_reset(struct ffs *fs, uint64_t tail_tid);

/* The superblock that a mount has found. */
struct ffs_super_found {
    struct lay_super sb; /* its head names block `at` */
    uint64_t at;
};

/*
 * Reads the log into ffs.home and sets head and running.tid. With `write` it also checkpoints and
 * resets the log. *replayed: there was anything to replay. A damaged header is no error when
 * `super` is block 0 of a file system that was unmounted in order. -EUCLEAN, but for a read-only
 * mount, when the journal has been damaged. Takes time and memory proportional to the log, whatever
 * it holds.
 */
int ffs_recover(struct ffs *fs, const struct ffs_super_found *super, bool write, bool *replayed,
                const char **why);

#endif
