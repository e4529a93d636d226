/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the mounted file system, and how its parts report errors. Private to
 * the storage half.
 *
 * Order of locks, outermost first: trim_lock, shape_lock, journal.commit_lock, ffs.meta, then the
 * leaf locks (cache.lock, checked.lock, alloc.lock, home.lock, itable.lock, flushes.lock,
 * sums.lock), of which a thread holds one at a time.
 */
#ifndef FUSEFS_CORE_STATE_H
#define FUSEFS_CORE_STATE_H

#include "fusefs/core/alloc/alloc.h"
#include "fusefs/core/alloc/chunks.h"
#include "fusefs/core/base/cache.h"
#include "fusefs/core/base/checked.h"
#include "fusefs/core/data/sums.h"
#include "fusefs/core/inode/itable.h"
#include "fusefs/core/inode/tx.h"
#include "fusefs/core/journal/journal.h"
#include "fusefs/core/storage.h"
#include "layout/label.h"

/*
 * Names restrictions of the file system, as bits of ffs.health that are set
 * once and never cleared.
 */
#define FFS_READ_ONLY 1u /* mounted read-only */
#define FFS_CORRUPT                                                                                \
    2u                 /* an inconsistency was found: no new handles, complete operations are kept \
                        */
#define FFS_FAILED 4u  /* a write failed: no further writes */
#define FFS_DOWN   8u  /* ffs_shutdown() */
#define FFS_STUCK  16u /* a command may write at any time: no new handles */

/* Describes the thread that commits every commit_ms. */
struct ffs_background {
    pthread_t thread;
    pthread_mutex_t lock; /* protects the other fields */
    pthread_cond_t wake;
    bool running, stop, hurry;
};

/* Describes the thread of the background scrub. */
struct ffs_scrubber {
    pthread_mutex_t control; /* held, before all other locks, to start and to end the thread */
    pthread_t thread;
    bool running;
    uint64_t rate, pause_ms; /* constant while the thread runs */
    pthread_mutex_t lock;    /* protects the other fields; a leaf lock */
    pthread_cond_t wake;
    bool stop;
    struct ffs_scrub_counts counts;
};

struct ffs_flushes {
    pthread_mutex_t lock; /* held during a flush, until its failure is recorded */
    _Atomic uint64_t begun;
};

struct ffs {
    struct bd_dev *dev;
    struct ffs_mount_opts opts;
    struct ffs_mmp *mmp; /* NULL without multi-mount protection */
    const struct ffs_semantics *semantics;
    struct lay_geometry geo;
    /*
     * The label that counts, whose incarnation is that of this mount, and its
     * copies on the device. Protected by journal.commit_lock; `label` is changed
     * under meta as well, so that either lock allows reading it.
     */
    struct lay_label label;
    struct lay_labels labels;
    pthread_rwlock_t meta;
    _Atomic unsigned health;
    _Atomic unsigned access;    /* enum ffs_access */
    _Atomic unsigned commit_ms; /* not 0 */
    _Atomic bool discard;
    /* Held while ffs_trim() or ffs_chunk_add_copy() keeps free blocks from being allocated. */
    pthread_mutex_t trim_lock;
    _Atomic bool mounting; /* ffs_mount() has not returned, so orphans may be looked up */
    bool frozen;           /* no handle may begin, see ffs_freeze(); protected by meta */
    /*
     * Held, before all other locks but trim_lock, while the shape in `geo` is used without
     * meta. Held exclusively, together with meta, to change it.
     */
    pthread_rwlock_t shape_lock;
    struct ffs_cache cache;
    struct ffs_checked checked;
    struct ffs_alloc alloc;
    struct ffs_chunks chunks;
    struct ffs_journal journal;
    struct ffs_home home;
    struct ffs_itable itable;
    struct ffs_background background;
    struct ffs_scrubber scrubber;
    struct ffs_flushes flushes;
    struct ffs_sums sums;
    struct ffs_buf *super; /* held from mount to unmount */
    /*
     * The superblock is not the one that the log names, so that the ages of the
     * top blocks are not known. Only a read-only mount shows that.
     */
    bool super_is_old;
    struct ffs_inode inode_file;
    /*
     * Old contents of the blocks that a handle changes, by their index in it.
     * The memory is kept from one handle to the next; NULL until needed.
     * Protected by meta, held exclusively.
     */
    void *old_blocks[FFS_TX_BUFS];
    int64_t exact_stamp;          /* the last exact time of a change, ns; protected by meta */
    _Atomic bool times_by_caller; /* ffs_set_data_times() */
};

static inline struct lay_super *ffs_super(struct ffs *fs)
{
    return fs->super->data;
}

unsigned ffs_health(struct ffs *fs);
/*
 * Returns 0, or the reason why no handle may begin: -EIO after shutdown, or
 * -EROFS.
 */
int ffs_writable(struct ffs *fs);
/*
 * Called after a write to the journal or to metadata has failed. Logs the
 * failure and stops all writing. Returns -EIO.
 */
int ffs_fail(struct ffs *fs, const char *what, int err);

/*
 * Makes *label, a changed copy of fs->label, one of a new incarnation and
 * writes it to both places. The caller holds commit_lock, makes it fs->label,
 * and commits before any other write. Returns 0 or -errno; *label may be
 * durable then.
 */
int ffs_label_write(struct ffs *fs, struct lay_label *label);

/*
 * Starts multi-mount protection, before anything else of a mount. Called like
 * ffs_mount(); fs->mmp is dropped after the last write.
 */
int ffs_guard(struct ffs *fs, struct reason *why);

int ffs_background_start(struct ffs *fs);
void ffs_background_stop(struct ffs *fs);
/* Requests a commit soon. Does nothing without a background thread. */
void ffs_background_hurry(struct ffs *fs);

#endif
