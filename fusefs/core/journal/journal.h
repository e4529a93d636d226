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
#include "fusefs/core/base/home.h"
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
    /* What could not be committed: kept in the cache, because the device has older contents. */
    struct ffs_running failed;
};
#define FFS_STAGING_BLOCKS 256u

int ffs_journal_init(struct ffs *fs);
void ffs_journal_destroy(struct ffs *fs);

/* --- The running transaction (commit.c). Under ffs.meta, exclusively. ------------------------- */

/* Would the log hold the running transaction with so many more blocks? */
bool ffs_running_has_room(struct ffs *fs, unsigned blocks);
/* Memory for so many more blocks. */
int ffs_running_reserve(struct ffs *fs, unsigned blocks);
/* Takes over the caller's reference. */
void ffs_running_add(struct ffs *fs, struct ffs_cbuf *cb);
/* What a handle freed: revoked blocks leave the transaction and the cache. */
void ffs_running_free(struct ffs *fs, const struct ffs_ranges *freed,
                      const struct ffs_ranges *revoked);
bool ffs_running_empty(const struct ffs_running *r);

/* --- Checkpoints (checkpoint.c) --------------------------------------------------------------- */

/*
 * Writes all images in place, makes that durable, reads them back, has the superblock copies follow
 * block 0 when that is among them, and empties the log: the next transaction will be next_tid, at
 * the head. Under commit_lock. -EIO: the file system has stopped writing; -EINTR: the
 * mount was interrupted, and the log is as it was.
 */
int ffs_checkpoint(struct ffs *fs, uint64_t next_tid);

/* Takes commit_lock and makes a checkpoint if the log uses more than log_blocks blocks. */
int ffs_checkpoint_above(struct ffs *fs, uint64_t log_blocks);
/* Takes commit_lock and makes a checkpoint unless the log is empty. */
int ffs_checkpoint_now(struct ffs *fs);

/*
 * Commits everything, empties the log and returns with shape_lock, commit_lock and ffs.meta held
 * exclusively: no handle has begun since. Under no lock. On failure nothing is held; errors as of
 * ffs_tx_begin() and ffs_commit().
 */
int ffs_freeze(struct ffs *fs);
void ffs_thaw(struct ffs *fs);

/* --- The log (log.c). Under commit_lock. ------------------------------------------------------ */

/* Log blocks of a transaction. Under no lock. */
uint64_t ffs_log_need(uint64_t images, uint64_t revokes);

/* A transaction on its way to the log. Arrays belong to the caller. */
struct ffs_log_tx {
    uint64_t tid;
    struct ffs_image **images; /* sealed */
    size_t n;
    const uint64_t *revoked;
    size_t nrevoked;
};
/* Writes it at the head and makes it durable, with all data written before. */
int ffs_log_write(struct ffs *fs, const struct ffs_log_tx *tx);
/* Where the log starts on the device. */
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
