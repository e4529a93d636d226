/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Records which blocks of chunks belong to an object, compares the entries of
 * segments with that, and allocates blocks in chunks for repairs.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "mkfs/fsck/store.h"

/* Marks the blocks of a segment that belong to an object, its entries included. */
struct fsck_segment {
    uint64_t segment;
    uint64_t claimed[LAY_SEGMENT_BLOCKS / 64];
};

/* Returns the marks of a segment. The list has the mapped segments in the order of f->img. */
static struct fsck_segment *segments_find(const struct fsck *f, uint64_t segment)
{
    struct fsck_segment *s = f->segments.items;
    size_t i = image_segment_index(&f->img, segment);

    return i < f->segments.count && s[i].segment == segment ? &s[i] : NULL;
}

int fsck_start_segments(struct fsck *f)
{
    f->segments.count = 0;
    int err = 0;

    for (size_t i = 0; i < f->img.segment_count && !err; i++) {
        const struct fsck_segment s = {.segment = f->img.segments[i].segment, .claimed = {1}};
        err = fsck_append(&f->segments, &s, sizeof(s));
    }
    return err;
}

/* --- Claims ----------------------------------------------------------------------------------- */

static bool segments_is_kept(const struct fsck *f, uint64_t addr)
{
    const struct fsck_segment *s = segments_find(f, lay_addr_segment(addr));
    uint32_t block = lay_addr_index(addr);

    return s && s->claimed[block / 64] >> block % 64 & 1;
}

void fsck_keep(struct fsck *f, uint64_t addr)
{
    struct fsck_segment *s = segments_find(f, lay_addr_segment(addr));
    uint32_t block = lay_addr_index(addr);

    if (s)
        s->claimed[block / 64] |= UINT64_C(1) << block % 64;
}

bool fsck_claim(struct fsck *f, uint64_t ino, uint64_t addr)
{
    if (segments_is_kept(f, addr)) {
        fsck_report(f, PROBLEM_BLOCK_TWICE, NULL, "inode %" PRIu64 " " FSCK_AT, ino,
                    FSCK_AT_OF(addr));
        return false;
    }
    fsck_keep(f, addr);
    return true;
}

/* --- Entries ---------------------------------------------------------------------------------- */

/* Keeps the entries of the segment that was read last. */
struct segments_entries {
    struct fsck *f;
    uint64_t segment; /* LAY_NONE: none */
    union lay_block b;
    bool sound, stale;
    const char *why; /* what is wrong with them */
};

static int segments_read(struct segments_entries *e, uint64_t segment)
{
    int err = 0;

    if (e->segment == segment)
        return 0;
    e->segment = segment;
    err = image_read(&e->f->img, LAY_ADDR_CHUNK(segment, 0), &e->b);
    e->why = IMAGE_STALE_WHY;
    e->stale = e->f->img.age == IMAGE_AGE_STALE;
    e->sound = !err && !e->stale &&
               lay_check_entries(&e->f->img.geo, &e->b.entries, segment, &e->why) == 0;
    return err;
}

static bool segments_marked(const struct lay_entries *entries, uint32_t block)
{
    return entries->used[block / 8] >> block % 8 & 1;
}

int fsck_each_lost(struct fsck *f, int (*each)(struct fsck *f, uint64_t addr, void *arg), void *arg)
{
    struct segments_entries e = {.f = f, .segment = LAY_NONE};
    int err = 0;

    for (size_t i = 0; i < f->img.segment_count && !err; i++) {
        uint64_t segment = f->img.segments[i].segment;
        err = segments_read(&e, segment);
        for (uint32_t b = 1; b < LAY_SEGMENT_BLOCKS && !err; b++) {
            uint64_t addr = LAY_ADDR_CHUNK(segment, b);
            if (!segments_is_kept(f, addr) && (!e.sound || segments_marked(&e.b.entries, b)))
                err = each(f, addr, arg);
        }
        fsck_progress(f, "search", i + 1, f->img.segment_count);
    }
    return err;
}

/*
 * Makes entries that match the claims. What could not be read may own blocks:
 * they stay in use.
 */
static void segments_make(const struct fsck_segment *s, bool keep, struct lay_entries *entries)
{
    uint32_t used = 0;

    for (uint32_t i = 0; i < LAY_SEGMENT_BLOCKS; i++) {
        bool is = s->claimed[i / 64] >> i % 64 & 1 || (keep && segments_marked(entries, i));
        uint8_t bit = (uint8_t)(1u << i % 8);
        entries->used[i / 8] =
            (uint8_t)(is ? entries->used[i / 8] | bit : entries->used[i / 8] & ~bit);
        used += is;
    }
    entries->free = lay_put32(LAY_SEGMENT_BLOCKS - used);
}

/* Returns what is wrong with a block, or PROBLEM_COUNT. */
static enum problem segments_judge(const struct segments_entries *e, const struct fsck_segment *s,
                                   uint32_t block)
{
    bool claimed = s->claimed[block / 64] >> block % 64 & 1;

    if (claimed == segments_marked(&e->b.entries, block))
        return PROBLEM_COUNT;
    if (claimed)
        return PROBLEM_ENTRIES_FREE;
    return e->f->incomplete ? PROBLEM_COUNT : PROBLEM_ENTRIES_LEAK;
}

/* Compares sound entries with the claims; returns true if they are to be corrected. */
static bool segments_compare(const struct segments_entries *e, const struct fsck_segment *s)
{
    char where[40];
    struct fsck_range range = {.f = e->f, .where = where, .problem = PROBLEM_COUNT};

    snprintf(where, sizeof(where), "segment %" PRIu64 " ", s->segment);
    for (uint32_t i = 0; i < LAY_SEGMENT_BLOCKS; i++)
        fsck_range_add(&range, segments_judge(e, s, i), i);
    fsck_range_add(&range, PROBLEM_COUNT, LAY_SEGMENT_BLOCKS);
    return range.fix;
}

/* *fix is true if the entries are to be corrected. */
static int segments_judge_entries(struct segments_entries *e, const struct fsck_segment *s,
                                  bool *fix)
{
    struct fsck *f = e->f;
    bool behind;

    if (!e->sound) {
        *fix = fsck_report(f, PROBLEM_ENTRIES, e->why, "segment %" PRIu64, s->segment);
        return 0;
    }
    *fix = segments_compare(e, s);
    int err = fsck_refresh_ages(f, LAY_ADDR_CHUNK(s->segment, 0), &e->b, &behind);
    if (behind && fsck_report(f, PROBLEM_AGES, FSCK_AGES_BEHIND, "segment %" PRIu64, s->segment))
        *fix = true;
    return err;
}

static int segments_check(struct segments_entries *e, const struct fsck_segment *s)
{
    struct fsck *f = e->f;
    uint64_t addr = LAY_ADDR_CHUNK(s->segment, 0);
    bool sealed, fix;
    int err = segments_read(e, s->segment);

    if (err)
        return err;
    sealed =
        !e->stale && lay_check_head(&e->b, LAY_MAGIC_ENTRIES, f->img.geo.uuid, addr, 0, NULL) == 0;
    err = segments_judge_entries(e, s, &fix);
    if (err || !fix)
        return err;
    union lay_block b = {0};
    memset(b.entries.used, 0xff, sizeof(b.entries.used));
    if (sealed)
        memcpy(b.entries.used, e->b.entries.used, sizeof(b.entries.used));
    lay_head_init(&b.head, LAY_MAGIC_ENTRIES, f->img.geo.uuid, addr, 0);
    segments_make(s, f->incomplete, &b.entries);
    err = fsck_fill_ages(f, addr, &b);
    return err ? err : store_put(f, addr, &b);
}

int fsck_entries(struct fsck *f)
{
    struct segments_entries e = {.f = f, .segment = LAY_NONE};
    const struct fsck_segment *s = f->segments.items;
    int err = 0;

    /* Maps that still have to be repaired decide which blocks are in use. */
    if (f->structural || f->fix_inode_file)
        return 0;
    err = fsck_map_ages(f);
    for (size_t i = 0; i < f->segments.count && !err; i++)
        err = segments_check(&e, &s[i]);
    return err;
}

/* --- Allocation ------------------------------------------------------------------------------- */

/* Returns true if transactions that are given up have the block in use, or map the segment. */
static bool segments_is_given_up(const struct fsck *f, uint64_t segment, uint32_t block)
{
    const struct lay_entries *entries = f->given_entries.items;

    for (size_t i = 0; i < f->given_entries.count; i++) {
        if (lay_addr_segment(lay_get64(entries[i].head.block)) == segment &&
            segments_marked(&entries[i], block))
            return true;
    }
    return false;
}

static bool segments_usable(const struct segments_entries *e, uint32_t block)
{
    struct fsck *f = e->f;
    uint64_t addr = LAY_ADDR_CHUNK(e->segment, block);

    /* If the log has an image of the block, that would be read or replayed instead. */
    if (segments_is_kept(f, addr) || image_find_patch(&f->img, addr))
        return false;
    return f->meta_any || (e->sound && !segments_marked(&e->b.entries, block) &&
                           !segments_is_given_up(f, e->segment, block));
}

/* Finds the first usable block; *addr is 0 if there is none. */
static int segments_first_usable(struct fsck *f, uint64_t *addr)
{
    struct segments_entries e = {.f = f, .segment = LAY_NONE};
    int err = 0;

    *addr = 0;
    for (; f->meta_at < f->img.segment_count && !err; f->meta_at++) {
        err = segments_read(&e, f->img.segments[f->meta_at].segment);
        for (uint32_t b = 1; b < LAY_SEGMENT_BLOCKS && !err; b++) {
            if (!segments_usable(&e, b))
                continue;
            *addr = LAY_ADDR_CHUNK(e.segment, b);
            return 0;
        }
    }
    return err;
}

/* Sets a slot. The age of entries that stay where they were stays, too. */
static int segments_set_slot(struct fsck *f, uint64_t segment, const struct lay_slot *old,
                             struct lay_slot *slot)
{
    struct image_segment s = image_find_segment(&f->img, segment);
    uint32_t age;
    int err = 0;

    lay_slot_set(slot, s.block, s.copy);
    if (!lay_slot_mapped(slot))
        return 0;
    if (old && lay_get64(old->places[0]) == lay_get64(slot->places[0]))
        age = lay_get32(old->age);
    else
        err = fsck_age_of_block(f, LAY_ADDR_CHUNK(segment, 0), &age);
    slot->age = lay_put32(age);
    return err;
}

int fsck_put_map_block(struct fsck *f, uint64_t index)
{
    uint64_t addr = LAY_ADDR(LAY_KIND_MAP, index);
    union lay_block b, old;
    bool sound;
    int err = image_read_name(&f->img, addr, &old, &sound);

    memset(&b, 0, sizeof(b));
    lay_head_init(&b.head, LAY_MAGIC_MAP, f->img.geo.uuid, addr, 0);
    b.map.index = lay_put64(index);
    for (unsigned i = 0; i < LAY_MAP_SLOTS && !err; i++)
        err = segments_set_slot(f, index * LAY_MAP_SLOTS + i, sound ? &old.map.slots[i] : NULL,
                                &b.map.slots[i]);
    return err ? err : store_put(f, addr, &b);
}

/* Adds the segments of a new chunk to the claims, in order. */
static int segments_insert(struct fsck *f, uint64_t segment)
{
    struct fsck_segment *s = fsck_grow(&f->segments, sizeof(*s));

    if (!s)
        return -ENOMEM;
    struct fsck_segment *first = f->segments.items;
    for (; s > first && s[-1].segment > segment; s--)
        *s = s[-1];
    *s = (struct fsck_segment){.segment = segment, .claimed = {1}};
    return 0;
}

static int segments_put_entries(struct fsck *f, uint64_t segment)
{
    uint64_t addr = LAY_ADDR_CHUNK(segment, 0);
    union lay_block b = {0};

    lay_head_init(&b.head, LAY_MAGIC_ENTRIES, f->img.geo.uuid, addr, 0);
    b.entries.used[0] = 1;
    b.entries.free = lay_put32(LAY_SEGMENT_BLOCKS - 1);
    return store_put(f, addr, &b);
}

/* Returns the lowest chunk that is not mapped, or LAY_NONE. */
static uint64_t segments_number(const struct fsck *f)
{
    const struct lay_geometry *geo = &f->img.geo;
    uint64_t each = lay_chunk_segments(geo), segment = 0;

    while (image_segment_block(&f->img, segment) != LAY_NONE || segments_is_given_up(f, segment, 0))
        segment += each;
    return segment + each <= lay_segments(geo) ? segment >> geo->chunk_shift : LAY_NONE;
}

int fsck_new_chunk(struct fsck *f)
{
    const uint64_t each = lay_chunk_segments(&f->img.geo), number = segments_number(f);
    uint64_t place = number == LAY_NONE ? 0 : fsck_alloc_chunk(f), last = LAY_NONE;
    /* The chunk keeps one place if there is no space for a copy. */
    uint64_t copy = place && lay_has_copies(&f->img.geo) ? fsck_alloc_chunk(f) : 0;
    int err = place ? 0 : -ENOSPC;

    for (uint64_t i = 0; i < each && !err; i++) {
        uint64_t segment = number * each + i;
        err = image_set_segment(&f->img, segment, place + i * LAY_SEGMENT_BLOCKS,
                                copy ? copy + i * LAY_SEGMENT_BLOCKS : LAY_NONE);
        if (!err)
            err = segments_insert(f, segment);
        if (!err)
            err = segments_put_entries(f, segment);
    }
    image_forget_names(&f->img);
    for (uint64_t i = 0; i < each && !err; i++) {
        uint64_t index = (number * each + i) / LAY_MAP_SLOTS;
        err = index == last ? 0 : fsck_put_map_block(f, index);
        last = index;
    }
    if (!err)
        f->sb.chunks = lay_put64(f->img.segment_count >> f->img.geo.chunk_shift);
    return err;
}

/* Finds a usable block, in a new chunk if necessary. */
static int segments_usable_or_new(struct fsck *f, uint64_t *addr)
{
    int err = segments_first_usable(f, addr);

    if (err || *addr || f->meta_any)
        return err;
    err = fsck_new_chunk(f);
    f->meta_any = err == -ENOSPC;
    f->meta_at = 0;
    return err && err != -ENOSPC ? err : segments_first_usable(f, addr);
}

int fsck_alloc_meta(struct fsck *f, uint64_t *addr)
{
    int err = segments_usable_or_new(f, addr);

    if (!err && *addr)
        fsck_keep(f, *addr);
    return err;
}

int fsck_meta_left(struct fsck *f, bool *left)
{
    uint64_t addr;
    int err = segments_usable_or_new(f, &addr);

    *left = !err && addr != 0;
    return err;
}
