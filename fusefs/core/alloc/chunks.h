/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares chunks (FORMAT.md 5.6 and 5.7), the places of their segments, and
 * their free blocks, which are private to the storage half. storage.h declares
 * the allocation of metadata blocks.
 *
 * A metadata block has a logical address in a segment. The chunk map has the
 * place of the segment. The whole map is in memory, since a read of metadata
 * must not need another read. The entries of a segment show which of its blocks
 * are in use. These entries are read when they are first needed.
 */
#ifndef FUSEFS_CORE_ALLOC_CHUNKS_H
#define FUSEFS_CORE_ALLOC_CHUNKS_H

#include "fusefs/core/base/ranges.h"
#include "fusefs/core/storage.h"

/*
 * Names the states of a segment. A segment whose entries have been read has
 * FFS_SEGMENT_KNOWN plus the number of its free blocks.
 */
enum ffs_segment_state {
    FFS_SEGMENT_NONE,    /* not mapped */
    FFS_SEGMENT_GONE,    /* not mapped, but the log may have images of its blocks */
    FFS_SEGMENT_UNREAD,  /* mapped; its entries have not been read */
    FFS_SEGMENT_DAMAGED, /* mapped; its entries are damaged: no block is taken or freed */
    FFS_SEGMENT_KNOWN
};

/* The number of this chunk can be used again when transaction `tid` is in place. */
struct ffs_gone {
    uint64_t segment; /* the first segment of the chunk */
    uint64_t tid;     /* of the running transaction that unmapped it */
};

/* Protected by ffs.meta, unless a field says otherwise. */
struct ffs_chunks {
    uint64_t segments; /* length of the arrays: lay_segments() */
    uint64_t end;      /* no segment from here on has been mapped */
    /*
     * First block of each segment, or 0. An unmapped segment keeps its first
     * block until its number is used again, so that a checkpoint, which holds
     * only journal.commit_lock, never meets a change of a place that it needs.
     */
    uint64_t *starts;
    uint64_t *copies; /* first blocks of the segments' copies; 0 without one */
    uint16_t *states; /* of each segment: enum ffs_segment_state */
    /*
     * One word for each group, with a bit for each of its units of 2 MiB: set if
     * a segment is there.
     */
    uint64_t *units;
    uint64_t unread;       /* number of segments in this state */
    uint64_t free;         /* free blocks of the segments that are known */
    uint64_t cursor;       /* segment in which a search without a goal begins */
    uint64_t look;         /* segment in which a search for unread ones begins */
    struct ffs_gone *gone; /* in the order of their transactions */
    size_t ngone, gone_cap;
    /*
     * alloc.released + 1 of the time when no space for a chunk was found, or 0.
     * The search is repeated when that has changed.
     */
    uint64_t refused;
    _Atomic uint64_t copies_refused; /* like refused, for space of a copy; needs no lock */
};

/* Returns how many blocks a chunk has. */
static inline uint64_t ffs_chunk_blocks(const struct lay_geometry *geo)
{
    return (uint64_t)LAY_SEGMENT_BLOCKS << geo->chunk_shift;
}
/* Returns how many blocks of an empty chunk are free. */
static inline uint64_t ffs_chunk_room(const struct lay_geometry *geo)
{
    return (uint64_t)(LAY_SEGMENT_BLOCKS - 1) << geo->chunk_shift;
}
static inline bool ffs_segment_mapped(const struct ffs_chunks *c, uint64_t segment)
{
    return segment < c->end && c->states[segment] >= FFS_SEGMENT_UNREAD;
}

/* Notes that a segment is, or is no longer, at this block of the device. */
static inline void ffs_chunks_note(struct ffs_chunks *c, uint64_t start, bool there)
{
    uint64_t bit = UINT64_C(1) << start % LAY_GROUP_BLOCKS / LAY_SEGMENT_BLOCKS;
    uint64_t *units = &c->units[start / LAY_GROUP_BLOCKS];

    *units = there ? *units | bit : *units & ~bit;
}
/* Returns true if a chunk has one of the blocks, which are in one group. */
static inline bool ffs_chunks_have(const struct ffs_chunks *c, uint64_t block, uint32_t len)
{
    uint64_t first = block % LAY_GROUP_BLOCKS / LAY_SEGMENT_BLOCKS;
    uint64_t last = (block % LAY_GROUP_BLOCKS + len - 1) / LAY_SEGMENT_BLOCKS;
    uint64_t upto = ~UINT64_C(0) >> (63 - last); /* last is at most 62 */

    return c->units[block / LAY_GROUP_BLOCKS] & upto & ~UINT64_C(0) << first;
}

/*
 * Reads the chunk map at mount, from ffs.home or from the device, until it has
 * as many chunks as the superblock says. Returns -EUCLEAN with a reason if the
 * map is damaged or chunks overlap.
 */
int ffs_chunks_load(struct ffs *fs, const struct lay_super *sb, struct reason *why);
/*
 * Called when a mount has begun to write. Reads the blocks of the map again if a
 * bit of one was corrected, which is then written.
 */
void ffs_chunks_heal(struct ffs *fs);
void ffs_chunks_destroy(struct ffs *fs);
/*
 * Makes room for the segments of another geometry, before ffs.geo becomes it.
 * All mapped segments are among them. Called between ffs_freeze() and ffs_thaw().
 * Returns 0, or -ENOMEM without a change.
 */
int ffs_chunks_resize(struct ffs *fs, const struct lay_geometry *geo);
/*
 * Returns the first block of a segment, or with place 1 that of its copy.
 * Returns 0 if there is none.
 */
static inline uint64_t ffs_segment_start(const struct ffs_chunks *c, uint64_t segment,
                                         unsigned place)
{
    return place == 0 ? c->starts[segment] : c->copies[segment];
}
/*
 * Changes a place of a mapped chunk in memory: the first place if `place` is 0,
 * and the place of the copy, which may be new, if it is 1. The caller has copied
 * the blocks, and holds the handle that changes the slots. No image waits in
 * ffs.home. The caller holds journal.commit_lock, or no other thread uses
 * the file system.
 */
void ffs_chunks_move(struct ffs *fs, uint64_t chunk, unsigned place, uint64_t start);
/*
 * Enters a place of the chunk with this first segment in the map, and then in
 * memory: the first one if `place` is 0, that of the copy if it is 1. After an
 * error memory is unchanged.
 */
int ffs_chunk_set_place(struct ffs_tx *tx, uint64_t first, unsigned place, uint64_t to);
/* Marks the places of a mapped segment as used or unused. */
void ffs_chunks_note_both(struct ffs_chunks *c, uint64_t segment, bool there);

/*
 * Called by an abort for each block of the map or of entries that has its old
 * contents again: memory follows it.
 */
void ffs_chunks_undo(struct ffs *fs, const struct ffs_buf *buf);
/*
 * Called at the end of a handle with the addresses of the chunks that it has
 * unmapped. Their numbers are used again when the running transaction is in
 * place (journal.in_place).
 */
void ffs_chunks_leave(struct ffs *fs, const struct ffs_ranges *unmapped);

#endif
