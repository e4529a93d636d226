/* SPDX-License-Identifier: BSD-2-Clause */
/* Checks inodes and inode blocks (FORMAT.md 3). */
#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

#include "layout/check.h"
#include "layout/layout.h"

/* Fields of an inode, in host byte order, that several checks use. */
struct fields {
    uint32_t mode;
    uint64_t ino, size, blocks, xattr;
    unsigned kind, count, height;
};

/* Returns true if this type of file may have a map of this kind. */
static bool kind_ok(uint32_t mode, unsigned kind)
{
    switch (kind) {
    case LAY_MAP_EMPTY:
        return S_ISCHR(mode) || S_ISBLK(mode) || S_ISFIFO(mode) || S_ISSOCK(mode);
    case LAY_MAP_INLINE:
    case LAY_MAP_TREE:
        return S_ISREG(mode);
    case LAY_MAP_TARGET:
    case LAY_MAP_LINK:
        return S_ISLNK(mode);
    case LAY_MAP_DIR:
        return S_ISDIR(mode);
    default:
        return false;
    }
}

/* Checks inode.blocks, which counts data only. */
static int check_charge(const struct fields *f, uint64_t data, const char **why)
{
    return f->blocks == data ? 0 : lay_bad(why, "inode.blocks");
}

static int check_inline(const struct lay_geometry *geo, const struct lay_inode *inode,
                        const struct fields *f, const char **why)
{
    if (f->count > LAY_INLINE_EXTENTS)
        return lay_bad(why, "inode.map_count");
    size_t used = f->count * sizeof(struct lay_extent);
    if (!lay_is_zero(inode->map.bytes + used, LAY_MAP_BYTES - used))
        return lay_bad(why, "inode.map: unused bytes");
    int err = lay_check_extents(geo, f->ino, inode->map.extents, f->count, 0, UINT64_MAX, why);
    if (err)
        return err;

    uint64_t sum = 0;
    for (unsigned i = 0; i < f->count; i++) {
        const struct lay_extent *e = &inode->map.extents[i];
        if (f->ino == 0 && lay_get64(e->file_block) != sum)
            return lay_bad(why, "inode.map: hole in the inode file");
        sum += lay_extent_has_blocks(e) ? lay_get32(e->len) : 0;
    }
    if (f->ino == 0 && sum << LAY_BLOCK_SHIFT != f->size)
        return lay_bad(why, "inode.size");
    return check_charge(f, f->ino == 0 ? 0 : sum, why);
}

/* Checks the tree's fields in the inode, not its nodes. */
static int check_tree(const struct lay_geometry *geo, const struct lay_inode *inode,
                      const struct fields *f, const char **why)
{
    const struct lay_map_tree *tree = &inode->map.tree;
    uint64_t nodes = lay_get64(tree->blocks);

    if (f->height < 1 || f->height > LAY_MAX_HEIGHT)
        return lay_bad(why, "inode.map_height");
    if (!lay_chunk_addr_ok(geo, lay_get64(tree->root)))
        return lay_bad(why, "map.tree.root");
    if (nodes < f->height || nodes > geo->blocks)
        return lay_bad(why, "map.tree.blocks");
    if (!lay_is_zero(inode->map.bytes + sizeof(*tree), LAY_MAP_BYTES - sizeof(*tree)))
        return lay_bad(why, "inode.map: unused bytes");
    if (f->kind == LAY_MAP_DIR) {
        if (f->size != nodes << LAY_BLOCK_SHIFT)
            return lay_bad(why, "inode.size");
        return check_charge(f, 0, why);
    }
    /* Damaged extents may have no blocks, so the extents set no lower bound of inode.blocks. */
    return lay_get64(tree->entries) > geo->blocks ? lay_bad(why, "map.tree.entries") : 0;
}

static int inode_check_link(const struct lay_geometry *geo, const struct lay_inode *inode,
                            const struct fields *f, const char **why)
{
    const uint8_t *target = inode->map.bytes;
    size_t room = LAY_MAP_BYTES;
    size_t len = f->size;

    if (f->size < 1 || f->size > LAY_SYMLINK_MAX || (f->kind == LAY_MAP_TARGET) != (len <= room))
        return lay_bad(why, "inode.size");
    if (f->kind == LAY_MAP_LINK) {
        if (!lay_chunk_addr_ok(geo, lay_get64(inode->map.link.block)))
            return lay_bad(why, "map.link.block");
        target = inode->map.link.tail;
        room -= offsetof(struct lay_map_link, tail);
        len = len > LAY_PAYLOAD ? len - LAY_PAYLOAD : 0;
    }
    if (memchr(target, 0, len))
        return lay_bad(why, "inode.map: target");
    if (!lay_is_zero(target + len, room - len))
        return lay_bad(why, "inode.map: unused bytes");
    return check_charge(f, 0, why);
}

static int check_empty(const struct lay_inode *inode, const struct fields *f, const char **why)
{
    if (f->size != 0)
        return lay_bad(why, "inode.size");
    if (!lay_is_zero(inode->map.bytes, LAY_MAP_BYTES))
        return lay_bad(why, "inode.map: unused bytes");
    return check_charge(f, 0, why);
}

static int inode_check_map(const struct lay_geometry *geo, const struct lay_inode *inode,
                           const struct fields *f, const char **why)
{
    bool is_tree = f->kind == LAY_MAP_TREE || f->kind == LAY_MAP_DIR;

    if (!kind_ok(f->mode, f->kind))
        return lay_bad(why, "inode.map_kind");
    if (f->count != 0 && f->kind != LAY_MAP_INLINE)
        return lay_bad(why, "inode.map_count");
    if (f->height != 0 && !is_tree)
        return lay_bad(why, "inode.map_height");
    if (lay_get16(inode->map_reserved) != 0)
        return lay_bad(why, "inode.map_reserved");
    if (f->kind == LAY_MAP_INLINE)
        return check_inline(geo, inode, f, why);
    if (is_tree)
        return check_tree(geo, inode, f, why);
    if (f->kind == LAY_MAP_EMPTY)
        return check_empty(inode, f, why);
    return inode_check_link(geo, inode, f, why);
}

/* Checks nlink, the orphan list and "..". */
static int check_links(const struct lay_geometry *geo, const struct lay_inode *inode,
                       const struct fields *f, const char **why)
{
    uint64_t most = geo->blocks * LAY_INODES_PER_BLOCK;
    uint64_t next_orphan = lay_get64(inode->next_orphan);
    uint64_t parent = lay_get64(inode->parent);
    uint32_t nlink = lay_get32(inode->nlink);

    if (nlink == 0 ? next_orphan == 0 : S_ISDIR(f->mode) && (nlink < 2 || next_orphan != 0))
        return lay_bad(why, "inode.nlink");
    if (next_orphan != 0 && next_orphan != LAY_NONE &&
        (next_orphan <= LAY_INO_ROOT || next_orphan >= most || next_orphan == f->ino))
        return lay_bad(why, "inode.next_orphan");
    if (S_ISDIR(f->mode) ? parent < LAY_INO_ROOT || parent >= most : parent != 0)
        return lay_bad(why, "inode.parent");
    if (f->ino == LAY_INO_ROOT && (!S_ISDIR(f->mode) || parent != LAY_INO_ROOT || nlink == 0))
        return lay_bad(why, "root directory");
    return 0;
}

static int check_attributes(const struct lay_geometry *geo, const struct lay_inode *inode,
                            const struct fields *f, const char **why)
{
    bool is_device = S_ISCHR(f->mode) || S_ISBLK(f->mode);
    bool can_bind = S_ISREG(f->mode) || S_ISDIR(f->mode);
    uint32_t flags = lay_get32(inode->flags);

    if (f->mode & ~(uint32_t)(S_IFMT | 07777) || !lay_type_ok(IFTODT(f->mode)))
        return lay_bad(why, "inode.mode");
    if ((flags & ~LAY_INODE_FLAGS) || (flags && !can_bind))
        return lay_bad(why, "inode.flags");
    if (f->size > INT64_MAX)
        return lay_bad(why, "inode.size");
    if (f->blocks > geo->blocks)
        return lay_bad(why, "inode.blocks");
    if (!lay_time_ok(inode->atime) || !lay_time_ok(inode->mtime) || !lay_time_ok(inode->ctime) ||
        !lay_time_ok(inode->btime))
        return lay_bad(why, "inode times");
    if (lay_get32(inode->rdev) != 0 && !is_device)
        return lay_bad(why, "inode.rdev");
    if (inode->policy != 0 || inode->unit != 0 || lay_get16(inode->set) != 0)
        return lay_bad(why, "inode.policy");
    if (lay_get32(inode->project) != 0 || lay_get32(inode->key) != 0)
        return lay_bad(why, "inode.project");
    if (!lay_is_zero(inode->reserved, sizeof(inode->reserved)))
        return lay_bad(why, "inode.reserved");
    if (f->xattr != 0 && !lay_chunk_addr_ok(geo, f->xattr))
        return lay_bad(why, "inode.xattr");
    return 0;
}

/* Checks that the inode file's inode has no name and no owner, and is in no list. */
static int check_inode_file(const struct lay_inode *inode, const struct fields *f, const char **why)
{
    if (f->mode != S_IFREG || lay_get32(inode->nlink) != 1)
        return lay_bad(why, "inode_file.mode");
    if (lay_get32(inode->uid) || lay_get32(inode->gid) || lay_get32(inode->flags) ||
        lay_get32(inode->generation) || f->blocks || f->xattr || lay_get64(inode->next_orphan))
        return lay_bad(why, "inode_file: fields that must be zero");
    if (f->size == 0 || f->size % LAY_BLOCK_SIZE != 0)
        return lay_bad(why, "inode_file.size");
    return 0;
}

/*
 * Checks a free slot, which keeps its generation so that stale handles are
 * detected after reuse.
 */
static int check_free_slot(const struct lay_inode *inode, const char **why)
{
    struct lay_inode rest = *inode;

    rest.generation = lay_put32(0);
    return lay_is_zero(&rest, sizeof(rest)) ? 0 : lay_bad(why, "inode: free but not zero");
}

int lay_check_inode(const struct lay_geometry *geo, const struct lay_inode *inode, uint64_t ino,
                    const char **why)
{
    struct fields f = {
        .mode = lay_get32(inode->mode),
        .ino = ino,
        .size = lay_get64(inode->size),
        .blocks = lay_get64(inode->blocks),
        .xattr = lay_get64(inode->xattr),
        .kind = lay_get16(inode->map_kind),
        .count = lay_get16(inode->map_count),
        .height = lay_get16(inode->map_height),
    };
    int err = check_attributes(geo, inode, &f, why);

    if (!err)
        err = check_links(geo, inode, &f, why);
    if (!err && ino == 0)
        err = check_inode_file(inode, &f, why);
    return err ? err : inode_check_map(geo, inode, &f, why);
}

static int check_slot(const struct lay_geometry *geo, const struct lay_inode_block *ib,
                      uint64_t index, unsigned slot, const char **why)
{
    const struct lay_inode *inode = &ib->inodes[slot];
    uint64_t ino = index * LAY_INODES_PER_BLOCK + slot;
    bool used = ib->used >> slot & 1;

    if (ino == 0)
        return used && lay_is_zero(inode, sizeof(*inode)) ? 0 : lay_bad(why, "inode 0");
    if (used != (lay_get32(inode->mode) != 0))
        return lay_bad(why, "used");
    return used ? lay_check_inode(geo, inode, ino, why) : check_free_slot(inode, why);
}

int lay_check_inode_block(const struct lay_geometry *geo, const struct lay_inode_block *ib,
                          uint64_t index, uint64_t addr, const char **why)
{
    uint64_t first = index * LAY_INODES_PER_BLOCK;
    int err = lay_check_head(ib, LAY_MAGIC_INODES, geo->uuid, addr, first, why);

    if (err)
        return err;
    uint64_t next = lay_get64(ib->next_free);
    if (next != LAY_NONE && (next >= geo->blocks || next == index || ib->used == 0xff))
        return lay_bad(why, "next_free");
    if (!lay_is_zero(ib->reserved, sizeof(ib->reserved)))
        return lay_bad(why, "reserved");
    for (unsigned slot = 0; slot < LAY_INODES_PER_BLOCK && !err; slot++)
        err = check_slot(geo, ib, index, slot, why);
    return err;
}

/* --- Times ------------------------------------------------------------------------------------ */

bool lay_time_ok(struct lay_time t)
{
    return lay_get32(t.nsec) < LAY_NSEC_PER_SEC;
}
