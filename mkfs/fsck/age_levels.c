/* SPDX-License-Identifier: BSD-2-Clause */
/* Checks the levels of ages of the map, the bitmaps and the checksums. */
#include <inttypes.h>

#include "mkfs/fsck/store.h"

static const char *levels_kind(uint64_t addr)
{
    if (lay_addr_kind(addr) == LAY_KIND_MAP)
        return "map";
    return lay_addr_kind(addr) == LAY_KIND_BITMAP ? "bitmaps" : "checksums";
}

static int levels_build(struct fsck *f, uint64_t addr)
{
    union lay_block b = {0};
    int err;

    lay_head_init(&b.head, LAY_MAGIC_AGES, f->img.geo.uuid, addr, 0);
    err = fsck_fill_ages(f, addr, &b);
    if (!err)
        err = store_put(f, addr, &b);
    image_forget_names(&f->img);
    return err;
}

static int levels_check_block(struct fsck *f, uint64_t addr)
{
    const char *why = IMAGE_STALE_WHY;
    union lay_block b;
    bool behind = false;
    int err = image_read(&f->img, addr, &b);

    if (err || f->img.age == IMAGE_AGE_NEW)
        return err;
    bool sound =
        f->img.age != IMAGE_AGE_STALE && lay_check_ages(&f->img.geo, &b.ages, addr, &why) == 0;
    if (sound)
        err = fsck_refresh_ages(f, addr, &b, &behind);
    if (err || (sound && !behind))
        return err;
    if (sound)
        why = FSCK_AGES_BEHIND;
    if (!fsck_report(f, PROBLEM_AGES, why, "%s level %u block %" PRIu64, levels_kind(addr),
                     lay_addr_level(addr), lay_addr_number(addr)))
        return 0;
    return sound ? store_put(f, addr, &b) : levels_build(f, addr);
}

/* Checks the levels of an area, from the lowest one on. */
static int levels_check_area(struct fsck *f, unsigned kind, uint64_t blocks)
{
    uint64_t n;
    int err = 0;

    for (unsigned level = 1; (n = lay_level_blocks(blocks, level)) > 0 && !err; level++) {
        for (uint64_t i = 0; i < n && !err; i++)
            err = levels_check_block(f, LAY_ADDR_LEVEL(kind, level, i));
    }
    return err;
}

/* Takes the age of an area's top from that block. */
static int levels_take_top(struct fsck *f, unsigned kind, uint64_t blocks)
{
    unsigned level = 0;
    uint32_t age;

    if (blocks == 0)
        return 0;
    while (lay_level_blocks(blocks, level) > 1)
        level++;
    uint64_t addr = LAY_ADDR_LEVEL(kind, level, 0);
    int err = fsck_age_of_block(f, addr, &age);
    if (!f->img.super_known || f->img.age == IMAGE_AGE_UNKNOWN)
        lay_set_named_age(&f->sb, addr, 0, age);
    return err;
}

/*
 * The superblock names no ages that count if it is not the one that the log
 * names, and not those of later blocks in place if part of the log is lost.
 */
static int levels_take_tops(struct fsck *f)
{
    const struct lay_geometry *geo = &f->img.geo;
    int err = levels_take_top(f, LAY_KIND_MAP, geo->map_blocks);

    if (!err)
        err = levels_take_top(f, LAY_KIND_BITMAP, geo->bitmap_blocks);
    if (!err)
        err = levels_take_top(f, LAY_KIND_SUMS, geo->sums_blocks);
    f->img.super.super.map_age = f->sb.map_age;
    f->img.super.super.area.bitmap_age = f->sb.area.bitmap_age;
    f->img.super.super.area.sums_age = f->sb.area.sums_age;
    f->img.super_known = !err;
    image_forget_names(&f->img);
    return err;
}

int fsck_levels(struct fsck *f)
{
    const struct lay_geometry *geo = &f->img.geo;
    bool known = f->img.super_known && !f->img.names_lost;
    int err = known || f->mode == FSCK_CHECK ? 0 : levels_take_tops(f);

    if (!err)
        err = levels_check_area(f, LAY_KIND_MAP, geo->map_blocks);
    if (!err)
        err = levels_check_area(f, LAY_KIND_BITMAP, geo->bitmap_blocks);
    if (!err)
        err = levels_check_area(f, LAY_KIND_SUMS, geo->sums_blocks);
    return err;
}

int fsck_map_ages(struct fsck *f)
{
    int err = 0;

    for (uint64_t i = 0; f->img.names_lost && i < f->img.geo.map_blocks && !err; i++) {
        uint64_t addr = LAY_ADDR(LAY_KIND_MAP, i);
        union lay_block b;
        bool sound, behind = false;
        err = image_read_name(&f->img, addr, &b, &sound);
        if (!err && sound)
            err = fsck_refresh_ages(f, addr, &b, &behind);
        if (!err && behind &&
            fsck_report(f, PROBLEM_AGES, FSCK_AGES_BEHIND, "block %" PRIu64 " of the map", i))
            err = store_put(f, addr, &b);
    }
    return err;
}
