/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Changes the shape of a mounted file system, without handles and after a
 * checkpoint.
 *
 * The new bitmaps and checksums are written to free blocks or past the old end.
 * A transaction with the new superblock begins a log with a new id (FORMAT.md
 * 10.6), which does not exist before the labels name it. All that is durable
 * before the labels are written. The old file system is valid until then, and
 * the new one afterwards.
 */
#include "fusefs/core/mount/resize.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/core/state.h"

#define CHUNK 256u /* blocks per transfer: 1 MiB */

union chunk_block {
    struct lay_bitmap bitmap;
    struct lay_sums sums;
};

struct resize {
    struct ffs *fs;
    struct lay_super sb; /* first the old one, then the new one */
    struct lay_geometry old, geo;
    uint64_t tid; /* of the transaction with the new superblock */
    uint64_t free_blocks;
    uint64_t ages[LAY_BITMAP_SECTIONS];         /* sums of the tids of the old bitmaps as read */
    uint64_t section_free[LAY_BITMAP_SECTIONS]; /* values of the new superblock */
    struct ffs_group *groups;                   /* of the new shape */
    union chunk_block *chunk;                   /* CHUNK blocks */
    union chunk_block *other;                   /* CHUNK blocks: old bitmaps, or blocks read back */
};

static uint64_t resize_chunk_of(uint64_t left)
{
    return left < CHUNK ? left : CHUNK;
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
 * Clears the areas of the old shape and the bits past its end in the map of a
 * group.
 */
static void resize_release_old(const struct resize *r, uint64_t *map, uint64_t group)
{
    const struct lay_geometry *old = &r->old;
    uint64_t end = (group + 1) * LAY_GROUP_BLOCKS;

    resize_release(map, group, old->blocks, end > old->blocks ? end - old->blocks : 0);
    resize_release(map, group, old->bitmap_start, old->bitmap_blocks);
    resize_release(map, group, old->sums_start, old->sums_blocks);
    resize_release(map, group, old->log_start, old->log_blocks);
    resize_release(map, group, old->supers[0], 1);
    resize_release(map, group, old->supers[1], 1);
}

static bool resize_areas_are_free(const struct resize *r, const uint64_t *map, uint64_t group)
{
    const struct lay_geometry *geo = &r->geo;
    uint64_t past = r->old.blocks > geo->blocks ? r->old.blocks - geo->blocks : 0;

    return resize_is_free(map, group, geo->blocks, past) &&
           resize_is_free(map, group, geo->bitmap_start, geo->bitmap_blocks) &&
           resize_is_free(map, group, geo->sums_start, geo->sums_blocks) &&
           resize_is_free(map, group, geo->log_start, geo->log_blocks) &&
           resize_is_free(map, group, geo->supers[0], 1) &&
           resize_is_free(map, group, geo->supers[1], 1);
}

/* Sets the areas of the new shape and the bits past its end. */
static void resize_occupy_new(const struct resize *r, uint64_t *map, uint64_t group)
{
    const struct lay_geometry *geo = &r->geo;

    resize_occupy(map, group, geo->blocks, LAY_GROUP_BLOCKS);
    resize_occupy(map, group, geo->bitmap_start, geo->bitmap_blocks);
    resize_occupy(map, group, geo->sums_start, geo->sums_blocks);
    resize_occupy(map, group, geo->log_start, geo->log_blocks);
    resize_occupy(map, group, geo->supers[0], 1);
    resize_occupy(map, group, geo->supers[1], 1);
}

/*
 * Reads n bitmaps, starting with group `first`, as they are on the device.
 * Groups that only the new shape has are zeros.
 */
static int resize_read_old(struct resize *r, uint64_t first, uint64_t n)
{
    uint64_t groups = lay_groups(&r->old), each = lay_section_groups(&r->old);
    uint64_t there = first >= groups ? 0 : groups - first < n ? groups - first : n;
    int err = there == 0 ? 0
                         : bd_read(r->fs->dev, ffs_bytes(r->old.bitmap_start + first), r->other,
                                   ffs_bytes(there));

    memset(r->other + there, 0, (n - there) * sizeof(*r->other));
    for (uint64_t i = 0; i < there && !err; i++) {
        struct lay_bitmap *bm = &r->other[i].bitmap;
        lay_bitmap_complete(&r->old, bm, first + i);
        err = lay_check_bitmap(&r->old, bm, first + i, NULL);
        if (!err)
            r->ages[(first + i) / each] += lay_get64(bm->head.tid);
    }
    return err;
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
 * Writes the first n blocks of the chunk durably to block `at` and following,
 * and reads them back.
 */
static int resize_write_chunk(struct resize *r, uint64_t at, uint64_t n)
{
    int err = bd_write(r->fs->dev, ffs_bytes(at), r->chunk, ffs_bytes(n), 0);

    if (!err)
        err = ffs_flush(r->fs);
    if (!err)
        err = bd_read(r->fs->dev, ffs_bytes(at), r->other, ffs_bytes(n));
    if (!err && memcmp(r->chunk, r->other, ffs_bytes(n)) != 0)
        err = -EUCLEAN;
    return err;
}

static int resize_write_bitmaps(struct resize *r)
{
    uint64_t have = lay_groups(&r->old), groups = lay_groups(&r->geo);
    uint64_t all = have > groups ? have : groups;
    int err = 0;

    for (uint64_t g = 0, n; g < all && !err; g += n) {
        n = resize_chunk_of(all - g);
        err = resize_read_old(r, g, n);
        for (uint64_t i = 0; i < n && !err; i++)
            err = resize_make_bitmap(r, g + i, &r->other[i].bitmap, &r->chunk[i].bitmap);
        if (!err && g < groups)
            err = resize_write_chunk(r, r->geo.bitmap_start + g, g + n < groups ? n : groups - g);
    }
    for (uint64_t i = 0; i < LAY_BITMAP_SECTIONS && !err; i++)
        err = r->ages[i] == lay_get64(r->sb.bitmap_tids[i]) ? 0 : -EUCLEAN;
    return err;
}

/* --- Checksums of data ------------------------------------------------------------------------ */

/* Reads n checksum blocks, which keep their addresses, and checks them. */
static int resize_read_sums(struct resize *r, uint64_t first, uint64_t n)
{
    int err = bd_read(r->fs->dev, ffs_bytes(r->old.sums_start + first), r->chunk, ffs_bytes(n));

    for (uint64_t i = 0; i < n && !err; i++)
        err = lay_check_sums(&r->old, &r->chunk[i].sums, first + i, NULL);
    return err;
}

/* Copies the checksums to their new place. New blocks have none, so their entries are zeros. */
static int resize_write_sums(struct resize *r)
{
    uint64_t have = r->old.sums_blocks, want = r->geo.sums_blocks;
    uint64_t kept = have < want ? have : want;
    int err = 0;

    if (r->geo.sums_start == r->old.sums_start)
        return 0;
    for (uint64_t at = 0, n; at < kept && !err; at += n) {
        n = resize_chunk_of(kept - at);
        err = resize_read_sums(r, at, n);
        if (!err)
            err = resize_write_chunk(r, r->geo.sums_start + at, n);
    }
    if (err || kept == want)
        return err;
    err = bd_write_zeroes(r->fs->dev, ffs_bytes(r->geo.sums_start + kept), ffs_bytes(want - kept));
    return err ? err : ffs_flush(r->fs);
}

/* --- Superblock and labels -------------------------------------------------------------------- */

/*
 * All bitmaps have the same tid, so the sum of a section is their number times
 * that tid.
 */
static void resize_set_sections(struct resize *r)
{
    uint64_t each = lay_section_groups(&r->geo), groups = lay_groups(&r->geo);
    struct lay_super *sb = &r->sb;

    memset(sb->bitmap_tids, 0, sizeof(sb->bitmap_tids));
    memset(sb->section_free, 0, sizeof(sb->section_free));
    for (uint64_t first = 0; first < groups; first += each) {
        uint64_t n = groups - first < each ? groups - first : each;
        sb->bitmap_tids[first / each] = lay_put64(n * r->tid);
        sb->section_free[first / each] = ffs_section_hint_of(r->section_free[first / each]);
    }
}

static void resize_set_super(struct resize *r)
{
    struct lay_area *area = &r->sb.area;

    area->blocks = lay_put64(r->geo.blocks);
    area->free_blocks = lay_put64(r->free_blocks);
    area->bitmaps[0] = lay_put64(r->geo.bitmap_start);
    area->sums[0] = lay_put64(r->geo.sums_start);
    resize_set_sections(r);
    lay_seal(&r->sb, r->tid);
}

static void resize_set_label(const struct resize *r, struct lay_label *label)
{
    label->members[0].blocks = lay_put64(r->geo.blocks);
    label->logs[0] = lay_put64(r->geo.log_start);
    label->log_id = lay_put64(r->geo.log_id);
    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++)
        label->supers[i] = lay_put64(r->geo.supers[i]);
}

/*
 * Begins the new log with the new superblock: at its new place, or behind the
 * newest commit, which must stay until the labels name the new id. The
 * incarnation is the present one: a later one would prove labels that are not
 * written yet.
 */
static int resize_begin_log(struct resize *r)
{
    struct ffs *fs = r->fs;
    struct ffs_image *image = ffs_image_new(LAY_ADDR_SUPER, &r->sb);
    const struct ffs_log_tx tx = {.images = &image, .n = 1, .begins = true, .verify = true};

    if (!image)
        return -ENOMEM;
    if (r->geo.log_start != r->old.log_start)
        fs->journal.head = 0;
    fs->geo.log_start = r->geo.log_start;
    fs->geo.log_id = r->geo.log_id;
    int err = ffs_log_write(fs, &tx);
    if (err)
        ffs_image_free(image);
    else
        ffs_home_put(&fs->home, image);
    return err;
}

/* --- In memory -------------------------------------------------------------------------------- */

/*
 * Removes blocks from the cache that were written without it, or that the new
 * shape does not have.
 */
static void resize_forget(struct ffs *fs, enum lay_kind kind, uint64_t first, uint64_t end)
{
    for (uint64_t i = first; i < end; i++) {
        struct ffs_cbuf *cb = ffs_cache_find(fs, LAY_ADDR(kind, i));
        if (cb) {
            ffs_cache_forget(cb);
            ffs_buf_put(&cb->pub);
        }
    }
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
    uint64_t n = lay_groups(&r->old), each = lay_section_groups(&r->geo);

    if (n > lay_groups(&r->geo))
        n = lay_groups(&r->geo);
    pthread_mutex_lock(&a->lock);
    for (uint64_t g = 0; g < n; g++)
        resize_keep_map(r, g, &a->groups[g]);
    free(a->groups);
    a->groups = r->groups;
    r->groups = NULL;
    pthread_mutex_unlock(&a->lock);
    for (uint64_t i = 0; i < LAY_BITMAP_SECTIONS; i++)
        a->section_checked[i] = i * each < lay_groups(&r->geo);
    memcpy(a->section_free, r->section_free, sizeof(a->section_free));
    a->checked_free = r->free_blocks;
    a->hints_behind = false;
    a->reserve = ffs_alloc_reserve_of(r->geo.blocks);
    a->cursor %= r->geo.blocks;
    a->meta_cursor %= r->geo.blocks;
}

static void resize_install(struct resize *r)
{
    struct ffs *fs = r->fs;
    struct lay_geometry *geo = &fs->geo;

    resize_forget(fs, LAY_KIND_BITMAP, 0, r->old.bitmap_blocks);
    resize_forget(fs, LAY_KIND_SUMS, r->geo.sums_blocks, r->old.sums_blocks);
    resize_install_groups(r);
    geo->blocks = r->geo.blocks;
    geo->bitmap_start = r->geo.bitmap_start;
    geo->bitmap_blocks = r->geo.bitmap_blocks;
    geo->sums_start = r->geo.sums_start;
    __atomic_store_n(&geo->sums_blocks, r->geo.sums_blocks, __ATOMIC_RELAXED);
    memcpy(geo->supers, r->geo.supers, sizeof(geo->supers));
    memcpy(ffs_super(fs), &r->sb, sizeof(r->sb));
}

/* --- The whole ------------------------------------------------------------------------------- */

static void resize_close(struct resize *r)
{
    free(r->groups);
    free(r->other);
    free(r->chunk);
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
    r->chunk = calloc(CHUNK, sizeof(*r->chunk));
    r->other = calloc(CHUNK, sizeof(*r->other));
    if (r->groups && r->chunk && r->other)
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
    int err = resize_begin_log(r);
    if (!err) {
        resize_set_label(r, &label);
        err = ffs_label_write(fs, &label);
    }
    if (err)
        return ffs_fail(fs, "resize", err);
    fs->label = label;
    resize_install(r);
    err = ffs_commit_empty(fs);
    return err ? err : ffs_checkpoint(fs);
}

int ffs_reshape(struct ffs *fs, const struct lay_geometry *geo)
{
    struct resize *r = resize_open(fs, geo);

    if (!r)
        return -ENOMEM;
    int err = resize_write_bitmaps(r);
    if (!err)
        err = resize_write_sums(r);
    if (!err)
        err = resize_change_over(r);
    resize_close(r);
    return err;
}

/* Returns the blocks needed for bitmaps and checksums. */
static uint64_t resize_needed(uint64_t blocks, bool data_csum)
{
    return lay_groups_of(blocks) + (data_csum ? lay_sums_blocks(blocks) : 0);
}

uint64_t ffs_grow_least(uint64_t old, bool data_csum)
{
    uint64_t blocks = old + 1;

    /* The needed blocks may themselves require one more. */
    while (old + resize_needed(blocks, data_csum) > blocks)
        blocks = old + resize_needed(blocks, data_csum);
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
    return blocks > old && blocks < ffs_grow_least(old, ffs_has_sums(&fs->geo)) ? -ERANGE : 0;
}

int ffs_grow_check(struct ffs *fs, uint64_t blocks)
{
    int err = ffs_freeze(fs);

    if (err)
        return err;
    err = resize_check_growth(fs, blocks);
    ffs_thaw(fs);
    return err;
}

/*
 * Plans the new shape: bitmaps and checksums come first among the new blocks.
 * On success *geo is the new shape, or the current one if
 * the size is unchanged. Called under shape_lock.
 */
static int resize_plan(const struct ffs *fs, uint64_t blocks, struct lay_geometry *geo)
{
    uint64_t old = fs->geo.blocks;
    bool data_csum = ffs_has_sums(&fs->geo);
    int err = resize_check_growth(fs, blocks);

    if (err)
        return err;
    if (blocks > bd_bytes(fs->dev) >> LAY_BLOCK_SHIFT)
        return -ENOSPC;
    *geo = fs->geo;
    if (blocks == old)
        return 0;
    geo->blocks = blocks;
    geo->bitmap_start = old;
    geo->bitmap_blocks = lay_groups_of(blocks);
    if (data_csum) {
        geo->sums_start = geo->bitmap_start + geo->bitmap_blocks;
        geo->sums_blocks = lay_sums_blocks(blocks);
    }
    return 0;
}

int ffs_grow(struct ffs *fs, uint64_t blocks)
{
    struct lay_geometry geo;
    int err = ffs_freeze(fs);

    if (err)
        return err;
    err = resize_plan(fs, blocks, &geo);
    if (!err && blocks != fs->geo.blocks)
        err = ffs_reshape(fs, &geo);
    ffs_thaw(fs);
    return err;
}
