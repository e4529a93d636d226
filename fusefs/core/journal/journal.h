/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the journal: the running transaction, the log ring, and the images
 * that are still to be written in place. Only the storage half uses the
 * journal. FORMAT.md 10 has the rules for the disk.
 *
 * A transaction has three states in turn. Each state has at most one
 * transaction:
 *   running     handles add blocks to it, under ffs.meta
 *   committing  snapshot taken; its images go to the log (ffs_commit, under commit_lock)
 *   committed   its images are in ffs.home until a checkpoint has written them in place
 * A checkpoint writes all of ffs.home. Afterwards the log begins with the commit that ends the
 * checkpoint.
 *
 * Waiters count transactions in memory, by running.tid. In the log a transaction has the number
 * journal.tid, since empty transactions have numbers there, too.
 */
#ifndef FUSEFS_CORE_JOURNAL_JOURNAL_H
#define FUSEFS_CORE_JOURNAL_JOURNAL_H

#include "fusefs/core/base/cache.h"
#include "fusefs/core/base/ranges.h"
#include "layout/log_reader.h"

/* Protected by ffs.meta, held exclusively to change it. */
struct ffs_running {
    uint64_t tid;           /* grows by one with each running transaction; not the one of the log */
    struct ffs_cbuf **bufs; /* each referenced */
    size_t n, cap;
    struct ffs_ranges freed;    /* blocks that the commit after its own makes reusable (R9a) */
    struct ffs_ranges unmapped; /* addresses of the chunks that it unmaps */
};

/* Naming blocks above a block, at most: its entries, the map and its levels, and the superblock. */
#define FFS_NAMING_DEPTH 6u

/*
 * This hash with open addressing has the addresses of the naming blocks above
 * the blocks of the log and of the running transaction. 0 marks an empty slot,
 * since labels are in no transaction. Its user holds ffs.meta exclusively.
 */
struct ffs_naming {
    uint64_t *addrs;
    size_t cap, n;
};

struct ffs_journal {
    pthread_mutex_t commit_lock; /* one commit or checkpoint at a time; protects what follows */
    uint64_t tid;                /* number of the next transaction in the log */
    uint64_t head;               /* log position of the next transaction */
    uint64_t tail_tid, tail_pos; /* first transaction that may not be in place */
    uint64_t used;               /* log blocks from the tail to the head, at least 1 */
    uint32_t super_age;          /* age of the superblock as of the tail */
    bool closing;                /* the next commit with images is the last one: a clean unmount */
    bool unwritable;             /* a write to the log has failed (-EIO) */
    struct ffs_ranges freed;     /* blocks that the newest commit has freed */
    void *staging;               /* FFS_STAGING_BLOCKS of DMA memory */
    _Atomic uint64_t committed;  /* last durable transaction */
    /*
     * Last transaction that is in place, so that the log has no image of it or
     * of an older one.
     */
    _Atomic uint64_t in_place;
    _Atomic uint64_t running_tid; /* = running.tid, for those without ffs.meta */
    _Atomic uint64_t taken; /* `used`, and the blocks of a transaction that is being committed */
    _Atomic uint64_t owed;  /* blocks of the log that a checkpoint would need now (R7d) */
    struct ffs_running running; /* under ffs.meta */
    struct ffs_naming naming;
    /*
     * Holds a transaction whose commit failed. Its blocks stay in the cache,
     * because the device has older contents.
     */
    struct ffs_running failed;
};
#define FFS_STAGING_BLOCKS 256u

int ffs_journal_init(struct ffs *fs);
void ffs_journal_destroy(struct ffs *fs);

/* --- The running transaction (running.c, commit.c). The caller holds ffs.meta exclusively. ---- */

/* Returns true if the log can hold the running transaction with so many more blocks. */
bool ffs_running_has_room(struct ffs *fs, unsigned blocks);
/* Reserves memory for so many more blocks. Returns 0 or -ENOMEM. */
int ffs_running_reserve(struct ffs *fs, unsigned blocks);
/* Adds a block. The transaction takes over the caller's reference. */
void ffs_running_add(struct ffs *fs, struct ffs_cbuf *cb);
/*
 * Adds what a handle has freed and unmapped. The metadata blocks among it leave
 * the transaction and the cache.
 */
void ffs_running_free(struct ffs *fs, const struct ffs_tx *tx);
bool ffs_running_empty(const struct ffs_running *r);
/* Drops the references of a transaction to its blocks, and frees its arrays. Needs no lock. */
void ffs_running_put(struct ffs_running *r);

enum ffs_commit_how {
    FFS_COMMIT_PLAIN,
    FFS_COMMIT_NAMES,  /* with all naming blocks, as a checkpoint needs them (R7c) */
    FFS_COMMIT_FROZEN, /* like FFS_COMMIT_NAMES, for a caller that holds ffs.meta exclusively */
};
/*
 * Commits the running transaction. The caller holds commit_lock. Returns -ENODATA
 * if there is nothing to commit, -EAGAIN if the log has no room for it and for
 * the naming blocks of the checkpoint after it, and -EIO if the file system has
 * stopped writing.
 */
int ffs_running_commit(struct ffs *fs, enum ffs_commit_how how);

/* --- Naming blocks (running.c). The caller holds ffs.meta exclusively. ------------------------ */

/* Reserves memory for the naming blocks above so many blocks. Returns 0 or -ENOMEM. */
int ffs_naming_reserve(struct ffs *fs, unsigned blocks);
/* Adds the naming blocks above a block to the set. */
void ffs_naming_add(struct ffs *fs, uint64_t addr);
/* Adds the naming blocks above all images that a mount has found in the log. */
int ffs_naming_begin(struct ffs *fs);
/* Notes how many blocks of the log a checkpoint would need now. */
void ffs_naming_note(struct ffs *fs);
void ffs_naming_clear(struct ffs *fs);
void ffs_naming_destroy(struct ffs *fs);
/*
 * Enters the ages of all images in ffs.home, and adds the naming blocks above
 * them and above the running transaction to that transaction.
 */
int ffs_naming_gather(struct ffs *fs);
/* Seals the blocks of the running transaction from the bottom up, and enters their ages. */
void ffs_naming_seal(struct ffs *fs);

/* --- Commits and checkpoints ------------------------------------------------------------------ */

/*
 * Makes room in the log for a handle: commits transaction `tid` if that is still
 * running, or makes a checkpoint. Takes commit_lock.
 */
int ffs_commit_for_room(struct ffs *fs, uint64_t tid);
/*
 * Commits a transaction without images, after a checkpoint if the log has no room for it. The
 * caller holds commit_lock. Returns -EIO if the file system has stopped writing.
 */
int ffs_commit_empty(struct ffs *fs);
/*
 * Makes all blocks that were freed before the call reusable: commits what is running, and once more
 * if that has freed any. Takes commit_lock.
 */
int ffs_commit_freed(struct ffs *fs);

/*
 * Commits the running transaction with all naming blocks, writes all images in place, makes them
 * durable, reads them back, and commits an empty transaction with which the log begins. The caller
 * holds commit_lock. Returns -EIO if the file system has stopped writing, or -ENOMEM; the log
 * still has all images then, and a later call writes them.
 */
int ffs_checkpoint(struct ffs *fs);
/* Like ffs_checkpoint(), between ffs_freeze() and ffs_thaw(): ffs.meta is held exclusively. */
int ffs_checkpoint_frozen(struct ffs *fs);

/* Takes commit_lock and makes a checkpoint if the log uses more than log_blocks blocks. */
int ffs_checkpoint_above(struct ffs *fs, uint64_t log_blocks);
/* Takes commit_lock and makes a checkpoint unless the log holds nothing but its newest commit. */
int ffs_checkpoint_now(struct ffs *fs);

/*
 * Commits everything, makes a checkpoint and returns with shape_lock, commit_lock and ffs.meta held
 * exclusively. No handle has begun since the commit. The caller holds no lock. On failure no lock
 * is held; the errors are those of ffs_tx_begin() and ffs_commit().
 */
int ffs_freeze(struct ffs *fs);
void ffs_thaw(struct ffs *fs);

/* --- The log (log_write.c). Under commit_lock. ------------------------------------------------ */

/* Returns the log blocks that a transaction needs. Needs no lock. */
uint64_t ffs_log_need(uint64_t images);
/*
 * Return the log blocks that the next transaction may use, with or without the
 * blocks that a checkpoint needs for naming blocks (R7d).
 */
uint64_t ffs_log_free(const struct ffs *fs);
uint64_t ffs_log_room(const struct ffs *fs);
/*
 * Returns the log blocks that the next transaction may use after a checkpoint.
 * Needs no lock.
 */
uint64_t ffs_log_most(const struct ffs *fs);
/* Returns the position so many blocks after `pos`, at most log_blocks. */
uint64_t ffs_log_after(const struct ffs *fs, uint64_t pos, uint64_t blocks);

/*
 * Describes a transaction that is written to the log. The caller owns the
 * arrays.
 */
struct ffs_log_tx {
    struct ffs_image **images; /* sealed with journal.tid */
    size_t n;
    bool begins; /* the log begins with this transaction: all before it is in place */
    bool verify; /* the blocks are read back, and written once more if they differ */
};
/*
 * Writes transaction journal.tid at the head of the log, and makes it and all data written before
 * it durable, unless it is empty, which needs no flush. Then releases the blocks that the commit
 * before has freed. Goes on without a block that one of two logs cannot hold.
 */
int ffs_log_write(struct ffs *fs, const struct ffs_log_tx *tx);

/* --- Recovery (recover.c) --------------------------------------------------------------------- */

/* What a mount has found on the device. */
struct ffs_recovered {
    struct lay_supers supers; /* as they are in place */
    struct lay_super super;   /* as of the newest transaction */
    bool replay;              /* not unmounted in order */
    uint64_t corrected;       /* blocks of the log of which one bit was wrong */
    /* Blocks that one of two logs lacks. The caller of ffs_recover() frees the array. */
    struct lay_log_lack *lacks;
    size_t lack_count;
};

/*
 * Reads the log into ffs.home, sets the position of the next transaction, finds the superblock
 * given those in place, and completes ffs.geo, which is that of the label before. Writes nothing.
 * Returns -EUCLEAN if log or superblock are damaged, unless a read-only mount can show what is
 * left. Takes time and memory proportional to the log, whatever it holds.
 */
int ffs_recover(struct ffs *fs, struct ffs_recovered *found, struct reason *why);
/*
 * R8: writes what one of two logs lacks from the other one, before the first
 * commit of the mount. Returns 0 or an error. After a crash the next mount
 * continues the repair.
 */
int ffs_recover_mend(struct ffs *fs, const struct ffs_recovered *found);
/*
 * Goes on when the superblock is cached: reads the chunk map, and drops the images of chunks that
 * it does not have, since their space may hold data (FORMAT.md 10.4). Returns -EUCLEAN if the map
 * is damaged.
 */
int ffs_recover_chunks(struct ffs *fs, struct reason *why);

#endif
