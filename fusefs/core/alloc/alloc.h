/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares free space in memory, for the storage half only.
 *
 * The bitmaps on disk show the blocks in use. A busy block is free in the
 * bitmaps but cannot be reused yet, because no commit after that of the freeing
 * transaction is durable (R9a), or because a pin covers the block. A group with
 * busy blocks has a `map` of the used and the busy blocks. For any other group
 * that map would equal the bitmap.
 */
#ifndef FUSEFS_CORE_ALLOC_ALLOC_H
#define FUSEFS_CORE_ALLOC_ALLOC_H

#include <sys/queue.h>

#include "blockdev/bdev.h"
#include "fusefs/core/base/ranges.h"
#include "fusefs/core/storage.h"

#define FFS_GROUP_WORDS (LAY_GROUP_BLOCKS / 64)

#define FFS_GROUP_UNITS (LAY_GROUP_BLOCKS / LAY_GPU_ALIGN)

/*
 * Holds the state of a group. The struct is small because every group of the
 * device has one: 64 TiB need 8.5 MB.
 */
struct ffs_group {
    uint64_t *map;    /* FFS_GROUP_WORDS words, or NULL if no block is busy */
    uint16_t busy;    /* number of busy blocks */
    uint16_t free;    /* allocatable blocks; an upper bound until the section is checked */
    uint16_t longest; /* upper bound of the length of a free range */
    uint8_t units;    /* upper bound of the aligned free ranges of LAY_GPU_ALIGN blocks */
};
static_assert(LAY_GROUP_BLOCKS <= UINT16_MAX, "blocks of a group are counted in 16 bits");

/* Describes a range of bits in the map of a group. */
struct ffs_found {
    uint32_t bit, len;
};

struct ffs_pin {
    LIST_ENTRY(ffs_pin) entry;
    size_t n;
    struct ffs_range ranges[]; /* sorted by address */
};

struct ffs_alloc {
    pthread_mutex_t lock; /* protects all below */
    struct ffs_group *groups;
    uint64_t busy;              /* number of busy blocks */
    bool starved;               /* an allocation failed while commits could have freed blocks */
    struct ffs_ranges deferred; /* durably freed ranges that are pinned */
    LIST_HEAD(, ffs_pin) pins;
    uint64_t cursor; /* start of a search without a goal; protected by ffs.meta */
    /* Grows when blocks become free or a section is read: a search may find more then. */
    uint64_t released;
    /*
     * True for sections whose bitmaps are known to be current; protected by
     * ffs.meta.
     */
    bool section_checked[LAY_BITMAP_SECTIONS];
    /*
     * True for sections with a damaged bitmap. No block is allocated or freed
     * there. Protected by ffs.meta.
     */
    bool section_damaged[LAY_BITMAP_SECTIONS];
    bool any_damaged; /* one of them is set */
    uint64_t avoided; /* damaged blocks that ffs_alloc_avoid() has seen; protected by ffs.meta */
    uint64_t section_free[LAY_BITMAP_SECTIONS]; /* of checked sections; protected by ffs.meta */
    uint64_t checked_free;                      /* sum over the checked sections */
    /*
     * Alignment of the free range to look for in unchecked sections without
     * ffs.meta; 0 means none.
     */
    _Atomic unsigned wanted;
    pthread_mutex_t look_lock; /* held by the thread that looks; taken before ffs.meta */
};

int ffs_alloc_init(struct ffs *fs);
void ffs_alloc_destroy(struct ffs *fs);
/*
 * Allocates space for n places of one chunk, each at a multiple of
 * LAY_SEGMENT_BLOCKS near its goal. The caller has a handle. If not all places are
 * found, takes none and returns -ENOSPC, even if a commit or another section
 * could free some.
 */
int ffs_alloc_chunk(struct ffs_tx *tx, const uint64_t *goals, unsigned n, uint64_t *blocks);
/*
 * Finds space for one place of a chunk near a goal, and keeps it from other use,
 * in memory only, until ffs_alloc_return(). The caller has a handle, which
 * changes nothing. Fails like ffs_alloc_chunk().
 */
int ffs_alloc_keep_chunk(struct ffs_tx *tx, uint64_t goal, uint64_t *block);
/*
 * Returns -ENOSPC. Records whether waiting for a commit would help, because busy
 * blocks that no pin covers become free with the one after.
 */
int ffs_alloc_no_space(struct ffs *fs);
/*
 * Undoes a handle: blocks that it allocated become free, and blocks that it
 * freed become used.
 */
void ffs_alloc_undo(struct ffs *fs, const struct ffs_ranges *allocated,
                    const struct ffs_ranges *freed);
/*
 * Called when a commit is durable. Allows the blocks that the one before freed
 * to be allocated again unless they are pinned.
 */
void ffs_alloc_release(struct ffs *fs, const struct ffs_ranges *freed);
/*
 * ffs_alloc_give_back() makes a range available again. was_busy is false for a
 * range that an undone handle took. The caller holds alloc.lock.
 * ffs_alloc_return() takes the lock, for a busy range.
 */
void ffs_alloc_give_back(struct ffs_alloc *a, uint64_t block, uint64_t len, bool was_busy);
void ffs_alloc_return(struct ffs *fs, uint64_t block, uint64_t len);
/* Returns a number that changes when space is freed. */
uint64_t ffs_alloc_released(struct ffs *fs);
/*
 * Makes the free ranges of `part` with at least `least` blocks busy, only in
 * memory, until ffs_alloc_return(). A range for which *taken has no memory
 * stays free. The caller has a handle. Returns 0 or -errno.
 */
int ffs_alloc_keep(struct ffs *fs, uint64_t group, struct ffs_found part, uint32_t least,
                   struct ffs_ranges *taken);
/*
 * Keeps free blocks with a damaged checksum block from being allocated until the
 * unmount, since data that is written there could not be read. Called in a
 * handle. What memory does not suffice for is left to the next call.
 */
void ffs_alloc_avoid(struct ffs *fs);
/*
 * Called before ffs_alloc_release() of the same blocks. Discards the blocks
 * that no pin covers if the mount discards.
 */
void ffs_discard_freed(struct ffs *fs, const struct ffs_ranges *freed);
/* Waits until ffs_trim() has returned the blocks that it holds now. */
void ffs_trim_wait(struct ffs *fs);
/*
 * Returns true if ffs_commit_freed() would help an allocation that failed.
 * Called under ffs.meta.
 */
bool ffs_alloc_starved(struct ffs *fs);

/* --- Discards that are sent to the device together (pins.c) ----------------------------------- */

#define FFS_DISCARDS 64u

/*
 * Discards collected by one thread. All fields except fs are initially zero;
 * ffs_discard_submit() ends the use.
 */
struct ffs_discards {
    struct ffs *fs;
    struct bd_io ios[FFS_DISCARDS];
    size_t n;
};

/* Adds `len` blocks from `block` on. Submits the earlier ones if there is no room. */
void ffs_discard_add(struct ffs_discards *b, uint64_t block, uint64_t len);
/* Submits the discards. A failure is only logged, because it loses no data. */
void ffs_discard_submit(struct ffs_discards *b);

/* --- Sections (section.c). In a handle. ------------------------------------------------------- */

/*
 * Reads all bitmaps of the group's section before the group is first used.
 * Returns -EUCLEAN if one is damaged, or older because a write to it was lost.
 */
int ffs_section_check(struct ffs *fs, uint64_t group);
/* Marks the group's section as damaged. */
void ffs_section_give_up(struct ffs *fs, uint64_t group);
bool ffs_section_is_damaged(const struct ffs *fs, uint64_t group);
/* Holds the result of reading the bitmaps of a section. */
struct ffs_section {
    uint64_t index;
    int err;      /* -EUCLEAN with `why`, for block `bad` */
    uint64_t bad; /* logical address of the damaged block */
    const char *why;
    uint64_t free_blocks;
    struct ffs_group *groups;
    uint32_t *ages; /* of the bitmaps in place */
};
/*
 * Adds to, or subtracts from, the free blocks of the group's section. An undo
 * calls this too.
 */
void ffs_section_count(struct ffs *fs, uint64_t group, int64_t more);
/*
 * Updates the hints of the checked sections. Called by a commit that includes
 * the superblock.
 */
void ffs_section_hints(struct ffs *fs);
/* Returns the hint for that many free blocks (FORMAT.md 5.2). */
uint8_t ffs_section_hint_of(uint64_t free_blocks);
/*
 * Derives a group's state from its bitmap. A group that is entirely free or
 * full needs no search later.
 */
struct ffs_group ffs_group_of(const struct lay_bitmap *bm);
/*
 * Returns true if the section of `group` has fewer than `min` free blocks by
 * its hint, which may be wrong.
 */
bool ffs_section_is_full(struct ffs *fs, uint64_t group, uint64_t min);

/* --- Sections read outside of ffs.meta (section.c) -------------------------------------------- */

/*
 * Called in a handle that found no aligned range of `align` blocks although
 * unchecked sections may have one. ffs_sections_look() will read them.
 */
void ffs_section_want(struct ffs *fs, unsigned align);
/*
 * Called in a handle when the free blocks of the checked sections run low.
 * ffs_sections_look() will read another section.
 */
void ffs_section_stock(struct ffs *fs);
/*
 * Reads sections until one has the wanted range. Called without ffs.meta. With
 * `wait` it also reads sections that are full by their hints; without it, it
 * reads none while another thread reads.
 */
int ffs_sections_look(struct ffs *fs, bool wait);
/*
 * Checks the sections of blocks that a handle is about to free. Called without
 * ffs.meta.
 */
int ffs_sections_of(struct ffs *fs, uint64_t block, uint64_t len);

/* --- One group (section.c): pure functions on its map ----------------------------------------- */

/*
 * Returns the first range of at least `want` zeros in [from, to), cut to
 * `want`, or else the longest one. Start and length are multiples of `align`. A
 * length of 0 means that there is none.
 */
struct ffs_found ffs_map_find(const uint64_t *map, uint32_t from, uint32_t to, uint32_t want,
                              unsigned align);
/* Returns the number of consecutive zeros from `from` on, before `to`. */
uint32_t ffs_map_zeros(const uint64_t *map, uint32_t from, uint32_t to);
void ffs_map_set(uint64_t *map, uint32_t bit, uint32_t len);
void ffs_map_clear(uint64_t *map, uint32_t bit, uint32_t len);
/* Returns true if all of the bits have this value. */
bool ffs_map_all(const uint64_t *map, uint32_t bit, uint32_t len, bool value);

#endif
