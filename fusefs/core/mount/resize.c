/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Changes the shape of a mounted file system, without handles and after a
 * checkpoint.
 *
 * The new bitmaps, checksums and chunk map, with the levels of their ages, are
 * written to free blocks or past the old end. A transaction with the new
 * superblock, which has the ages of their tops, begins a log with a new id
 * (FORMAT.md 10.6), which does not exist before the labels name it. All that is
 * durable before the labels are written. The old file system is valid until
 * then, and the new one afterwards.
 */
#include "fusefs/core/mount/resize.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/core/state.h"

#define BATCH 256u /* blocks per transfer: 1 MiB */

struct resize {
    struct ffs *fs;
    struct lay_super sb; /* first the old one, then the new one */
    struct lay_geometry old, geo;
    uint64_t tid; /* of the transaction with the new superblock */
    uint64_t free_blocks;
    uint32_t ages[BATCH];                       /* of blocks of an area */
    uint64_t section_free[LAY_BITMAP_SECTIONS]; /* values of the new superblock */
    struct ffs_group *groups;                   /* of the new shape */
    union lay_block *batch;                     /* BATCH blocks */
    union lay_block *other;                     /* BATCH blocks: old bitmaps, or blocks read back */
};

/* Writes n blocks durably to block `at` and following, and reads them back. */
static int resize_write_place(struct resize *r, uint64_t at, const void *blocks, uint64_t n)
{
    int err = bd_write(r->fs->dev, ffs_bytes(at), blocks, ffs_bytes(n), 0);

    if (!err)
        err = ffs_flush(r->fs);
    if (!err)
        err = bd_read(r->fs->dev, ffs_bytes(at), r->other, ffs_bytes(n));
    if (!err && memcmp(blocks, r->other, ffs_bytes(n)) != 0)
        err = -EUCLEAN;
    return err;
}

/* --- Levels of ages (FORMAT.md 5.5) ----------------------------------------------------------- */

/*
 * The levels of an area, built from below, from the ages of its level 0 in
 * ascending order: when all ages of a block are known, the block is written, and
 * its own age goes one level up.
 */
struct levels {
    struct resize *r;
    enum lay_kind kind;
    uint64_t blocks;                       /* of level 0 */
    uint64_t added[LAY_MAX_LEVELS];        /* blocks of each level whose ages are known */
    struct lay_ages *open[LAY_MAX_LEVELS]; /* block of each level that is not complete, or NULL */
    uint32_t top;                          /* the age of the top when all ages have been added */
};

/*
 * Completes the open block of a level. *age is its age, or 0 if all of its ages
 * are: then it is not written.
 */
static int levels_close(struct levels *l, unsigned level, uint32_t *age)
{
    struct lay_ages *ages = l->open[level];
    uint64_t addr = LAY_ADDR_LEVEL(l->kind, level, l->added[level]), places[2];
    unsigned n = lay_places(&l->r->geo, addr, places);
    int err = 0;

    *age = 0;
    if (!ages)
        return 0;
    lay_head_init(&ages->head, LAY_MAGIC_AGES, l->r->geo.uuid, addr, 0);
    lay_seal(ages, l->r->tid);
    *age = lay_age(ages);
    for (unsigned i = 0; i < n && !err; i++)
        err = resize_write_place(l->r, places[i], ages, 1);
    free(ages);
    l->open[level] = NULL;
    return err;
}

/* Enters the age of block `at` of a level in the block above, which had no ages before. */
static int levels_enter(struct levels *l, unsigned level, uint64_t at, uint32_t age)
{
    struct lay_ages **above = &l->open[level + 1];

    if (age == 0)
        return 0;
    if (!*above)
        *above = calloc(1, sizeof(**above));
    if (!*above)
        return -ENOMEM;
    (*above)->ages[at % LAY_AGES] = lay_put32(age);
    return 0;
}

/*
 * Adds the age of the next block of level 0. Each block of a higher level that
 * is complete then is written, unless all its ages are 0. Returns -ENOMEM,
 * -EUCLEAN if a block does not read back as written, or the device's error.
 */
static int levels_add(struct levels *l, uint32_t age)
{
    int err = 0;

    for (unsigned level = 0; !err; level++) {
        uint64_t blocks = lay_level_blocks(l->blocks, level), at = l->added[level]++;
        if (blocks == 1) {
            l->top = age;
            break;
        }
        err = levels_enter(l, level, at, age);
        if (at % LAY_AGES != LAY_AGES - 1 && at + 1 != blocks)
            break;
        if (!err)
            err = levels_close(l, level + 1, &age);
    }
    return err;
}

static void levels_end(struct levels *l)
{
    for (unsigned level = 0; level < LAY_MAX_LEVELS; level++)
        free(l->open[level]);
}

/* --- Bitmaps --------------------------------------------------------------------------------- */

/* Returns the blocks of [from, from + len) that lie in the group, as bits. */
static struct ffs_found resize_part_of(uint64_t group, uint64_t from, uint64_t len)
{
    uint64_t first = group * LAY_GROUP_BLOCKS, end = first + LAY_GROUP_BLOCKS;
    uint64_t to = from + len < end ? from + len : end;

    if (from < first)
        from = first;
    if (to <= from)
        return (struct ffs_found){0, 0};
    return (struct ffs_found){(uint32_t)(from - first), (uint32_t)(to - from)};
}

static void resize_release(uint64_t *map, uint64_t group, uint64_t from, uint64_t len)
{
    struct ffs_found part = resize_part_of(group, from, len);

    if (part.len > 0)
        ffs_map_clear(map, part.bit, part.len);
}

static void resize_occupy(uint64_t *map, uint64_t group, uint64_t from, uint64_t len)
{
    struct ffs_found part = resize_part_of(group, from, len);

    if (part.len > 0)
        ffs_map_set(map, part.bit, part.len);
}

static bool resize_is_free(const uint64_t *map, uint64_t group, uint64_t from, uint64_t len)
{
    struct ffs_found part = resize_part_of(group, from, len);

    return part.len == 0 || ffs_map_all(map, part.bit, part.len, false);
}

/*
 * Returns true for the blocks of labels and multi-mount protection, which never
 * move.
 */
static bool resize_is_kept(const struct lay_range *area)
{
    return area->start <= LAY_MMP_BLOCK || area->start == LAY_LABEL_SECOND;
}

/*
 * Clears the areas of the old shape and the bits past its end in the map of a
 * group.
 */
static void resize_release_old(const struct resize *r, uint64_t *map, uint64_t group)
{
    const struct lay_geometry *old = &r->old;
    uint64_t end = (group + 1) * LAY_GROUP_BLOCKS;
    struct lay_range areas[LAY_AREAS];
    unsigned n = lay_areas(old, areas);

    resize_release(map, group, old->blocks, end > old->blocks ? end - old->blocks : 0);
    for (unsigned i = 0; i < n; i++) {
        if (!resize_is_kept(&areas[i]))
            resize_release(map, group, areas[i].start, areas[i].len);
    }
}

static bool resize_areas_are_free(const struct resize *r, const uint64_t *map, uint64_t group)
{
    const struct lay_geometry *geo = &r->geo;
    uint64_t past = r->old.blocks > geo->blocks ? r->old.blocks - geo->blocks : 0;
    struct lay_range areas[LAY_AREAS];
    unsigned n = lay_areas(geo, areas);
    bool are_free = resize_is_free(map, group, geo->blocks, past);

    for (unsigned i = 0; i < n && are_free; i++)
        are_free =
            resize_is_kept(&areas[i]) || resize_is_free(map, group, areas[i].start, areas[i].len);
    return are_free;
}

/* Sets the areas of the new shape and the bits past its end. */
static void resize_occupy_new(const struct resize *r, uint64_t *map, uint64_t group)
{
    struct lay_range areas[LAY_AREAS];
    unsigned n = lay_areas(&r->geo, areas);

    resize_occupy(map, group, r->geo.blocks, LAY_GROUP_BLOCKS);
    for (unsigned i = 0; i < n; i++)
        resize_occupy(map, group, areas[i].start, areas[i].len);
}

/*
 * Gets the ages of n blocks of level 0 of an old area. All of them are in
 * place. Sets *any to true if a block among them was ever written.
 */
static int resize_get_ages(struct resize *r, enum lay_kind kind, uint64_t first, uint64_t n,
                           bool *any)
{
    int err = 0;

    *any = false;
    for (uint64_t i = 0; i < n && !err; i++) {
        err = ffs_age_of(r->fs, LAY_ADDR(kind, first + i), &r->ages[i]);
        *any |= r->ages[i] != 0;
    }
    return err;
}

/*
 * Reads and checks n blocks of level 0 of an old area, from block `at` of the
 * device on. Their ages are known. A block that was never written becomes
 * zeros. A block that is wrong is read again, and then from its copy.
 */
static int resize_read_blocks(struct resize *r, enum lay_kind kind, uint64_t at, uint64_t first,
                              uint64_t n, union lay_block *blocks)
{
    int err = bd_read(r->fs->dev, ffs_bytes(at), blocks, ffs_bytes(n));
    const char *why;

    if (err && lay_has_copies(&r->old)) {
        memset(blocks, 0, ffs_bytes(n));
        err = 0;
    }
    for (uint64_t i = 0; i < n && !err; i++) {
        uint64_t addr = LAY_ADDR(kind, first + i);
        const struct lay_expect want = {.magic = lay_magic_of(addr)};
        if (r->ages[i] == 0)
            memset(&blocks[i], 0, sizeof(blocks[i]));
        else
            err = ffs_checked_there(r->fs, addr, &r->ages[i], &blocks[i], &want, &why);
    }
    return err;
}

/*
 * Reads n bitmaps from the device, starting with group `first`. Groups that
 * only the new shape has are zeros.
 */
static int resize_read_old(struct resize *r, uint64_t first, uint64_t n)
{
    uint64_t groups = lay_groups(&r->old);
    uint64_t there = first >= groups ? 0 : min_u64(groups - first, n);
    bool any;
    int err = resize_get_ages(r, LAY_KIND_BITMAP, first, there, &any);

    memset(r->other, 0, n * sizeof(*r->other));
    if (err || !any)
        return err;
    return resize_read_blocks(r, LAY_KIND_BITMAP, r->old.bitmap_start + first, first, there,
                              r->other);
}

static int resize_make_bitmap(struct resize *r, uint64_t group, const struct lay_bitmap *was,
                              struct lay_bitmap *bm)
{
    uint64_t *map = (uint64_t *)(void *)bm->bits;

    memcpy(bm, was, sizeof(*bm));
    resize_release_old(r, map, group);
    if (!resize_areas_are_free(r, map, group))
        return -EUCLEAN;
    if (group >= lay_groups(&r->geo))
        return 0;
    resize_occupy_new(r, map, group);
    uint32_t free_bits = 0;
    for (uint32_t i = 0; i < FFS_GROUP_WORDS; i++)
        free_bits += 64u - (uint32_t)__builtin_popcountll(map[i]);
    lay_head_init(&bm->head, LAY_MAGIC_BITMAP, r->geo.uuid, LAY_ADDR(LAY_KIND_BITMAP, group), 0);
    bm->group = lay_put32((uint32_t)group);
    bm->free = lay_put32(free_bits);
    bm->reserved = lay_put64(0);
    lay_seal(bm, r->tid);
    r->free_blocks += free_bits;
    r->section_free[group / lay_section_groups(&r->geo)] += free_bits;
    r->groups[group] = ffs_group_of(bm);
    return 0;
}

/*
 * Writes and compares n blocks of an area, from its block `first` on, and of
 * its copy unless `copy` is 0.
 */
static int resize_write_batch(struct resize *r, uint64_t start, uint64_t copy, uint64_t first,
                              uint64_t n)
{
    int err = resize_write_place(r, start + first, r->batch, n);

    return err || copy == 0 ? err : resize_write_place(r, copy + first, r->batch, n);
}

/* Prepares and writes n bitmaps. The first `kept` bitmaps belong to the new shape. */
static int resize_write_groups(struct resize *r, uint64_t first, uint64_t n, uint64_t kept,
                               struct levels *levels)
{
    int err = resize_read_old(r, first, n);

    for (uint64_t i = 0; i < n && !err; i++)
        err = resize_make_bitmap(r, first + i, &r->other[i].bitmap, &r->batch[i].bitmap);
    if (!err && kept > 0)
        err = resize_write_batch(r, r->geo.bitmap_start, r->geo.bitmap_copy, first, kept);
    for (uint64_t i = 0; i < kept && !err; i++)
        err = levels_add(levels, lay_age(&r->batch[i]));
    return err;
}

static int resize_write_bitmaps(struct resize *r)
{
    uint64_t have = lay_groups(&r->old), groups = lay_groups(&r->geo), all = max_u64(have, groups);
    struct levels levels = {.r = r, .kind = LAY_KIND_BITMAP, .blocks = groups};
    int err = 0;

    for (uint64_t g = 0, n; g < all && !err; g += n) {
        n = min_u64(all - g, BATCH);
        err = resize_write_groups(r, g, n, g < groups ? min_u64(n, groups - g) : 0, &levels);
    }
    r->sb.area.bitmap_age = lay_put32(levels.top);
    levels_end(&levels);
    return err;
}

/* --- Checksums of data, and the chunk map ----------------------------------------------------- */

/*
 * Describes an area whose blocks of level 0 keep their contents and their
 * logical addresses.
 */
struct resize_area {
    enum lay_kind kind;
    uint64_t from, to; /* first blocks of the old place and of the new one */
    uint64_t copy;     /* first block of the new copy, or 0 */
    uint64_t kept;     /* blocks of level 0 that are copied */
    uint64_t blocks;   /* of level 0; those behind the copied ones are new */
};

/* Copies n blocks from block `at` of the area on. Blocks that were never written stay so. */
static int resize_copy_blocks(struct resize *r, const struct resize_area *a, uint64_t at,
                              uint64_t n)
{
    bool any;
    int err = resize_get_ages(r, a->kind, at, n, &any);

    if (err || !any)
        return err;
    err = resize_read_blocks(r, a->kind, a->from + at, at, n, r->batch);
    return err ? err : resize_write_batch(r, a->to, a->copy, at, n);
}

/*
 * Copies an area to its new place, if that differs from the old one, and sets
 * *age to the age of its top.
 */
static int resize_copy_area(struct resize *r, const struct resize_area *a, le32 *age)
{
    struct levels levels = {.r = r, .kind = a->kind, .blocks = a->blocks};
    int err = 0;

    if (a->to == a->from)
        return 0;
    for (uint64_t at = 0, n; at < a->kept && !err; at += n) {
        n = min_u64(a->kept - at, BATCH);
        err = resize_copy_blocks(r, a, at, n);
        for (uint64_t i = 0; i < n && !err; i++)
            err = levels_add(&levels, r->ages[i]);
    }
    for (uint64_t at = a->kept; at < a->blocks && !err; at++)
        err = levels_add(&levels, 0);
    *age = lay_put32(levels.top);
    levels_end(&levels);
    return err;
}

static int resize_copy_areas(struct resize *r)
{
    const struct lay_geometry *old = &r->old, *geo = &r->geo;
    const struct resize_area sums = {.kind = LAY_KIND_SUMS,
                                     .from = old->sums_start,
                                     .to = geo->sums_start,
                                     .copy = geo->sums_copy,
                                     .kept = min_u64(old->sums_blocks, geo->sums_blocks),
                                     .blocks = geo->sums_blocks};
    const struct resize_area map = {.kind = LAY_KIND_MAP,
                                    .from = old->map_start,
                                    .to = geo->map_start,
                                    .copy = geo->map_copy,
                                    .kept = min_u64(old->map_blocks, geo->map_blocks),
                                    .blocks = geo->map_blocks};
    int err = resize_copy_area(r, &sums, &r->sb.area.sums_age);

    return err ? err : resize_copy_area(r, &map, &r->sb.map_age);
}

/* --- Superblock and labels -------------------------------------------------------------------- */

static void resize_set_sections(struct resize *r)
{
    uint64_t each = lay_section_groups(&r->geo), groups = lay_groups(&r->geo);
    struct lay_super *sb = &r->sb;

    memset(sb->section_free, 0, sizeof(sb->section_free));
    for (uint64_t first = 0; first < groups; first += each)
        sb->section_free[first / each] = ffs_section_hint_of(r->section_free[first / each]);
}

static void resize_set_super(struct resize *r)
{
    lay_super_set_geometry(&r->sb, &r->geo);
    r->sb.area.free_blocks = lay_put64(r->free_blocks);
    resize_set_sections(r);
    lay_seal(&r->sb, r->tid);
}

/*
 * Begins the new log with the image of the new superblock, which it takes over:
 * at its new place, or behind the newest commit if a log stays. That commit must
 * stay until the labels name the new id. The incarnation is the present one: a later one would
 * prove labels that are not written yet.
 */
static int resize_begin_log(struct resize *r, struct ffs_image *image)
{
    struct ffs *fs = r->fs;
    const struct ffs_log_tx tx = {.images = &image, .n = 1, .begins = true, .verify = true};

    bool moved = r->geo.log_start != r->old.log_start;

    /* The records of a log that stays must not be overwritten. */
    if (moved && (r->geo.log_copy == 0 || r->geo.log_copy != r->old.log_copy))
        fs->journal.head = 0;
    fs->geo.log_start = r->geo.log_start;
    fs->geo.log_copy = r->geo.log_copy;
    fs->geo.log_id = r->geo.log_id;
    int err = ffs_log_write(fs, &tx);
    if (err)
        free(image);
    else
        ffs_home_put(&fs->home, image);
    return err;
}

/* --- In memory -------------------------------------------------------------------------------- */

/*
 * Removes blocks from the cache that were written without it, or that the new
 * shape does not have.
 */
static void resize_forget(struct ffs *fs, enum lay_kind kind, unsigned level, uint64_t first,
                          uint64_t end)
{
    for (uint64_t i = first; i < end; i++) {
        struct ffs_cbuf *cb = ffs_cache_find(fs, LAY_ADDR_LEVEL(kind, level, i));
        if (cb) {
            ffs_cache_forget(cb);
            ffs_buf_put(&cb->pub);
        }
    }
}

/* Removes the levels of ages, and the blocks below from block `kept` on. */
static void resize_forget_area(struct ffs *fs, enum lay_kind kind, uint64_t blocks, uint64_t kept)
{
    resize_forget(fs, kind, 0, kept, blocks);
    for (unsigned level = 1; lay_level_blocks(blocks, level) > 0; level++)
        resize_forget(fs, kind, level, 0, lay_level_blocks(blocks, level));
}

/* Keeps the map of a group with busy blocks, which count as used in it. */
static void resize_keep_map(const struct resize *r, uint64_t group, const struct ffs_group *was)
{
    struct ffs_group *g = &r->groups[group];

    if (!was->map)
        return;
    resize_release_old(r, was->map, group);
    resize_occupy_new(r, was->map, group);
    g->map = was->map;
    g->busy = was->busy;
    g->free = (uint16_t)(g->free - was->busy);
    g->longest = g->free;
}

static void resize_install_groups(struct resize *r)
{
    struct ffs_alloc *a = &r->fs->alloc;
    uint64_t n = min_u64(lay_groups(&r->old), lay_groups(&r->geo));
    uint64_t each = lay_section_groups(&r->geo);

    pthread_mutex_lock(&a->lock);
    for (uint64_t g = 0; g < n; g++)
        resize_keep_map(r, g, &a->groups[g]);
    free(a->groups);
    a->groups = r->groups;
    r->groups = NULL;
    a->released++;
    pthread_mutex_unlock(&a->lock);
    for (uint64_t i = 0; i < LAY_BITMAP_SECTIONS; i++)
        a->section_checked[i] = i * each < lay_groups(&r->geo);
    memcpy(a->section_free, r->section_free, sizeof(a->section_free));
    a->checked_free = r->free_blocks;
    a->cursor %= r->geo.blocks;
}

static void resize_install(struct resize *r)
{
    struct ffs *fs = r->fs;
    struct lay_geometry *geo = &fs->geo;

    resize_forget_area(fs, LAY_KIND_BITMAP, r->old.bitmap_blocks, 0);
    resize_forget_area(fs, LAY_KIND_SUMS, r->old.sums_blocks, r->geo.sums_blocks);
    resize_forget_area(fs, LAY_KIND_MAP, r->old.map_blocks, r->geo.map_blocks);
    resize_install_groups(r);
    geo->blocks = r->geo.blocks;
    geo->map_start = r->geo.map_start;
    geo->map_copy = r->geo.map_copy;
    geo->map_blocks = r->geo.map_blocks;
    geo->map_len = r->geo.map_len;
    geo->reserve = r->geo.reserve;
    geo->bitmap_start = r->geo.bitmap_start;
    geo->bitmap_copy = r->geo.bitmap_copy;
    geo->bitmap_blocks = r->geo.bitmap_blocks;
    geo->bitmap_len = r->geo.bitmap_len;
    geo->sums_start = r->geo.sums_start;
    geo->sums_copy = r->geo.sums_copy;
    geo->sums_len = r->geo.sums_len;
    __atomic_store_n(&geo->sums_blocks, r->geo.sums_blocks, __ATOMIC_RELAXED);
    memcpy(geo->supers, r->geo.supers, sizeof(geo->supers));
    memcpy(ffs_super(fs), &r->sb, sizeof(r->sb));
}

/* --- The whole ------------------------------------------------------------------------------- */

static void resize_close(struct resize *r)
{
    free(r->groups);
    free(r->other);
    free(r->batch);
    free(r);
}

static struct resize *resize_open(struct ffs *fs, const struct lay_geometry *geo)
{
    struct resize *r = calloc(1, sizeof(*r));

    if (!r)
        return NULL;
    r->fs = fs;
    r->sb = *ffs_super(fs);
    r->old = fs->geo;
    r->geo = *geo;
    r->tid = fs->journal.tid;
    r->geo.log_id = ffs_random();
    r->groups = calloc(lay_groups(geo), sizeof(*r->groups));
    r->batch = calloc(BATCH, sizeof(*r->batch));
    r->other = calloc(BATCH, sizeof(*r->other));
    if (r->groups && r->batch && r->other)
        return r;
    resize_close(r);
    return NULL;
}

/* The labels make the new shape valid. */
static int resize_change_over(struct resize *r)
{
    struct ffs *fs = r->fs;
    struct lay_label label = fs->label;

    resize_set_super(r);
    struct ffs_image *image = ffs_image_new(LAY_ADDR_SUPER, &r->sb);
    int err = image ? ffs_chunks_resize(fs, &r->geo) : -ENOMEM;
    if (err) {
        free(image);
        return err;
    }
    err = resize_begin_log(r, image);
    if (!err) {
        lay_label_set_geometry(&label, &r->geo);
        err = ffs_label_write(fs, &label);
    }
    if (err)
        return ffs_fail(fs, "resize", err);
    fs->label = label;
    resize_install(r);
    err = ffs_commit_empty(fs);
    if (!err)
        err = ffs_checkpoint_frozen(fs);
    /* Without memory the log keeps the superblock until the next checkpoint. */
    return err == -ENOMEM ? 0 : err;
}

int ffs_reshape(struct ffs *fs, const struct lay_geometry *geo)
{
    struct resize *r = resize_open(fs, geo);

    if (!r)
        return -ENOMEM;
    int err = resize_write_bitmaps(r);
    if (!err)
        err = resize_copy_areas(r);
    if (!err)
        err = resize_change_over(r);
    resize_close(r);
    return err;
}

/*
 * Places the areas of a larger size from block `at` on: the chunk map if it
 * becomes longer, bitmaps and checksums. Returns the end.
 */
static uint64_t resize_place(const struct lay_geometry *geo, bool longer_map, uint64_t at,
                             uint64_t *map, uint64_t *bitmaps, uint64_t *sums)
{
    if (longer_map) {
        *map = at;
        at += geo->map_len;
    }
    *bitmaps = at;
    at += geo->bitmap_len;
    if (geo->sums_len)
        *sums = at;
    return at + geo->sums_len;
}

/*
 * Returns the shape for a larger size. Its areas come first among the new
 * blocks, and their copies follow. *end becomes the block behind the copies.
 */
static struct lay_geometry resize_shape(const struct lay_geometry *old, uint64_t blocks,
                                        uint64_t *end)
{
    uint64_t map_blocks = lay_map_blocks(lay_map_slots(blocks, old->chunk_shift));
    bool longer_map = map_blocks > old->map_blocks;
    struct lay_geometry geo = *old;

    geo.blocks = blocks;
    geo.reserve = lay_reserve(blocks);
    geo.map_blocks = max_u64(geo.map_blocks, map_blocks);
    lay_size_areas(&geo);
    *end = resize_place(&geo, longer_map, old->blocks, &geo.map_start, &geo.bitmap_start,
                        &geo.sums_start);
    if (lay_has_copies(old))
        *end =
            resize_place(&geo, longer_map, *end, &geo.map_copy, &geo.bitmap_copy, &geo.sums_copy);
    return geo;
}

/* Returns the first block after the areas that a growth to `blocks` writes. */
static uint64_t resize_needed(const struct lay_geometry *old, uint64_t blocks)
{
    uint64_t end;

    resize_shape(old, blocks, &end);
    return end;
}

static uint64_t resize_least(const struct lay_geometry *old)
{
    uint64_t blocks = old->blocks + 1;

    /* The needed blocks may themselves require one more. */
    while (resize_needed(old, blocks) > blocks)
        blocks = resize_needed(old, blocks);
    return blocks;
}

uint64_t ffs_grow_least(struct ffs *fs)
{
    ffs_meta_read(fs);
    uint64_t blocks = resize_least(&fs->geo);
    ffs_meta_done(fs);
    return blocks;
}

/* Checks the new size without regard to the device. Called under shape_lock. */
static int resize_check_growth(const struct ffs *fs, uint64_t blocks)
{
    uint64_t old = fs->geo.blocks;

    if (blocks < old)
        return -EINVAL;
    if (blocks > LAY_MAX_BLOCKS)
        return -EFBIG;
    if (fs->geo.compat & ~LAY_FEATURE_COMPAT)
        return -ENOTSUP;
    return blocks > old && blocks < resize_least(&fs->geo) ? -ERANGE : 0;
}

static int resize_grow(struct ffs *fs, uint64_t blocks, bool check_only)
{
    int err = ffs_freeze(fs);

    if (err)
        return err;
    err = resize_check_growth(fs, blocks);
    if (!err && !check_only && blocks > bd_bytes(fs->dev) >> LAY_BLOCK_SHIFT)
        err = -ENOSPC;
    if (!err && !check_only && blocks != fs->geo.blocks) {
        uint64_t end;
        const struct lay_geometry geo = resize_shape(&fs->geo, blocks, &end);
        err = ffs_reshape(fs, &geo);
    }
    ffs_thaw(fs);
    return err;
}

int ffs_grow_check(struct ffs *fs, uint64_t blocks)
{
    return resize_grow(fs, blocks, true);
}

int ffs_grow(struct ffs *fs, uint64_t blocks)
{
    return resize_grow(fs, blocks, false);
}
