/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checks the levels of ages of the map, the bitmaps and the checksums, and
 * fills blocks that name ages.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "mkfs/fsck/find_chunks.h"
#include "mkfs/fsck/store.h"

/* Returns the address of the block whose age is at `index` of a naming block. */
static uint64_t ages_below(uint64_t addr, unsigned index)
{
    uint64_t number = lay_addr_number(addr);

    if (lay_addr_kind(addr) == LAY_KIND_CHUNK)
        return addr + index;
    if (lay_addr_level(addr) == 0)
        return LAY_ADDR_CHUNK(number * LAY_MAP_SLOTS + index, 0);
    return LAY_ADDR_LEVEL(lay_addr_kind(addr), lay_addr_level(addr) - 1, number * LAY_AGES + index);
}

static unsigned ages_count(uint64_t addr)
{
    if (lay_addr_kind(addr) == LAY_KIND_CHUNK)
        return LAY_SEGMENT_BLOCKS;
    return lay_addr_level(addr) == 0 ? LAY_MAP_SLOTS : LAY_AGES;
}

/* True if a naming block has an age for this index. */
static bool ages_has(const struct fsck *f, const union lay_block *name, uint64_t addr, unsigned i)
{
    uint64_t places[2];

    if (lay_addr_kind(addr) == LAY_KIND_CHUNK)
        return i != 0 && name->entries.used[i / 8] >> i % 8 & 1;
    return image_places(&f->img, ages_below(addr, i), places) > 0;
}

/* True if a block that does not match its checksum may be one of this file system. */
static bool ages_is_ours(const struct fsck *f, const union lay_block *b, uint64_t addr)
{
    return lay_get64(b->head.block) == addr ||
           memcmp(b->head.uuid, f->img.geo.uuid, sizeof(b->head.uuid)) == 0;
}

int fsck_age_of_block(struct fsck *f, uint64_t addr, uint32_t *age)
{
    union lay_block b;
    int err = image_read(&f->img, addr, &b);

    *age = 0;
    if (err)
        return err;
    if (f->img.unreadable)
        *age = UINT32_MAX;
    else if (f->img.age != IMAGE_AGE_NEW &&
             (f->img.age != IMAGE_AGE_DAMAGED || ages_is_ours(f, &b, addr)))
        *age = lay_age(&b);
    return 0;
}

int fsck_fill_ages(struct fsck *f, uint64_t addr, union lay_block *b)
{
    bool behind;
    int err = 0;

    for (unsigned i = 0; i < ages_count(addr) && !err; i++) {
        uint64_t below = ages_below(addr, i);
        uint32_t age = 0;
        bool known = true;
        if (ages_has(f, b, addr, i)) {
            err = image_named_age(&f->img, below, &age, &known);
            if (!err && !known)
                age = lay_named_age(b, below, i);
            if (!err && !known && age == 0)
                err = fsck_age_of_block(f, below, &age);
        }
        lay_set_named_age(b, below, i, age);
    }
    return err ? err : fsck_refresh_ages(f, addr, b, &behind);
}

int fsck_refresh_ages(struct fsck *f, uint64_t addr, union lay_block *b, bool *changed)
{
    union lay_block read;
    int err = 0;

    *changed = false;
    for (unsigned i = 0; f->img.names_lost && i < ages_count(addr) && !err; i++) {
        uint64_t below = ages_below(addr, i);
        if (!ages_has(f, b, addr, i) || image_is_newer(&f->img, below))
            continue;
        err = image_read(&f->img, below, &read);
        if (err || f->img.age != IMAGE_AGE_UNKNOWN)
            continue;
        lay_set_named_age(b, below, i, lay_age(&read));
        *changed = true;
    }
    return err;
}

/* --- Levels ----------------------------------------------------------------------------------- */

static const char *ages_kind(uint64_t addr)
{
    if (lay_addr_kind(addr) == LAY_KIND_MAP)
        return "map";
    return lay_addr_kind(addr) == LAY_KIND_BITMAP ? "bitmaps" : "checksums";
}

static int ages_build(struct fsck *f, uint64_t addr)
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

static int ages_check_block(struct fsck *f, uint64_t addr)
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
    if (!fsck_report(f, PROBLEM_AGES, why, "%s level %u block %" PRIu64, ages_kind(addr),
                     lay_addr_level(addr), lay_addr_number(addr)))
        return 0;
    return sound ? store_put(f, addr, &b) : ages_build(f, addr);
}

/* Checks the levels of an area, from the lowest one on. */
static int ages_check_area(struct fsck *f, unsigned kind, uint64_t blocks)
{
    uint64_t n;
    int err = 0;

    for (unsigned level = 1; (n = lay_level_blocks(blocks, level)) > 0 && !err; level++) {
        for (uint64_t i = 0; i < n && !err; i++)
            err = ages_check_block(f, LAY_ADDR_LEVEL(kind, level, i));
    }
    return err;
}

/* Takes the age of an area's top from that block. */
static int ages_take_top(struct fsck *f, unsigned kind, uint64_t blocks)
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
static int ages_take_tops(struct fsck *f)
{
    const struct lay_geometry *geo = &f->img.geo;
    int err = ages_take_top(f, LAY_KIND_MAP, geo->map_blocks);

    if (!err)
        err = ages_take_top(f, LAY_KIND_BITMAP, geo->bitmap_blocks);
    if (!err)
        err = ages_take_top(f, LAY_KIND_SUMS, geo->sums_blocks);
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
    int err = known || f->mode == FSCK_CHECK ? 0 : ages_take_tops(f);

    if (!err)
        err = ages_check_area(f, LAY_KIND_MAP, geo->map_blocks);
    if (!err)
        err = ages_check_area(f, LAY_KIND_BITMAP, geo->bitmap_blocks);
    if (!err)
        err = ages_check_area(f, LAY_KIND_SUMS, geo->sums_blocks);
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
