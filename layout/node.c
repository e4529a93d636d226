/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checks extents and nodes of both kinds of B+tree (FORMAT.md 3.2 and 6), names,
 * and the records of directory leaves (FORMAT.md 7).
 */
#include <assert.h>
#include <dirent.h>
#include <string.h>

#include "layout/check.h"
#include "layout/layout.h"

/* d_off is a positive off_t. The low byte distinguishes equal hashes. */
#define KEY_HASH_MASK 0x7fffffffffffff00ull

uint64_t lay_name_key(const uint8_t hash_seed[16], const char *name, size_t len)
{
    uint64_t key = lay_siphash(hash_seed, name, len) >> 1 & KEY_HASH_MASK;

    return key < LAY_DIR_KEY_MIN ? LAY_DIR_KEY_MIN : key;
}

bool lay_name_ok(const char *name, size_t len)
{
    if (len < 1 || len > LAY_NAME_MAX)
        return false;
    if (name[0] == '.' && (len == 1 || (len == 2 && name[1] == '.')))
        return false;
    return !memchr(name, '/', len) && !memchr(name, 0, len);
}

bool lay_type_ok(unsigned type)
{
    switch (type) {
    case DT_FIFO:
    case DT_CHR:
    case DT_DIR:
    case DT_BLK:
    case DT_REG:
    case DT_LNK:
    case DT_SOCK:
        return true;
    default:
        return false;
    }
}

/* Checks one record; `room` bytes are left in the used part of the leaf. */
static int check_dirent(const struct lay_geometry *geo, const struct lay_dirent *d, size_t room,
                        const char **why)
{
    const char *name = (const char *)d->name;

    if (room < sizeof(*d) || lay_get16(d->len) > room)
        return lay_bad(why, "dirent past the used bytes");
    if (lay_get16(d->len) != LAY_DIRENT_LEN(d->name_len))
        return lay_bad(why, "dirent.len");
    if (!lay_name_ok(name, d->name_len))
        return lay_bad(why, "dirent.name");
    size_t end = offsetof(struct lay_dirent, name) + d->name_len;
    if (!lay_is_zero(name + d->name_len, lay_get16(d->len) - end))
        return lay_bad(why, "dirent padding");
    if (!lay_type_ok(d->type))
        return lay_bad(why, "dirent.type");
    uint64_t ino = lay_get64(d->ino);
    if (ino < LAY_INO_ROOT + 1 || ino >= geo->blocks * LAY_INODES_PER_BLOCK)
        return lay_bad(why, "dirent.ino");
    if ((lay_get64(d->key) & ~0xffull) != lay_name_key(geo->hash_seed, name, d->name_len))
        return lay_bad(why, "dirent.key: not the hash of the name");
    return 0;
}

int lay_check_dirents(const struct lay_geometry *geo, const struct lay_node *leaf, uint64_t lo,
                      uint64_t hi, const char **why)
{
    uint32_t used = lay_get32(leaf->used);
    unsigned count = 0;
    uint64_t above = 0; /* keys are at least LAY_DIR_KEY_MIN */

    for (uint32_t pos = 0; pos < used; count++) {
        const struct lay_dirent *d = (const struct lay_dirent *)(leaf->u.bytes + pos);
        int err = check_dirent(geo, d, used - pos, why);
        if (err)
            return err;
        uint64_t key = lay_get64(d->key);
        if (key <= above)
            return lay_bad(why, "dirent.key: out of order");
        if (key < lo || key > hi)
            return lay_bad(why, "dirent.key: not in the node's range");
        above = key;
        pos += lay_get16(d->len);
    }
    return count == lay_get16(leaf->count) ? 0 : lay_bad(why, "count");
}

const struct lay_dirent *lay_dirent_next(const struct lay_node *leaf, const struct lay_dirent *prev)
{
    assert(lay_get16(leaf->level) == 0);
    size_t pos = 0;
    if (prev)
        pos = (size_t)((const uint8_t *)prev - leaf->u.bytes) + lay_get16(prev->len);
    if (pos >= lay_get32(leaf->used))
        return NULL;
    return (const struct lay_dirent *)(leaf->u.bytes + pos);
}

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
