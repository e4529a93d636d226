/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Derives counts and sizes from valid contents, and rebuilds the map of the
 * inode file.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "mkfs/fsck/store.h"

/* Returns true if the inode file lacks this inode block; *index is its place. */
static bool is_missing(const struct fsck *f, const union lay_block *b, uint64_t addr,
                       uint64_t *index)
{
    uint64_t first = lay_get64(b->head.owner);

    *index = first / LAY_INODES_PER_BLOCK;
    return lay_get32(b->head.magic) == LAY_MAGIC_INODES && first % LAY_INODES_PER_BLOCK == 0 &&
           *index < f->inode_block_count && f->inode_blocks[*index].damaged &&
           lay_check_head(b, LAY_MAGIC_INODES, f->img.geo.uuid, addr, first, NULL) == 0;
}

static int recount_adopt(struct fsck *f, uint64_t addr, void *arg)
{
    union lay_block b, other;
    uint64_t index;
    int err = image_read(&f->img, addr, &b);

    (void)arg;
    if (err || f->img.age == IMAGE_AGE_STALE || !is_missing(f, &b, addr, &index))
        return err;
    struct inode_block_info *info = &f->inode_blocks[index];
    err = info->addr ? image_read(&f->img, info->addr, &other) : 0;
    if (err || (info->addr && lay_get64(other.head.tid) >= lay_get64(b.head.tid)))
        return err;
    info->addr = addr;
    fsck_keep(f, addr);
    return store_put(f, addr, &b);
}

/* Searches all unclaimed blocks of chunks for unmapped blocks of the inode file. */
static int fsck_adopt_blocks(struct fsck *f)
{
    bool any = false;

    for (uint64_t index = 0; index < f->inode_block_count && !any; index++)
        any = !f->inode_blocks[index].addr;
    return any ? fsck_each_lost(f, recount_adopt, NULL) : 0;
}

struct count {
    uint64_t blocks, end;
};

static void count_extent(void *arg, const struct lay_extent *e)
{
    struct count *c = arg;

    c->blocks += lay_extent_has_blocks(e) ? lay_get32(e->len) : 0;
    c->end = lay_get64(e->file_block) + lay_get32(e->len);
}

static int count_contents(struct fsck *f, uint64_t ino, const struct lay_inode *inode,
                          struct count *c, struct walk_totals *t)
{
    static const struct walk_ops ops = {.extent = count_extent}, none = {0};

    switch (lay_get16(inode->map_kind)) {
    case LAY_MAP_INLINE:
    case LAY_MAP_TREE:
        return walk_extents(&f->img, ino, inode, &ops, c, t);
    case LAY_MAP_DIR:
        return walk_names(&f->img, ino, inode, &none, NULL, t);
    default:
        return 0;
    }
}

static int set_target_size(struct fsck *f, struct lay_inode *inode)
{
    struct lay_map_link *link = &inode->map.link;
    union lay_block b;
    int err = image_read(&f->img, lay_get64(link->block), &b);

    if (err || lay_get16(inode->map_kind) != LAY_MAP_LINK)
        return err;
    uint64_t len = lay_get32(b.symlink.len);
    if (len == LAY_PAYLOAD)
        len += strnlen((const char *)link->tail, LAY_LINK_TAIL - 1);
    else
        memset(link->tail, 0, sizeof(link->tail));
    inode->size = lay_put64(len);
    return 0;
}

int fsck_recount(struct fsck *f, uint64_t ino, struct lay_inode *inode, bool size)
{
    unsigned kind = lay_get16(inode->map_kind);
    bool is_tree = kind == LAY_MAP_TREE || kind == LAY_MAP_DIR;
    struct count c = {0};
    struct walk_totals t = {0};
    int err = count_contents(f, ino, inode, &c, &t);

    if (err)
        return err == -EUCLEAN ? 0 : err;
    inode->blocks = lay_put64(c.blocks);
    if (is_tree) {
        inode->map.tree.blocks = lay_put64(t.nodes);
        inode->map.tree.entries = lay_put64(t.entries);
    }
    if (kind == LAY_MAP_DIR)
        inode->size = lay_put64(t.nodes << LAY_BLOCK_SHIFT);
    else if (size && S_ISREG(lay_get32(inode->mode)))
        inode->size = lay_put64(c.end < LAY_MAX_FILE_BLOCKS ? c.end << LAY_BLOCK_SHIFT : INT64_MAX);
    return size && kind == LAY_MAP_LINK ? set_target_size(f, inode) : 0;
}

void fsck_check_counts(struct fsck *f, uint64_t ino, const struct lay_inode *inode,
                       const struct walk_totals *totals)
{
    bool is_dir = lay_get16(inode->map_kind) == LAY_MAP_DIR;
    enum problem problem = is_dir ? PROBLEM_DIR_COUNTS : PROBLEM_TREE_COUNTS;
    uint64_t nodes = lay_get64(inode->map.tree.blocks);
    uint64_t entries = lay_get64(inode->map.tree.entries);
    char detail[128];

    if (totals->nodes == nodes && totals->entries == entries)
        return;
    snprintf(detail, sizeof(detail),
             "%" PRIu64 " nodes and %" PRIu64 " %s, counted %" PRIu64 " and %" PRIu64, nodes,
             entries, is_dir ? "names" : "extents", totals->nodes, totals->entries);
    fsck_want(f, problem, detail, ino, FIX_COUNTS);
}

/* --- The inode file --------------------------------------------------------------------------- */

/* Creates an empty block for inodes that were not found. */
static int new_inode_block(struct fsck *f, uint64_t index)
{
    struct inode_block_info *info = &f->inode_blocks[index];
    union lay_block b;
    int err = fsck_alloc_meta(f, &info->addr);

    if (err || !info->addr)
        return err ? err : -ENOSPC;
    memset(&b, 0, sizeof(b));
    lay_head_init(&b.head, LAY_MAGIC_INODES, f->img.geo.uuid, info->addr,
                  index * LAY_INODES_PER_BLOCK);
    b.inodes.next_free = lay_put64(LAY_NONE);
    b.inodes.used = index == 0;
    info->next_free = LAY_NONE;
    info->has_free = true;
    info->damaged = false;
    f->fix_free_list = true;
    return store_put_new(f, info->addr, &b);
}

static int grow_tables(struct fsck *f)
{
    uint64_t count = f->inode_block_count + f->grow;
    struct inode_block_info *blocks = realloc(f->inode_blocks, (count + 1) * sizeof(*blocks));

    if (!blocks)
        return -ENOMEM;
    f->inode_blocks = blocks;
    struct inode_info *inodes =
        realloc(f->inodes, (count * LAY_INODES_PER_BLOCK + 1) * sizeof(*inodes));
    if (!inodes)
        return -ENOMEM;
    f->inodes = inodes;
    memset(blocks + f->inode_block_count, 0, (f->grow + 1) * sizeof(*blocks));
    memset(inodes + fsck_inode_limit(f), 0, (f->grow * LAY_INODES_PER_BLOCK + 1) * sizeof(*inodes));
    f->inode_block_count = count;
    return 0;
}

int fsck_rebuild_inode_file(struct fsck *f)
{
    struct lay_inode inode = f->sb.inode_file;
    struct fsck_list list = {0}, none = {0};
    int err = fsck_adopt_blocks(f);

    if (!err)
        err = grow_tables(f);
    for (uint64_t index = 0; index < f->inode_block_count && !err; index++) {
        if (!f->inode_blocks[index].addr)
            err = new_inode_block(f, index);
        struct lay_extent *last =
            list.count ? (struct lay_extent *)list.items + list.count - 1 : NULL;
        uint64_t addr = f->inode_blocks[index].addr;
        if (!err && last && lay_get64(last->block) + lay_get32(last->len) == addr)
            last->len = lay_put32(lay_get32(last->len) + 1);
        else if (!err)
            err = fsck_add_extent(&list, index, addr, 1, lay_put16(0));
    }
    if (!err)
        err = fsck_put_map(f, 0, &inode, &list, &none);
    free(list.items);
    if (err)
        return err;
    inode.size = lay_put64(f->inode_block_count << LAY_BLOCK_SHIFT);
    inode.blocks = lay_put64(0);
    f->sb.inode_file = inode;
    return 0;
}
