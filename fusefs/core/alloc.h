/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Space in memory. Private to the storage half.
 *
 * The bitmaps on disk name the blocks in use; a group's `map` here names the blocks that may not be
 * allocated: those, and the busy ones, freed but not yet reusable (the freeing transaction is not
 * durable, or a pin covers them). Maps are made when a group is first touched.
 */
#ifndef FUSEFS_CORE_ALLOC_H
#define FUSEFS_CORE_ALLOC_H

#include "fusefs/core/ranges.h"
#include "fusefs/core/storage.h"

#define FFS_GROUP_WORDS (LAY_GROUP_BLOCKS / 64)

struct ffs_group {
    uint64_t *map;    /* FFS_GROUP_WORDS, or NULL: not loaded */
    uint32_t free;    /* zero bits */
    uint32_t longest; /* no range of free blocks is longer */
};

struct ffs_pin {
    struct ffs_pin *prev, *next;
    size_t n;
    struct ffs_range ranges[]; /* by address */
};

struct ffs_alloc {
    pthread_mutex_t lock; /* protects all below */
    struct ffs_group *groups;
    uint64_t busy;              /* blocks */
    bool starved;               /* an allocation failed while a commit could have freed blocks */
    struct ffs_ranges deferred; /* durably freed, but pinned */
    struct ffs_pin *pins;
    uint64_t cursor, meta_cursor; /* where goal 0 goes on; protected by ffs.meta */
    uint64_t reserve;             /* blocks that only truncate and unlink may have; constant */
    /* Sections whose bitmaps are as new as the superblock says; protected by ffs.meta. */
    bool section_checked[LAY_BITMAP_SECTIONS];
    uint64_t section_free[LAY_BITMAP_SECTIONS]; /* zero bits, where checked; by ffs.meta, too */
    bool hints_behind; /* a section was checked whose hint in the superblock is another */
};

int ffs_alloc_init(struct ffs *fs);
void ffs_alloc_destroy(struct ffs *fs);
/*
 * Undoes a handle: blocks that it took are free again, blocks that it freed are in use again.
 */
void ffs_alloc_undo(struct ffs *fs, const struct ffs_ranges *allocated,
                    const struct ffs_ranges *freed);
/* A transaction is durable: blocks that it freed may be allocated again, unless pinned. */
void ffs_alloc_release(struct ffs *fs, const struct ffs_ranges *freed);
/* Lets a range that was taken, or busy, be given out again. alloc.lock is held. */
void ffs_alloc_give_back(struct ffs_alloc *a, uint64_t block, uint64_t len, bool was_busy);
/*
 * Is `block` pinned, and for how many blocks of [block, end) is the answer the same? alloc.lock is
 * held.
 */
bool ffs_alloc_pinned(const struct ffs_alloc *a, uint64_t block, uint64_t end, uint64_t *len);
/* Loads the map of a group. In a handle. */
int ffs_alloc_load(struct ffs *fs, uint64_t group);
/* Before ffs_alloc_release() of the same blocks: discards what no pin covers, if that is wanted. */
void ffs_discard_freed(struct ffs *fs, const struct ffs_ranges *freed);
/* Waits until ffs_trim() gives back the blocks that it holds at present. */
void ffs_trim_wait(struct ffs *fs);
/* Would a commit help an allocation that failed? Under ffs.meta. */
bool ffs_alloc_starved(struct ffs *fs);

/* --- Age of the bitmaps (section.c). In a handle. --------------------------------------------- */

/*
 * Before a group is first used: are all bitmaps of its section as new as the superblock says?
 * -EUCLEAN when one is older, because a write to it was lost.
 */
int ffs_section_check(struct ffs *fs, uint64_t group);
/* A dirty bitmap changes in the running transaction: the superblock, dirty too, counts that. */
void ffs_section_changed(struct ffs *fs, struct lay_bitmap *bm, uint64_t group);
/* The free blocks of the section of `group` become more, or fewer; an undo calls this, too. */
void ffs_section_count(struct ffs *fs, uint64_t group, int64_t more);
/* After ffs_section_count(), the superblock dirty: the hints say the same. */
void ffs_section_hint(struct ffs *fs, uint64_t group);
/* Has the section of `group` fewer than `min` free blocks, as far as hints tell? */
bool ffs_section_is_full(struct ffs *fs, uint64_t group, uint64_t min);

/* --- One group (group.c): pure functions on its map ------------------------------------------- */

struct ffs_found {
    uint32_t bit, len;
};
/*
 * The first range of at least `want` zeros in [from, to), cut to `want`; when there is none, the
 * longest. Start and length are multiples of `align`. len 0: nothing.
 */
struct ffs_found ffs_map_find(const uint64_t *map, uint32_t from, uint32_t to, uint32_t want,
                              unsigned align);
/* How many zeros follow each other from `from` on, before `to`. */
uint32_t ffs_map_zeros(const uint64_t *map, uint32_t from, uint32_t to);
void ffs_map_set(uint64_t *map, uint32_t bit, uint32_t len);
void ffs_map_clear(uint64_t *map, uint32_t bit, uint32_t len);
/* Are all of them set (value true), or clear? */
bool ffs_map_all(const uint64_t *map, uint32_t bit, uint32_t len, bool value);

#endif
