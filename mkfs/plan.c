/* SPDX-License-Identifier: BSD-2-Clause */
/* Decides where the parts of a new file system go. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "mkfs/mkfs_core.h"

/*
 * Returns a 64th of the device, within 1024 to 32768 blocks, but at most a 16th
 * and at least LAY_MIN_JOURNAL.
 */
static uint64_t journal_size(uint64_t blocks)
{
    uint64_t journal = blocks / 64;

    if (journal < 1024)
        journal = 1024;
    if (journal > 32768)
        journal = 32768;
    if (journal > blocks / 16)
        journal = blocks / 16;
    return journal < LAY_MIN_JOURNAL ? LAY_MIN_JOURNAL : journal;
}

bool mkfs_group_is_free(const struct mkfs_plan *plan, uint64_t group)
{
    uint64_t first = group * LAY_GROUP_BLOCKS, end = first + LAY_GROUP_BLOCKS;

    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++) {
        if (plan->geo.copies[i] >= first && plan->geo.copies[i] < end)
            return false;
    }
    return first > plan->root_node && end <= plan->geo.blocks;
}

/*
 * True if some bitmap can be zero. Without one the feature stays off, so that
 * older programs can read the file system.
 */
static bool has_free_group(const struct mkfs_plan *plan)
{
    uint64_t group = 0, groups = lay_groups(&plan->geo);

    while (group < groups && !mkfs_group_is_free(plan, group))
        group++;
    return group < groups;
}

static void place(const struct mkfs_params *params, struct mkfs_plan *plan)
{
    struct lay_geometry *geo = &plan->geo;

    memcpy(geo->uuid, params->uuid, sizeof(geo->uuid));
    memcpy(geo->hash_seed, params->hash_seed, sizeof(geo->hash_seed));
    if (params->label)
        memcpy(geo->label, params->label, strlen(params->label));
    geo->bitmap_start = 1;
    geo->bitmap_blocks = (geo->blocks + LAY_GROUP_BLOCKS - 1) / LAY_GROUP_BLOCKS;
    geo->journal_start = geo->bitmap_start + geo->bitmap_blocks;
    plan->inode_block = geo->journal_start + geo->journal_blocks;
    if (params->data_csum) {
        geo->incompat |= LAY_INCOMPAT_DATA_CSUM;
        geo->sums_start = plan->inode_block;
        geo->sums_blocks = lay_sums_blocks(geo->blocks);
        plan->inode_block += geo->sums_blocks;
    }
    plan->root_node = plan->inode_block + 1;
    lay_super_places(geo->blocks, geo->copies);
    if (has_free_group(plan))
        geo->incompat |= LAY_INCOMPAT_ZERO_BITMAPS;
    assert(plan->root_node < geo->copies[0]);
    plan->free_blocks = geo->blocks - (plan->root_node + 1) - LAY_SUPER_COPIES;
}

int mkfs_lay_out(const struct mkfs_params *params, uint64_t device_bytes, struct mkfs_plan *plan)
{
    assert(!params->label || lay_label_ok(params->label, strlen(params->label)));
    uint64_t bytes = params->bytes ? params->bytes : device_bytes;
    uint64_t blocks = bytes >> LAY_BLOCK_SHIFT;
    uint64_t journal = params->journal_blocks ? params->journal_blocks : journal_size(blocks);

    if (bytes > device_bytes)
        return -ENOSPC;
    if (blocks < LAY_MIN_BLOCKS || journal < LAY_MIN_JOURNAL || journal > LAY_MAX_JOURNAL ||
        journal > blocks / 4)
        return -EINVAL;
    if (blocks > LAY_MAX_BLOCKS)
        return -EFBIG;
    memset(plan, 0, sizeof(*plan));
    plan->geo.blocks = blocks;
    plan->geo.journal_blocks = journal;
    place(params, plan);
    return 0;
}
