/* SPDX-License-Identifier: BSD-2-Clause */
/* Checks extents and nodes of both kinds of B+tree (FORMAT.md 3.2 and 6). */
#include <assert.h>

#include "layout/check.h"
#include "layout/layout.h"

/* Checks everything about an extent except its place. */
static int extent_fields(const struct lay_extent *e, const char **why)
{
    uint64_t len = lay_get32(e->len);
    uint16_t flags = lay_get16(e->flags);

    if (len == 0)
        return lay_bad(why, "extent.len");
    if (flags & ~LAY_EXTENT_FLAGS || flags == LAY_EXTENT_FLAGS)
        return lay_bad(why, "extent.flags");
    if (lay_get16(e->device) != 0)
        return lay_bad(why, "extent.device");
    if (lay_get64(e->file_block) >= LAY_MAX_FILE_BLOCKS ||
        len > LAY_MAX_FILE_BLOCKS - lay_get64(e->file_block))
        return lay_bad(why, "extent.file_block");
    return 0;
}

int lay_check_extent(const struct lay_geometry *geo, const struct lay_extent *e, const char **why)
{
    uint64_t len = lay_get32(e->len);
    uint16_t flags = lay_get16(e->flags);
    int err = extent_fields(e, why);

    if (err)
        return err;
    if (flags & LAY_EXTENT_DAMAGED && !lay_extent_has_blocks(e))
        return len <= LAY_DAMAGED_MAX ? 0 : lay_bad(why, "extent.len");
    return lay_range_ok(geo, lay_get64(e->block), len) ? 0 : lay_bad(why, "extent.block");
}

int lay_check_inode_extent(const struct lay_geometry *geo, const struct lay_extent *e,
                           const char **why)
{
    uint64_t addr = lay_get64(e->block);
    int err = extent_fields(e, why);

    if (err)
        return err;
    if (lay_get16(e->flags) != 0)
        return lay_bad(why, "extent.flags");
    if (!lay_chunk_addr_ok(geo, addr) ||
        lay_get32(e->len) > LAY_SEGMENT_BLOCKS - lay_addr_index(addr))
        return lay_bad(why, "extent.block");
    return 0;
}

int lay_check_extents(const struct lay_geometry *geo, uint64_t ino,
                      const struct lay_extent *extents, unsigned count, uint64_t lo, uint64_t hi,
                      const char **why)
{
    for (unsigned i = 0; i < count; i++) {
        int err = ino == 0 ? lay_check_inode_extent(geo, &extents[i], why)
                           : lay_check_extent(geo, &extents[i], why);
        if (err)
            return err;
        uint64_t first = lay_get64(extents[i].file_block);
        uint64_t last = first + lay_get32(extents[i].len) - 1;
        if (first < lo)
            return lay_bad(why, i ? "extent.file_block: overlap or out of order"
                                  : "extent.file_block: not in the node's range");
        if (last > hi)
            return lay_bad(why, "extent.file_block: not in the node's range");
        lo = last + 1;
    }
    return 0;
}

static int check_branches(const struct lay_geometry *geo, const struct lay_node *node, uint64_t lo,
                          uint64_t hi, const char **why)
{
    unsigned count = lay_get16(node->count);

    if (count == 0)
        return lay_bad(why, "count");
    for (unsigned i = 0; i < count; i++) {
        const struct lay_branch *b = &node->u.branches[i];
        uint64_t key = lay_get64(b->key);
        if (i == 0 ? key != lo : key <= lay_get64(b[-1].key))
            return lay_bad(why, "branch.key: out of order");
        if (key > hi)
            return lay_bad(why, "branch.key: not in the node's range");
        if (!lay_chunk_addr_ok(geo, lay_get64(b->child)))
            return lay_bad(why, "branch.child");
    }
    return 0;
}

/*
 * Checks the level, the counts, and that unused bytes are zero. `record` is the
 * fixed size of a record, or 0 if sizes vary.
 */
static int node_check_shape(const struct lay_node *node, unsigned level, unsigned record,
                            const char **why)
{
    uint32_t used = lay_get32(node->used);

    if (lay_get16(node->level) != level)
        return lay_bad(why, "level");
    if (lay_get64(node->reserved) != 0)
        return lay_bad(why, "reserved");
    if (used > LAY_PAYLOAD || (record && used != lay_get16(node->count) * record))
        return lay_bad(why, "used");
    if (!lay_is_zero(node->u.bytes + used, LAY_PAYLOAD - used))
        return lay_bad(why, "unused bytes");
    return 0;
}

int lay_check_node(const struct lay_geometry *geo, const struct lay_node *node, uint32_t magic,
                   uint64_t addr, uint64_t owner, unsigned level, uint64_t lo, uint64_t hi,
                   const char **why)
{
    assert(magic == LAY_MAGIC_EXTENTS || magic == LAY_MAGIC_DIR);
    bool is_dir = magic == LAY_MAGIC_DIR;
    unsigned record = sizeof(struct lay_extent);
    if (level > 0)
        record = sizeof(struct lay_branch);
    else if (is_dir)
        record = 0;

    int err = lay_check_head(node, magic, geo->uuid, addr, owner, why);
    if (!err)
        err = node_check_shape(node, level, record, why);
    if (err)
        return err;
    if (level > 0)
        return level < LAY_MAX_HEIGHT ? check_branches(geo, node, lo, hi, why)
                                      : lay_bad(why, "level");
    if (lay_get32(node->used) == 0 && !(lo == 0 && hi == UINT64_MAX))
        return lay_bad(why, "count: only a root may be empty");
    if (is_dir)
        return lay_check_dirents(geo, node, lo, hi, why);
    return lay_check_extents(geo, lay_get64(node->head.owner), node->u.extents,
                             lay_get16(node->count), lo, hi, why);
}
