/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The storage half of the live file system: metadata blocks in memory, transactions, space, the
 * inode table. The semantic half (names, extents, data) is built on these and nothing else.
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

#include "fusefs/core/ffs.h"
#include "layout/layout.h"

struct ffs_tx;

/* --- Bytes and blocks ------------------------------------------------------------------------- */

static inline uint64_t ffs_block_of(uint64_t offset)
{
    return offset >> LAY_BLOCK_SHIFT;
}
/* The first block at or past offset. */
static inline uint64_t ffs_block_up(uint64_t offset)
{
    return (offset >> LAY_BLOCK_SHIFT) + ((offset & (LAY_BLOCK_SIZE - 1)) != 0);
}
static inline uint64_t ffs_offset_of(uint64_t block)
{
    return block << LAY_BLOCK_SHIFT;
}
static inline uint64_t ffs_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}
static inline uint64_t ffs_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* --- Metadata blocks -------------------------------------------------------------------------- */

/* A block in memory. `data` may be read under ffs.meta, and changed after ffs_tx_dirty(). */
struct ffs_buf {
    uint64_t block;
    void *data; /* 4096 bytes */
};

/* What the reader of a block knows about it beforehand; checked when it comes from the device. */
struct ffs_expect {
    uint32_t magic; /* LAY_MAGIC_*: chooses the lay_check_* function */
    uint64_t owner;
    unsigned level;  /* tree nodes */
    uint64_t lo, hi; /* tree nodes: range of keys */
    uint64_t index;  /* inode blocks: file block; bitmaps: group */
};

/* -EUCLEAN (logged with address and reason, file system turns read-only), -EIO, -ENOMEM. */
int ffs_buf_get(struct ffs *fs, uint64_t block, const struct ffs_expect *expect,
                struct ffs_buf **out);
void ffs_buf_put(struct ffs_buf *buf);

/* --- Transactions ----------------------------------------------------------------------------- */

/*
 * A handle: one operation that becomes durable whole or not at all. Takes ffs.meta exclusively;
 * handles do not nest. `credits` bounds the blocks it may dirty (at most FFS_TX_MAX_CREDITS);
 * waits for journal space first. -EROFS, -EIO after shutdown.
 */
#define FFS_TX_MAX_CREDITS 128u
int ffs_tx_begin(struct ffs *fs, unsigned credits, struct ffs_tx **out);
/* Success: the changes join the running transaction. Frees the handle, drops ffs.meta. */
void ffs_tx_end(struct ffs_tx *tx);
/* Failure: every block and inode is as it was before the handle. Frees it, drops ffs.meta. */
void ffs_tx_abort(struct ffs_tx *tx);
/*
 * Blocks the handle may still dirty, or of metadata free, before it gets -ENOSPC for want of room.
 */
unsigned ffs_tx_left(const struct ffs_tx *tx);

/* Before changing buf->data: keeps the old contents for abort. -ENOMEM, -ENOSPC (credits). */
int ffs_tx_dirty(struct ffs_tx *tx, struct ffs_buf *buf);
/* A fresh metadata block at an address just allocated: zeroed, head filled in, dirty. */
int ffs_tx_new(struct ffs_tx *tx, uint64_t block, uint32_t magic, uint64_t owner,
               struct ffs_buf **out);
/* The same with the contents of another block. */
int ffs_tx_copy(struct ffs_tx *tx, const struct ffs_buf *from, uint64_t block);

/*
 * Lets the handle take the last free blocks, which are kept for operations that free space in the
 * end (a truncate that has to split a node first).
 */
void ffs_tx_use_reserve(struct ffs_tx *tx);

/* Shared access to metadata, for lookups. A thread must not take it twice. */
void ffs_meta_read(struct ffs *fs);
void ffs_meta_done(struct ffs *fs);

/* --- Space ------------------------------------------------------------------------------------ */

/*
 * Finds between min and max free blocks in one range, near `goal` (0: anywhere), start and length
 * multiples of `align` blocks (1, or LAY_GPU_ALIGN). Prefers the longest near range. -ENOSPC.
 */
int ffs_alloc(struct ffs_tx *tx, uint64_t goal, uint64_t min, uint64_t max, unsigned align,
              uint64_t *block, uint64_t *len);
/*
 * Frees data blocks. They are given out again only when the freeing transaction is durable and no
 * pin (below) taken before covers them.
 */
int ffs_free(struct ffs_tx *tx, uint64_t block, uint64_t len);
/* One metadata block; the same for freeing, which revokes its images in the journal. */
int ffs_alloc_meta(struct ffs_tx *tx, uint64_t goal, uint64_t *block);
int ffs_free_meta(struct ffs_tx *tx, uint64_t block);
/* Under ffs.meta. */
uint64_t ffs_free_blocks(struct ffs *fs);

/*
 * Keeps every block of the given ranges from being reused, even after it is freed, until the pin is
 * dropped. Taken under ffs.meta (shared is enough).
 */
struct ffs_pin;
int ffs_pin_add(struct ffs *fs, const struct ffs_segment *segments, size_t n, struct ffs_pin **out);
void ffs_pin_drop(struct ffs *fs, struct ffs_pin *pin);

/* --- Inode table ------------------------------------------------------------------------------ */

struct ffs_inode {
    struct ffs *fs;
    uint64_t ino;          /* 0: the inode file */
    struct lay_inode d;    /* protected by ffs.meta; change only after ffs_inode_dirty() */
    pthread_rwlock_t data; /* lock 1 above */
    _Atomic uint64_t map_generation; /* grows with every change of the extents */
    _Atomic uint64_t tid;            /* last transaction that changed it */
    _Atomic uint64_t data_tid;       /* same, for changes that matter to fdatasync */
    _Atomic bool times_seen;         /* since they last changed */
    uint32_t user_word;              /* ffs_user_word() */
    uint32_t user_count;             /* ffs_user_count() */
    /* Owned by the inode table: */
    uint64_t refs;
    struct ffs_inode *hash_next;
    TAILQ_ENTRY(ffs_inode) listed; /* while unreferenced, or doomed */
    bool hashed;
    bool evicting;                  /* on its way out: no longer to be found */
    struct ffs_tx *dirty_in;        /* handle that has a copy of the old `d` */
    uint64_t stored_map_generation; /* map_generation at the last ffs_tx_end() */
    uint64_t orphan_prev;           /* a hint: its predecessor in the orphan list; 0: unknown */
    struct ffs_watch *watches;      /* protected by ffs.meta */
};

/* Under ffs.meta: a handle has changed extents or size. */
void ffs_watches_tell(struct ffs_inode *inode);
/*
 * Before the blocks [first, end) of the file are overwritten in place, or become unwritten: their
 * words in watches become FFS_NO_SUM. Takes ffs.meta; the caller holds inode->data exclusively.
 */
void ffs_watches_drop_sums(struct ffs_inode *inode, uint64_t first, uint64_t end);

/* ffs_iget() for a caller that holds ffs.meta, shared or in a handle. */
int ffs_iget_meta(struct ffs *fs, uint64_t ino, struct ffs_inode **out);
/*
 * ffs_iput() for a caller that holds ffs.meta in a handle: eviction needs handles of its own, so it
 * waits for the end of this one.
 */
void ffs_inode_put_meta(struct ffs_inode *inode);
/* Before changing inode->d: keeps the old one; at ffs_tx_end() `d` is written to its block. */
int ffs_inode_dirty(struct ffs_tx *tx, struct ffs_inode *inode);
/*
 * A free slot: mode set, generation grown, the rest zero; referenced. Grows the inode file. Lookups
 * find it after ffs_tx_end(); after an abort the reference is still the caller's to drop.
 */
int ffs_inode_new(struct ffs_tx *tx, uint32_t mode, struct ffs_inode **out);
/* Frees the slot of an inode that has no blocks left. */
int ffs_inode_release(struct ffs_tx *tx, struct ffs_inode *inode);
/* The orphan list: inodes to finish at the next mount (unlinked, or truncate under way). */
int ffs_orphan_add(struct ffs_tx *tx, struct ffs_inode *inode);
int ffs_orphan_del(struct ffs_tx *tx, struct ffs_inode *inode);

/* --- Commit and state ------------------------------------------------------------------------- */

/*
 * Makes transaction `tid` and all before it durable; group commit. Not under any lock above. The
 * device is flushed only when there was something to commit.
 */
int ffs_commit(struct ffs *fs, uint64_t tid);
/*
 * Makes earlier writes durable: the log, and data that no commit carries along. Data lost by a
 * failed flush would not be missed by the next one: so a failure is final, and is returned to every
 * waiter.
 */
int ffs_flush(struct ffs *fs);
uint64_t ffs_running_tid(struct ffs *fs);
struct bd_dev *ffs_dev(struct ffs *fs);
const struct lay_geometry *ffs_geometry(struct ffs *fs);
/* Logs "what: why" and marks the file system in error and read-only. */
void ffs_note_corrupt(struct ffs *fs, uint64_t block, uint64_t ino, const char *why);
/* The same, and returns -EUCLEAN. Inline, so that compilers see that it is never 0. */
static inline int ffs_corrupt(struct ffs *fs, uint64_t block, uint64_t ino, const char *why)
{
    ffs_note_corrupt(fs, block, ino, why);
    return -EUCLEAN;
}
/* 0, or -EIO after shutdown. */
int ffs_alive(struct ffs *fs);
void ffs_log(struct ffs *fs, int level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Fills in the current time. */
struct lay_time ffs_now(void);

/* --- Times of changes (stamp.c) --------------------------------------------------------------- */

/* The time of a change of the inode, in a handle. */
struct lay_time ffs_stamp(struct ffs_inode *inode);
/* The same, exact whether or not the times have been looked at. */
struct lay_time ffs_stamp_exact(struct ffs *fs);
/* The times of the inode leave the file system, or may have: the next change has to show. */
void ffs_stamp_see(struct ffs_inode *inode);
/* Would a write now leave mtime and ctime as they are? Under ffs.meta. */
bool ffs_stamp_stays(struct ffs_inode *inode);

/* --- What the semantic half gives the storage half -------------------------------------------- */

struct ffs_semantics {
    /*
     * Frees everything an unlinked inode owns, in as many handles as it takes, then its slot.
     * Called with no lock held, on the last ffs_iput() of an inode with nlink 0, and for orphans at
     * mount.
     */
    int (*evict)(struct ffs_inode *inode);
    int (*truncate_finish)(struct ffs_inode *inode);
};
/* Defined in islot.c; a mount stores it in struct ffs. */
extern const struct ffs_semantics ffs_semantics;

#endif
