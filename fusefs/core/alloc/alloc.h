/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Space in memory. Private to the storage half.
 *
 * The bitmaps on disk name the blocks in use. Busy blocks are free there, but not yet reusable: the
 * freeing transaction is not durable, or a pin covers them. A group with busy blocks has a `map`,
 * which names the blocks in use and the busy ones; for other groups the bitmap says the same.
 */
#ifndef FUSEFS_CORE_ALLOC_ALLOC_H
#define FUSEFS_CORE_ALLOC_ALLOC_H

#include "blockdev/bdev.h"
#include "fusefs/core/base/ranges.h"
#include "fusefs/core/storage.h"

#define FFS_GROUP_WORDS (LAY_GROUP_BLOCKS / 64)

#define FFS_GROUP_UNITS (LAY_GROUP_BLOCKS / LAY_GPU_ALIGN)

/* One for each group of the device, so it is small: 8.5 MB for 64 TiB. */
struct ffs_group {
    uint64_t *map;    /* FFS_GROUP_WORDS, or NULL: no block is busy */
    uint16_t busy;    /* blocks */
    uint16_t free;    /* blocks that can be allocated; before the section is checked at most */
    uint16_t longest; /* no range of them is longer */
    uint8_t units;    /* no more aligned ranges of LAY_GPU_ALIGN are among them */
};
static_assert(LAY_GROUP_BLOCKS <= UINT16_MAX, "blocks of a group are counted in 16 bits");

/* Bits of a group's map. */
struct ffs_found {
    uint32_t bit, len;
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
    uint64_t reserve; /* blocks that only truncate and unlink may have; protected by ffs.meta */
    /* Sections whose bitmaps are as new as the superblock says; protected by ffs.meta. */
    bool section_checked[LAY_BITMAP_SECTIONS];
    uint64_t section_free[LAY_BITMAP_SECTIONS]; /* zero bits, where checked; by ffs.meta, too */
    uint64_t checked_free;                      /* the sum of these */
    bool hints_behind; /* a section was checked whose hint in the superblock is another */
    /*
     * Alignment of the free range that is sought in unchecked sections, outside of ffs.meta; 0:
     * none.
     */
    _Atomic unsigned wanted;
    pthread_mutex_t look_lock; /* held by the thread that seeks; before ffs.meta */
};

/* ffs_alloc.reserve of a file system of so many blocks. */
uint64_t ffs_alloc_reserve_of(uint64_t blocks);
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
 * Returns true if `block` is pinned. Sets *len to the number of blocks from `block` on, up to
 * `end`, for which the answer is the same. The caller holds alloc.lock.
 */
bool ffs_alloc_pinned(const struct ffs_alloc *a, uint64_t block, uint64_t end, uint64_t *len);
/*
 * Gives a group a map, before blocks of it become busy in memory alone. One block more counts as
 * busy, so that the map stays until ffs_alloc_idle() of 1. In a handle.
 */
int ffs_alloc_hold(struct ffs *fs, uint64_t group);
/* Blocks of a group with a map become busy, or cease to be. alloc.lock is held. */
void ffs_alloc_busy(struct ffs_alloc *a, uint64_t group, uint32_t blocks);
void ffs_alloc_idle(struct ffs_alloc *a, uint64_t group, uint32_t blocks);
/*
 * The free ranges of `part` that have at least `least` blocks become busy, in memory alone, until
 * ffs_alloc_give_back(); one that *taken has no memory for stays free. The group has a map.
 * alloc.lock is held.
 */
void ffs_alloc_take_free(struct ffs_alloc *a, uint64_t group, struct ffs_found part, uint32_t least,
                         struct ffs_ranges *taken);
/* Before ffs_alloc_release() of the same blocks: discards what no pin covers, if that is wanted. */
void ffs_discard_freed(struct ffs *fs, const struct ffs_ranges *freed);
/* Waits until ffs_trim() gives back the blocks that it holds at present. */
void ffs_trim_wait(struct ffs *fs);
/* Would a commit help an allocation that failed? Under ffs.meta. */
bool ffs_alloc_starved(struct ffs *fs);

/* --- Discards that are sent to the device together (pins.c) ----------------------------------- */

#define FFS_DISCARDS 64u

/* Discards of one thread. All fields but fs start as zero; ffs_discard_submit() ends the use. */
struct ffs_discards {
    struct ffs *fs;
    struct bd_io ios[FFS_DISCARDS];
    size_t n;
};

/* Adds `len` blocks from `block` on. Submits the earlier ones if there is no room. */
void ffs_discard_add(struct ffs_discards *b, uint64_t block, uint64_t len);
/* Submits the discards. A failure is only logged, because it loses no data. */
void ffs_discard_submit(struct ffs_discards *b);

/* --- Age of the bitmaps (section.c). In a handle. --------------------------------------------- */

/*
 * Before a group is first used: are all bitmaps of its section as new as the superblock says?
 * -EUCLEAN when one is older, because a write to it was lost.
 */
int ffs_section_check(struct ffs *fs, uint64_t group);
/* What reading the bitmaps of a section found. */
struct ffs_section {
    uint64_t index;
    int err;      /* -EUCLEAN: `why`, of `bad` */
    uint64_t bad; /* block */
    const char *why;
    uint64_t sum, free_blocks;
    struct ffs_group *groups;
};
/*
 * Reads a section that was unchecked. Needs no lock: what a handle has changed meanwhile is
 * recognised by ffs_section_enter().
 */
void ffs_section_read(struct ffs *fs, uint64_t index, struct ffs_section *out);
/* Are the bitmaps as new as the superblock says? Under ffs.meta. */
bool ffs_section_is_new(struct ffs *fs, const struct ffs_section *s);
/* In ffs.meta, exclusively: the section is checked, unless it was meanwhile. Frees `groups`. */
int ffs_section_enter(struct ffs *fs, struct ffs_section *s);
/* A dirty bitmap changes in the running transaction: the superblock, dirty too, counts that. */
void ffs_section_changed(struct ffs *fs, struct lay_bitmap *bm, uint64_t group);
/* The free blocks of the section of `group` become more, or fewer; an undo calls this, too. */
void ffs_section_count(struct ffs *fs, uint64_t group, int64_t more);
/* After ffs_section_count(), the superblock dirty: the hints say the same. */
void ffs_section_hint(struct ffs *fs, uint64_t group);
/* The hint of so many free blocks: FORMAT.md 5.2. */
uint8_t ffs_section_hint_of(uint64_t free_blocks);
/*
 * What a bitmap tells of its group. Of one that is full of free space, or has none, it spares a
 * search.
 */
struct ffs_group ffs_group_of(const struct lay_bitmap *bm);
/* Has the section of `group` fewer than `min` free blocks, as far as hints tell? */
bool ffs_section_is_full(struct ffs *fs, uint64_t group, uint64_t min);

/* --- Sections read outside of ffs.meta (section.c) -------------------------------------------- */

/*
 * In a handle: no aligned range of `align` blocks was found, and unchecked sections may have one:
 * ffs_sections_look() will read them.
 */
void ffs_section_want(struct ffs *fs, unsigned align);
/* In a handle: the same of any blocks, when those of checked sections come to an end. */
void ffs_section_stock(struct ffs *fs);
/*
 * Reads sections until one has the range that is wanted. Not under ffs.meta. With `wait`, also
 * those that are full by their hints; without it, none when another thread reads.
 */
int ffs_sections_look(struct ffs *fs, bool wait);
/* Checks the sections of blocks that a handle is about to free. Not under ffs.meta. */
int ffs_sections_of(struct ffs *fs, uint64_t block, uint64_t len);

/* --- One group (group.c): pure functions on its map ------------------------------------------- */

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
/* Aligned ranges of LAY_GPU_ALIGN zeros. */
unsigned ffs_map_units(const uint64_t *map);
/* Are all of them set (value true), or clear? */
bool ffs_map_all(const uint64_t *map, uint32_t bit, uint32_t len, bool value);

#endif
