/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Loads sections, which are groups whose bitmaps are read together to find
 * their free blocks (FORMAT.md 5.2). Searches the map of one group.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/core/alloc/alloc.h"
#include "fusefs/core/state.h"

/* Number of bitmaps read at a time. */
#define CHUNK 64u

uint8_t ffs_section_hint_of(uint64_t free_blocks)
{
    return (uint8_t)(free_blocks == 0 ? 1 : 65 - __builtin_clzll(free_blocks));
}

struct bounds {
    uint64_t first, end; /* group numbers */
};

static struct bounds section_bounds_of(const struct ffs *fs, uint64_t section)
{
    uint64_t each = lay_section_groups(&fs->geo), groups = lay_groups(&fs->geo);
    uint64_t first = section * each, left = groups - first;

    return (struct bounds){first, first + (left < each ? left : each)};
}

/* Adds n bitmaps, starting with group `first`, as they are on the device. */
static int section_add_bitmaps(struct ffs *fs, uint64_t first, uint64_t n, struct lay_bitmap *buf,
                               struct ffs_section *s)
{
    uint64_t at = first - section_bounds_of(fs, s->index).first;
    int err = bd_read(fs->dev, ffs_bytes(fs->geo.bitmap_start + first), buf, ffs_bytes(n));

    /* Zeroed blocks fail their checks, so each is then read from its copy. */
    if (err && lay_has_copies(&fs->geo)) {
        memset(buf, 0, ffs_bytes(n));
        err = 0;
    }
    for (uint64_t i = 0; i < n && !err; i++) {
        struct lay_expect expect = {.magic = LAY_MAGIC_BITMAP};
        s->bad = LAY_ADDR(LAY_KIND_BITMAP, first + i);
        err = ffs_checked_there(fs, s->bad, &s->ages[at + i], &buf[i], &expect, &s->why);
        if (err)
            return err;
        s->free_blocks += lay_get32(buf[i].free);
        s->groups[at + i] = ffs_group_of(&buf[i]);
    }
    return err;
}

/* Looks up the ages of the bitmaps. The caller holds ffs.meta. */
static int section_get_ages(struct ffs *fs, struct bounds b, struct ffs_section *s)
{
    int err = 0;

    s->why = "its age is not known";
    for (uint64_t g = b.first; g < b.end && !err; g++) {
        s->bad = LAY_ADDR(LAY_KIND_BITMAP, g);
        err = ffs_age_of(fs, s->bad, &s->ages[g - b.first]);
    }
    return err;
}

/*
 * Prepares the reading of a section. The caller holds ffs.meta. No handle changes a
 * bitmap of a section before the section is checked, so its ages stay.
 */
static void section_prepare(struct ffs *fs, uint64_t index, struct ffs_section *out)
{
    struct bounds b = section_bounds_of(fs, index);

    *out = (struct ffs_section){.index = index, .why = ""};
    out->groups = calloc(b.end - b.first, sizeof(*out->groups));
    out->ages = calloc(b.end - b.first, sizeof(*out->ages));
    out->err = out->groups && out->ages ? section_get_ages(fs, b, out) : -ENOMEM;
}

/* Reads the bitmaps of a section, which are all in place. Needs no lock. */
static void section_read(struct ffs *fs, struct ffs_section *s)
{
    struct bounds b = section_bounds_of(fs, s->index);
    struct lay_bitmap *buf = aligned_alloc(LAY_BLOCK_SIZE, CHUNK * sizeof(*buf));

    if (!s->err && !buf)
        s->err = -ENOMEM;
    for (uint64_t g = b.first; g < b.end && !s->err; g += CHUNK)
        s->err = section_add_bitmaps(fs, g, b.end - g < CHUNK ? b.end - g : CHUNK, buf, s);
    free(buf);
}

void ffs_section_give_up(struct ffs *fs, uint64_t group)
{
    fs->alloc.section_damaged[group / lay_section_groups(&fs->geo)] = true;
    fs->alloc.any_damaged = true;
}

bool ffs_section_is_damaged(const struct ffs *fs, uint64_t group)
{
    return fs->alloc.section_damaged[group / lay_section_groups(&fs->geo)];
}

static int section_enter(struct ffs *fs, const struct ffs_section *s)
{
    struct ffs_alloc *a = &fs->alloc;
    struct bounds b = section_bounds_of(fs, s->index);

    if (s->err == -EUCLEAN) {
        ffs_section_give_up(fs, b.first);
        return ffs_checked_damaged(fs, s->bad, 0, s->why);
    }
    if (s->err)
        return s->err;
    pthread_mutex_lock(&a->lock);
    memcpy(a->groups + b.first, s->groups, (b.end - b.first) * sizeof(*s->groups));
    a->released++;
    pthread_mutex_unlock(&a->lock);
    a->section_checked[s->index] = true;
    a->section_free[s->index] = s->free_blocks;
    a->checked_free += s->free_blocks;
    return 0;
}

/*
 * Marks the section as checked unless that has happened meanwhile. With `early`
 * the caller may not need the section, and damage is left to the handle that
 * does. Called with ffs.meta held exclusively.
 */
static int section_conclude(struct ffs *fs, struct ffs_section *s, bool early)
{
    int err = early ? s->err : 0;

    if (!err && !fs->alloc.section_checked[s->index])
        err = section_enter(fs, s);
    free(s->groups);
    free(s->ages);
    return err;
}

int ffs_section_check(struct ffs *fs, uint64_t group)
{
    uint64_t index = group / lay_section_groups(&fs->geo);
    struct ffs_section s;

    if (fs->alloc.section_checked[index])
        return 0;
    if (ffs_section_is_damaged(fs, group))
        return -EUCLEAN;
    section_prepare(fs, index, &s);
    section_read(fs, &s);
    return section_conclude(fs, &s, false);
}

void ffs_section_count(struct ffs *fs, uint64_t group, int64_t more)
{
    fs->alloc.section_free[group / lay_section_groups(&fs->geo)] += (uint64_t)more;
    fs->alloc.checked_free += (uint64_t)more;
}

void ffs_section_hints(struct ffs *fs)
{
    for (size_t i = 0; i < LAY_BITMAP_SECTIONS; i++) {
        if (fs->alloc.section_checked[i])
            ffs_super(fs)->section_free[i] = ffs_section_hint_of(fs->alloc.section_free[i]);
    }
}

bool ffs_section_is_full(struct ffs *fs, uint64_t group, uint64_t min)
{
    size_t i = group / lay_section_groups(&fs->geo);
    uint8_t hint = ffs_super(fs)->section_free[i];

    if (ffs_section_is_damaged(fs, group))
        return true;
    if (fs->alloc.section_checked[i])
        return fs->alloc.section_free[i] < min;
    return hint == 1 || (hint > 1 && hint < 65 && (uint64_t)1 << (hint - 1) <= min);
}

/* --- Sections read outside of ffs.meta --------------------------------------------------------
 * In a handle, which excludes all other threads, the bitmaps of many groups would be read one after
 * another.
 */

/*
 * Another section is read if checked sections have fewer free blocks than this.
 */
#define STOCK 4096u

static uint64_t section_total(const struct ffs *fs)
{
    uint64_t each = lay_section_groups(&fs->geo);

    return (lay_groups(&fs->geo) + each - 1) / each;
}

/*
 * Returns the next unchecked section that has free blocks by its hint. If there
 * is none, returns LAY_NONE or, because hints may be wrong, the next unchecked
 * section.
 */
static uint64_t section_next(struct ffs *fs, bool by_hints)
{
    uint64_t n = section_total(fs), each = lay_section_groups(&fs->geo), full = LAY_NONE;

    for (uint64_t i = 0; i < n; i++) {
        if (fs->alloc.section_checked[i] || fs->alloc.section_damaged[i])
            continue;
        if (!ffs_section_is_full(fs, i * each, 1))
            return i;
        if (full == LAY_NONE && !by_hints)
            full = i;
    }
    return full;
}

void ffs_section_want(struct ffs *fs, unsigned align)
{
    if (section_next(fs, false) != LAY_NONE)
        atomic_store(&fs->alloc.wanted, align);
}

void ffs_section_stock(struct ffs *fs)
{
    if (fs->alloc.checked_free < STOCK && section_next(fs, true) != LAY_NONE)
        atomic_store(&fs->alloc.wanted, 1);
}

static bool section_serves(const struct ffs *fs, const struct ffs_section *s, unsigned align)
{
    uint64_t each = lay_section_groups(&fs->geo), left = lay_groups(&fs->geo) - s->index * each;

    if (align == 1)
        return s->free_blocks > 0;
    for (uint64_t i = 0; i < each && i < left; i++) {
        if (s->groups[i].units > 0)
            return true;
    }
    return false;
}

/*
 * Reads a section and marks it as checked. Sets *found if it has a range of
 * that alignment.
 */
static int section_check(struct ffs *fs, uint64_t index, unsigned align, bool early, bool *found)
{
    struct ffs_section s;

    ffs_meta_read(fs);
    section_prepare(fs, index, &s);
    ffs_meta_done(fs);
    section_read(fs, &s);
    *found = !s.err && section_serves(fs, &s, align);
    pthread_rwlock_wrlock(&fs->meta);
    int err = section_conclude(fs, &s, early);
    pthread_rwlock_unlock(&fs->meta);
    return err;
}

static bool section_was_given_up(struct ffs *fs, uint64_t index)
{
    pthread_rwlock_rdlock(&fs->meta);
    bool damaged = fs->alloc.section_damaged[index];
    pthread_rwlock_unlock(&fs->meta);
    return damaged;
}

/* Called with look_lock held. */
static int section_look(struct ffs *fs, bool early)
{
    unsigned align = atomic_load(&fs->alloc.wanted);
    bool found = align == 0;
    int err = 0;

    while (!found && !err) {
        pthread_rwlock_rdlock(&fs->meta);
        uint64_t index = section_next(fs, early);
        pthread_rwlock_unlock(&fs->meta);
        if (index == LAY_NONE)
            break;
        err = section_check(fs, index, align, early, &found);
        if (!early && err == -EUCLEAN && section_was_given_up(fs, index))
            err = 0; /* another one may do */
    }
    atomic_store(&fs->alloc.wanted, 0);
    return early ? 0 : err;
}

int ffs_sections_look(struct ffs *fs, bool wait)
{
    struct ffs_alloc *a = &fs->alloc;

    if (atomic_load(&a->wanted) == 0)
        return 0;
    if (wait)
        pthread_mutex_lock(&a->look_lock); /* the holder's reads end by the device's deadline */
    else if (pthread_mutex_trylock(&a->look_lock))
        return 0;
    pthread_rwlock_rdlock(&fs->shape_lock);
    int err = section_look(fs, !wait);
    pthread_rwlock_unlock(&fs->shape_lock);
    pthread_mutex_unlock(&a->look_lock);
    return err;
}

/* Called with shape_lock held. */
static int section_check_range(struct ffs *fs, uint64_t block, uint64_t len)
{
    uint64_t each = lay_section_groups(&fs->geo) * LAY_GROUP_BLOCKS;
    bool found;
    int err = 0;

    if (len == 0 || block >= fs->geo.blocks || len > fs->geo.blocks - block)
        return 0; /* the handle will detect that */
    for (uint64_t i = block / each; i <= (block + len - 1) / each && !err; i++) {
        pthread_rwlock_rdlock(&fs->meta);
        bool known = fs->alloc.section_checked[i] || fs->alloc.section_damaged[i];
        pthread_rwlock_unlock(&fs->meta);
        if (!known)
            err = section_check(fs, i, 1, false, &found);
    }
    return err;
}

int ffs_sections_of(struct ffs *fs, uint64_t block, uint64_t len)
{
    pthread_rwlock_rdlock(&fs->shape_lock);
    int err = section_check_range(fs, block, len);
    pthread_rwlock_unlock(&fs->shape_lock);
    return err;
}

/* --- Groups ---------------------------------------------------------------------------------- */

/* Returns the bits of word w that lie in [bit, end). */
static uint64_t group_mask(uint32_t w, uint32_t bit, uint32_t end)
{
    uint64_t m = ~0ull;

    if (bit > w * 64)
        m &= ~0ull << (bit - w * 64);
    if (end < (w + 1) * 64)
        m &= ~0ull >> ((w + 1) * 64 - end);
    return m;
}

void ffs_map_set(uint64_t *map, uint32_t bit, uint32_t len)
{
    assert(len > 0 && bit + len <= LAY_GROUP_BLOCKS);
    for (uint32_t w = bit / 64; w <= (bit + len - 1) / 64; w++)
        map[w] |= group_mask(w, bit, bit + len);
}

void ffs_map_clear(uint64_t *map, uint32_t bit, uint32_t len)
{
    assert(len > 0 && bit + len <= LAY_GROUP_BLOCKS);
    for (uint32_t w = bit / 64; w <= (bit + len - 1) / 64; w++)
        map[w] &= ~group_mask(w, bit, bit + len);
}

bool ffs_map_all(const uint64_t *map, uint32_t bit, uint32_t len, bool value)
{
    for (uint32_t w = bit / 64; w <= (bit + len - 1) / 64; w++) {
        uint64_t m = group_mask(w, bit, bit + len);
        if ((map[w] & m) != (value ? m : 0))
            return false;
    }
    return true;
}

/* Returns the number of aligned ranges of LAY_GPU_ALIGN zeros. */
static unsigned group_units(const uint64_t *map)
{
    const uint32_t words = LAY_GPU_ALIGN / 64;
    unsigned units = 0;

    for (uint32_t w = 0; w < FFS_GROUP_WORDS; w += words) {
        uint64_t used = 0;
        for (uint32_t i = 0; i < words; i++)
            used |= map[w + i];
        units += used == 0;
    }
    return units;
}

struct ffs_group ffs_group_of(const struct lay_bitmap *bm)
{
    uint16_t free_bits = (uint16_t)lay_get32(bm->free);
    const uint64_t *bits = (const uint64_t *)(const void *)bm->bits;

    return (struct ffs_group){
        .free = free_bits, .longest = free_bits, .units = (uint8_t)group_units(bits)};
}

/*
 * Returns the first bit of the given value in [from, to), or `to` if there is
 * none.
 */
static uint32_t group_next(const uint64_t *map, uint32_t from, uint32_t to, bool value)
{
    if (from >= to)
        return to;
    uint64_t flip = value ? 0 : ~0ull;
    uint32_t w = from / 64;
    uint64_t word = (map[w] ^ flip) & group_mask(w, from, to);
    while (!word && ++w <= (to - 1) / 64)
        word = (map[w] ^ flip) & group_mask(w, from, to);
    return word ? w * 64 + (uint32_t)__builtin_ctzll(word) : to;
}

uint32_t ffs_map_zeros(const uint64_t *map, uint32_t from, uint32_t to)
{
    return group_next(map, from, to, true) - from;
}

static uint32_t group_round_up(uint32_t v, uint32_t align)
{
    return (v + align - 1) / align * align;
}

struct ffs_found ffs_map_find(const uint64_t *map, uint32_t from, uint32_t to, uint32_t want,
                              unsigned align)
{
    struct ffs_found best = {0, 0};
    uint32_t pos = from;

    while (pos < to && best.len < want) {
        uint32_t start = group_next(map, pos, to, false);
        uint32_t end = group_next(map, start, to, true);
        uint32_t aligned = group_round_up(start, align);
        uint32_t len = aligned < end ? (end - aligned) / align * align : 0;
        if (len > best.len)
            best = (struct ffs_found){aligned, len < want ? len : want};
        pos = end + 1;
    }
    return best;
}
