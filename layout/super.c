/* SPDX-License-Identifier: BSD-2-Clause */
/* Checks the superblock (FORMAT.md 4.4). */
#include <string.h>

#include "layout/check.h"
#include "layout/layout.h"

/* Checks the counters and list heads, which change while mounted. */
static int super_counters(const struct lay_super *sb, const char **why)
{
    uint64_t file_blocks = lay_get64(sb->inode_file.size) >> LAY_BLOCK_SHIFT;
    uint64_t first_free = lay_get64(sb->free_inode_block);
    uint64_t orphan = lay_get64(sb->orphan);

    if (lay_get64(sb->head.tid) > LAY_MAX_TID)
        return lay_bad(why, "tid");
    if (lay_get32(sb->state) & ~LAY_STATE_ERROR)
        return lay_bad(why, "state");
    if (lay_get64(sb->area.free_blocks) >= lay_get64(sb->area.blocks))
        return lay_bad(why, "free_blocks");
    if (lay_get64(sb->inodes) < 1 || lay_get64(sb->inodes) >= file_blocks * LAY_INODES_PER_BLOCK)
        return lay_bad(why, "inodes");
    if (first_free != LAY_NONE && first_free >= file_blocks)
        return lay_bad(why, "free_inode_block");
    if (orphan != LAY_NONE &&
        (orphan <= LAY_INO_ROOT || orphan >= file_blocks * LAY_INODES_PER_BLOCK))
        return lay_bad(why, "orphan");
    if (lay_get64(sb->clean_tid) > LAY_MAX_TID)
        return lay_bad(why, "clean_tid");
    return lay_time_ok(sb->mounted) ? 0 : lay_bad(why, "mounted");
}

static int super_reserved(const struct lay_super *sb, const struct lay_geometry *geo,
                          const char **why)
{
    bool plain = !(geo->compat & ~LAY_FEATURE_COMPAT) && !(geo->ro_compat & ~LAY_FEATURE_RO_COMPAT);

    /* Features that this version may ignore can use bytes of the reserved area. */
    if (plain && !lay_is_zero(sb->reserved2, sizeof(sb->reserved2)))
        return lay_bad(why, "reserved");
    return 0;
}

/* Stores the place of a copy, or 0 if there is none. */
static bool super_copy(const struct lay_geometry *geo, le64 place, uint64_t *copy)
{
    uint64_t block = lay_get64(place);

    *copy = lay_has_copies(geo) ? block : 0;
    return lay_has_copies(geo) ? block != 0 : block == LAY_NONE;
}

/* Adds the chunk map to the geometry. */
static int super_map(const struct lay_super *sb, struct lay_geometry *geo, const char **why)
{
    uint32_t shift = lay_get32(sb->chunk_shift);
    uint64_t blocks = lay_get64(sb->map_blocks), chunks = lay_get64(sb->chunks);

    if (shift > LAY_MAX_CHUNK_SHIFT)
        return lay_bad(why, "chunk_shift");
    if (blocks == 0 || blocks > lay_map_blocks((uint64_t)LAY_MAX_CHUNKS << shift))
        return lay_bad(why, "map_blocks");
    if (!super_copy(geo, sb->map[1], &geo->map_copy) || lay_get32(sb->reserved) != 0)
        return lay_bad(why, "map");
    if (lay_get32(sb->reserve) > LAY_MAX_RESERVE)
        return lay_bad(why, "reserve");
    geo->map_start = lay_get64(sb->map[0]);
    geo->map_blocks = blocks;
    geo->chunk_shift = shift;
    geo->reserve = lay_get32(sb->reserve);
    if (chunks == 0 || chunks > lay_segments(geo) >> shift)
        return lay_bad(why, "chunks");
    return 0;
}

/* Adds size and areas to the geometry. */
static int super_area(const struct lay_super *sb, struct lay_geometry *geo, const char **why)
{
    const struct lay_area *area = &sb->area;
    uint64_t most = geo->blocks;
    bool sums = geo->incompat & LAY_INCOMPAT_DATA_CSUM;

    geo->blocks = lay_get64(area->blocks);
    if (geo->blocks < LAY_MIN_BLOCKS || geo->blocks > most)
        return lay_bad(why, "blocks");
    geo->sums_copy = 0;
    if (!super_copy(geo, area->bitmaps[1], &geo->bitmap_copy) ||
        (sums && !super_copy(geo, area->sums[1], &geo->sums_copy)) ||
        (!sums && (lay_get64(area->sums[0]) || lay_get64(area->sums[1]))))
        return lay_bad(why, "area");
    if ((!sums && lay_get32(area->sums_age) != 0) || lay_get64(area->reserved) != 0)
        return lay_bad(why, "area");
    memcpy(geo->hash_seed, sb->hash_seed, sizeof(geo->hash_seed));
    geo->bitmap_start = lay_get64(area->bitmaps[0]);
    geo->sums_start = lay_get64(area->sums[0]);
    lay_size_areas(geo);
    return lay_check_areas(geo, why);
}

void lay_super_set_geometry(struct lay_super *sb, const struct lay_geometry *geo)
{
    sb->chunk_shift = lay_put32(geo->chunk_shift);
    sb->reserve = lay_put32(geo->reserve);
    sb->map[0] = lay_put64(geo->map_start);
    sb->map[1] = lay_put64(geo->map_copy ? geo->map_copy : LAY_NONE);
    sb->map_blocks = lay_put64(geo->map_blocks);
    sb->area.blocks = lay_put64(geo->blocks);
    sb->area.bitmaps[0] = lay_put64(geo->bitmap_start);
    sb->area.bitmaps[1] = lay_put64(geo->bitmap_copy ? geo->bitmap_copy : LAY_NONE);
    sb->area.sums[0] = lay_put64(geo->sums_start);
    if (geo->sums_blocks)
        sb->area.sums[1] = lay_put64(geo->sums_copy ? geo->sums_copy : LAY_NONE);
}

int lay_check_super(const struct lay_super *sb, const struct lay_geometry *of_label,
                    struct lay_geometry *geo, const char **why)
{
    struct lay_geometry own = *of_label;
    int err = lay_check_head(sb, LAY_MAGIC_SUPER, own.uuid, LAY_ADDR_SUPER, 0, why);

    if (!err)
        err = super_map(sb, &own, why);
    if (!err)
        err = super_area(sb, &own, why);
    if (!err)
        err = lay_check_inode(&own, &sb->inode_file, 0, why);
    if (!err)
        err = super_counters(sb, why);
    if (!err)
        err = super_reserved(sb, &own, why);
    if (!err && geo)
        *geo = own;
    return err;
}
