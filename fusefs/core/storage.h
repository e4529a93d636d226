/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the storage half of the live file system: metadata blocks in memory,
 * transactions, space, and the inode table. The semantic half (names, extents,
 * data) uses only this interface.
 *
 * The folders of fusefs/core are rooms. The sources of a room call only rooms before it in this
 * list, and include only their headers and those beside the rooms (tests/style/check_circles.py,
 * check_includes.py). The first four rooms are the storage half.
 *   base     health and messages, cached metadata blocks, images of committed blocks, tree walks
 *   inode    inodes in memory, the blocks and inodes that a handle changes, the orphan list
 *   alloc    free space, pins, discards
 *   journal  handles, the running transaction, commits, the log, checkpoints, recovery
 *   map      changes of trees and extents
 *   data     reading, writing, truncation, maps and checksums of file data
 *   names    directories, inode slots, attributes, ACLs, eviction
 *   mount    the superblock, mounts, background commits, changes of size, FITRIM
 *
 * Locks, outermost first:
 *   1. ffs_inode.data   held to move or map file data; exclusive to change the mapping.
 *                       Two inodes: in ascending order of inode number.
 *   2. ffs.meta         one rwlock: shared while reading metadata (ffs_meta_read), exclusive from
 *                       ffs_tx_begin() to its end. No data I/O while it is held exclusively.
 *   3. mutexes inside cache, allocator, journal: leaf locks, never held across a call out.
 */
#ifndef FUSEFS_CORE_STORAGE_H
#define FUSEFS_CORE_STORAGE_H

#include <errno.h>
#include <pthread.h>
#ifndef _Atomic /* tests in C++ define it away */
#include <stdatomic.h>
#endif
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "fusefs/core/base/item_table.h"
#include "fusefs/core/ffs.h"
#include "layout/layout.h"
#include "support/minmax.h"

struct ffs_tx;

/* --- Bytes and blocks ------------------------------------------------------------------------- */

static inline uint64_t ffs_block_of(uint64_t offset)
{
    return offset >> LAY_BLOCK_SHIFT;
}
/* Returns the first block at or past offset. */
static inline uint64_t ffs_block_up(uint64_t offset)
{
    return (offset >> LAY_BLOCK_SHIFT) + ((offset & (LAY_BLOCK_SIZE - 1)) != 0);
}
static inline uint64_t ffs_bytes(uint64_t blocks)
{
    return blocks << LAY_BLOCK_SHIFT;
}

/* --- Metadata blocks -------------------------------------------------------------------------- */

/*
 * Describes a block in memory. `data` may be read under ffs.meta, and changed
 * after ffs_tx_dirty().
 */
struct ffs_buf {
    uint64_t block; /* logical address (FORMAT.md 2) */
    void *data;     /* 4096 bytes */
};

/*
 * Gets the block with a logical address, and checks it by `expect` if it is not
 * in the cache. Returns -EIO, -ENOMEM, or -EUCLEAN if the block stays bad after
 * a second read and an attempt to correct it: then it is logged with address and
 * reason, and the superblock asks for a run of fsck. Only a block that is in use
 * for two things makes the file system read-only.
 */
int ffs_buf_get(struct ffs *fs, uint64_t block, const struct lay_expect *expect,
                struct ffs_buf **out);
void ffs_buf_put(struct ffs_buf *buf);

/* --- Transactions ----------------------------------------------------------------------------- */

/*
 * A handle is one operation, which becomes durable completely or not at all. It
 * takes ffs.meta exclusively; handles do not nest. `credits` limits the blocks
 * that it may dirty (at most FFS_TX_MAX_CREDITS). The call first waits for
 * journal space. Returns -EROFS, or -EIO after shutdown.
 */
#define FFS_TX_MAX_CREDITS 128u
int ffs_tx_begin(struct ffs *fs, unsigned credits, struct ffs_tx **out);
/*
 * Acts like ffs_tx_begin() for a caller that holds commit_lock. The caller has to
 * release the lock before the handle ends. Returns -EAGAIN instead of waiting for journal space.
 */
int ffs_tx_begin_committing(struct ffs *fs, unsigned credits, struct ffs_tx **out);
/*
 * Ends a handle successfully: its changes join the running transaction. Frees
 * the handle and releases ffs.meta.
 */
void ffs_tx_end(struct ffs_tx *tx);
/*
 * Aborts a handle: every block and inode is restored to its state before the
 * handle. Frees the handle and releases ffs.meta.
 */
void ffs_tx_abort(struct ffs_tx *tx);
/*
 * Returns the number of blocks that the handle may still dirty before it gets
 * -ENOSPC.
 */
unsigned ffs_tx_left(const struct ffs_tx *tx);

/*
 * Keeps the old contents for an abort. Called before buf->data is changed.
 * Returns -ENOMEM, or -ENOSPC without credits.
 */
int ffs_tx_dirty(struct ffs_tx *tx, struct ffs_buf *buf);
/*
 * Initialises a metadata block at an address that was just allocated: zeroed,
 * with its head, and dirty.
 */
int ffs_tx_new(struct ffs_tx *tx, uint64_t block, uint32_t magic, uint64_t owner,
               struct ffs_buf **out);

/*
 * Allows the handle to use the last free metadata blocks, which are reserved for
 * operations that finally free space (such as a truncate that must first split
 * a node).
 */
void ffs_tx_use_reserve(struct ffs_tx *tx);

/*
 * Takes shared access to metadata, for lookups. A thread must not take it
 * twice.
 */
void ffs_meta_read(struct ffs *fs);
void ffs_meta_done(struct ffs *fs);

/* --- Space ------------------------------------------------------------------------------------ */

/*
 * Allocates between min and max contiguous blocks near `goal` (0 means
 * anywhere), with start and length multiples of `align` blocks (1, or
 * LAY_GPU_ALIGN). Prefers the longest near range. Returns -ENOSPC if there is
 * none.
 */
int ffs_alloc(struct ffs_tx *tx, uint64_t goal, uint64_t min, uint64_t max, unsigned align,
              uint64_t *block, uint64_t *len);
/*
 * Frees data blocks. They are allocated again only when a commit after that of
 * the freeing transaction is durable and no pin (below) taken before covers
 * them.
 */
int ffs_free(struct ffs_tx *tx, uint64_t block, uint64_t len);
/*
 * Allocates between 1 and max consecutive metadata blocks of one segment, near
 * the address `goal` (0 means anywhere), and sets *addr to the address of the
 * first one. Maps another chunk if the free blocks of the mapped ones run low.
 * Returns -ENOSPC if there is no block.
 */
int ffs_alloc_meta_run(struct ffs_tx *tx, uint64_t goal, uint64_t max, uint64_t *addr,
                       uint64_t *len);
/* Like ffs_alloc_meta_run(), for one block. */
int ffs_alloc_meta(struct ffs_tx *tx, uint64_t goal, uint64_t *addr);
/*
 * Frees one metadata block. At the end of the handle it leaves the cache and the
 * running transaction, and later handles may allocate it. A chunk that becomes
 * empty may be unmapped.
 */
int ffs_free_meta(struct ffs_tx *tx, uint64_t addr);
/* The caller holds ffs.meta. Returns the blocks that data or further chunks can use. */
uint64_t ffs_free_blocks(struct ffs *fs);

/*
 * A pin prevents every block of the given ranges from being reused, even after
 * it is freed, until the pin is dropped. Taken under ffs.meta (shared is
 * enough).
 */
struct ffs_pin;
int ffs_pin_add(struct ffs *fs, const struct ffs_segment *segments, size_t n, struct ffs_pin **out);
void ffs_pin_drop(struct ffs *fs, struct ffs_pin *pin);

/* --- Inode table ------------------------------------------------------------------------------ */

struct ffs_inode {
    struct ffs *fs;
    uint64_t ino;          /* 0 for the inode file */
    struct lay_inode d;    /* protected by ffs.meta; changed only after ffs_inode_dirty() */
    pthread_rwlock_t data; /* the first lock above */
    _Atomic uint64_t map_generation; /* incremented by every change of the extents */
    _Atomic uint64_t tid;            /* last transaction that changed it */
    _Atomic uint64_t data_tid;       /* last transaction that changed what matters to fdatasync */
    _Atomic bool times_seen;         /* the times were read since they last changed */
    uint32_t user_word;              /* ffs_user_word() */
    uint32_t user_count;             /* ffs_user_count() */
    /* The following fields are owned by the inode table. */
    uint64_t refs;
    struct ffs_item item;
    TAILQ_ENTRY(ffs_inode) listed;  /* in the list of unreferenced or doomed inodes */
    bool evicting;                  /* lookups no longer find it */
    struct ffs_tx *dirty_in;        /* handle that has a copy of the old `d` */
    uint64_t stored_map_generation; /* map_generation at the last ffs_tx_end() */
    uint64_t orphan_prev;           /* hint: predecessor in the orphan list; 0 if unknown */
    LIST_HEAD(, ffs_watch) watches; /* protected by ffs.meta */
};

/* The caller holds ffs.meta after a handle has changed extents or size. */
void ffs_watches_tell(struct ffs_inode *inode);
/*
 * Sets the words of the blocks [first, end) in watches to FFS_NO_SUM, before
 * these are overwritten in place or become unwritten. Takes ffs.meta; the
 * caller holds inode->data exclusively.
 */
void ffs_watches_drop_sums(struct ffs_inode *inode, uint64_t first, uint64_t end);

/* Like ffs_iget(), for a caller that holds ffs.meta, shared or in a handle. */
int ffs_iget_meta(struct ffs *fs, uint64_t ino, struct ffs_inode **out);
/*
 * Like ffs_iput(), for a caller that holds ffs.meta in a handle. Eviction needs
 * handles of its own, so it waits for the end of this one.
 */
void ffs_inode_put_meta(struct ffs_inode *inode);
/*
 * Keeps the old inode->d. Called before a change; ffs_tx_end() copies `d` to
 * its block.
 */
int ffs_inode_dirty(struct ffs_tx *tx, struct ffs_inode *inode);
/*
 * Allocates an inode: mode is set, the generation is incremented, the rest is
 * zero. Returns it with a reference. Grows the inode file if necessary. Lookups
 * find it after ffs_tx_end(); after an abort the caller still drops the
 * reference.
 */
int ffs_inode_new(struct ffs_tx *tx, uint32_t mode, struct ffs_inode **out);
/* Frees the slot of an inode that has no blocks left. */
int ffs_inode_release(struct ffs_tx *tx, struct ffs_inode *inode);
/*
 * The orphan list contains inodes that the next mount must finish. They are
 * unlinked or have an unfinished truncation.
 */
int ffs_orphan_add(struct ffs_tx *tx, struct ffs_inode *inode);
int ffs_orphan_del(struct ffs_tx *tx, struct ffs_inode *inode);

/* --- Commit and state ------------------------------------------------------------------------- */

/*
 * Makes transaction `tid` and all earlier transactions durable, together with
 * those of other callers. Called without any of the locks above. The device is
 * flushed only if there was something to commit. These numbers are counted in
 * memory. The log has other numbers.
 */
int ffs_commit(struct ffs *fs, uint64_t tid);
/*
 * Makes earlier writes durable: the log, and data that no commit includes. Data
 * lost by a failed flush would not be reported by the next one, so a failure is
 * final and is returned to every waiter.
 */
int ffs_flush(struct ffs *fs);
uint64_t ffs_running_tid(struct ffs *fs);
struct bd_dev *ffs_dev(struct ffs *fs);
const struct lay_geometry *ffs_geometry(struct ffs *fs);
/*
 * Logs the logical address `block` and `why`, and marks the file system in
 * error and read-only.
 */
void ffs_note_corrupt(struct ffs *fs, uint64_t block, uint64_t ino, const char *why);
/*
 * Like ffs_note_corrupt(), but returns -EUCLEAN. It is inline so that compilers
 * know the result is never 0.
 */
static inline int ffs_corrupt(struct ffs *fs, uint64_t block, uint64_t ino, const char *why)
{
    ffs_note_corrupt(fs, block, ino, why);
    return -EUCLEAN;
}
/* Returns 0, or -EIO after shutdown. */
int ffs_alive(struct ffs *fs);
/* Logs a line that begins with the name of the device. */
void ffs_log(struct ffs *fs, int level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Fills in the current time. */
struct lay_time ffs_now(void);

/* --- Times of changes (itable.c) -------------------------------------------------------------- */

/* Returns the time for a change of the inode in a handle. */
struct lay_time ffs_stamp(struct ffs_inode *inode);
/* Does what ffs_stamp() does, but always with the exact time. */
struct lay_time ffs_stamp_exact(struct ffs *fs);
/*
 * Called when the times of the inode were, or may have been, reported: the next
 * change must be visible.
 */
void ffs_stamp_see(struct ffs_inode *inode);
/*
 * Returns true if a write now would not change mtime and ctime. The caller
 * holds ffs.meta.
 */
bool ffs_stamp_stays(struct ffs_inode *inode);

/* --- What the semantic half gives the storage half -------------------------------------------- */

struct ffs_semantics {
    /*
     * Frees everything that an unlinked inode owns, in as many handles as
     * needed, and then its slot. Called without locks, on the last ffs_iput()
     * of an inode with nlink 0, and for orphans at mount.
     */
    int (*evict)(struct ffs_inode *inode);
    int (*truncate_finish)(struct ffs_inode *inode);
};
/* Defined in islot.c; a mount stores it in struct ffs. */
extern const struct ffs_semantics ffs_semantics;

#endif
