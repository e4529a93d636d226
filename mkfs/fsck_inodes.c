/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The pass over the inode file: every slot, and what each inode refers to but names.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "mkfs/fsck.h"

/* Finds where the blocks of the inode file are. */
struct locate {
    struct fsck *f;
    uint64_t expected; /* the next file block */
    bool whole;
};

static bool visit_node(void *arg, uint64_t block)
{
    struct locate *l = arg;

    return fsck_claim(l->f, 0, block, 1);
}

static void bad_node(void *arg, uint64_t block, const char *why)
{
    struct locate *l = arg;

    fsck_report(l->f, PROBLEM_TREE_NODE, why, "inode 0 block %" PRIu64, block);
}

static void count_extent(void *arg, const struct lay_extent *e)
{
    struct locate *l = arg;
    uint64_t len = lay_get32(e->len);

    if (lay_get64(e->file_block) != l->expected || lay_get16(e->flags) != 0)
        l->whole = false;
    l->expected = lay_get64(e->file_block) + len;
    if (!fsck_claim(l->f, 0, lay_get64(e->block), len))
        l->whole = false;
}

static void store_extent(void *arg, const struct lay_extent *e)
{
    struct locate *l = arg;
    uint64_t first = lay_get64(e->file_block);

    for (uint64_t i = 0; i < lay_get32(e->len); i++) {
        if (first + i < l->f->inode_block_count)
            l->f->inode_blocks[first + i].addr = lay_get64(e->block) + i;
    }
}

/*
 * The file has the length that its superblock inode states, without holes. A damaged tree can state
 * any length, so nothing is allocated by that length before the count is confirmed.
 */
static int locate_blocks(struct fsck *f)
{
    static const struct walk_ops count = {
        .visit = visit_node, .damaged = bad_node, .extent = count_extent};
    static const struct walk_ops store = {.extent = store_extent};
    struct locate l = {.f = f, .whole = true};
    struct walk_totals totals;
    const struct lay_inode *inode = &f->sb.inode_file;

    int err = walk_extents(&f->img, 0, inode, &count, &l, &totals);
    if (err && err != -EUCLEAN)
        return err;
    bool is_tree = lay_get16(inode->map_kind) == LAY_MAP_TREE;
    uint64_t nodes = is_tree ? totals.nodes : 0;
    if (err || !l.whole || l.expected << LAY_BLOCK_SHIFT != lay_get64(inode->size) ||
        l.expected + nodes != lay_get64(inode->blocks) ||
        (is_tree && (nodes != lay_get64(inode->map.tree.blocks) ||
                     totals.entries != lay_get64(inode->map.tree.entries)))) {
        fsck_report(f, PROBLEM_INODE_FILE, NULL, "inode 0");
        f->incomplete = true;
    }
    /* Sound extents cannot map more blocks than there are. */
    f->inode_block_count = l.expected < f->img.geo.blocks ? l.expected : f->img.geo.blocks;
    f->inode_blocks = calloc(f->inode_block_count + 1, sizeof(*f->inode_blocks));
    f->inodes = calloc(fsck_inode_limit(f) + 1, sizeof(*f->inodes));
    if (!f->inode_blocks || !f->inodes)
        return -ENOMEM;
    err = walk_extents(&f->img, 0, inode, &store, &l, NULL);
    return err == -EUCLEAN ? 0 : err;
}

static int check_inode(struct fsck *f, uint64_t ino, const struct lay_inode *inode)
{
    struct inode_info *info = &f->inodes[ino];

    info->parent = lay_get64(inode->parent);
    info->nlink = lay_get32(inode->nlink);
    info->type = (uint8_t)(lay_get32(inode->mode) >> 12); /* DT_* are the bits of the mode */
    if (lay_get64(inode->next_orphan) != 0)
        info->flags |= INODE_ORPHAN;
    f->inodes_used++;
    return fsck_map(f, ino, inode);
}

static void mark_unknown(struct fsck *f, uint64_t index)
{
    f->incomplete = true;
    f->inode_blocks[index].damaged = true;
    for (unsigned slot = 0; slot < LAY_INODES_PER_BLOCK; slot++)
        f->inodes[index * LAY_INODES_PER_BLOCK + slot].flags |= INODE_UNKNOWN;
}

static int check_block(struct fsck *f, uint64_t index)
{
    struct inode_block_info *info = &f->inode_blocks[index];
    const char *why = "not mapped";
    union image_block b;
    int err = info->addr ? image_read(&f->img, info->addr, &b) : 0;

    if (err)
        return err;
    if (!info->addr ||
        lay_check_inode_block(&f->img.geo, &b.inodes, index, info->addr, &why) != 0) {
        fsck_report(f, PROBLEM_INODE_BLOCK, why, "inodes %" PRIu64 " to %" PRIu64,
                    index * LAY_INODES_PER_BLOCK,
                    index * LAY_INODES_PER_BLOCK + LAY_INODES_PER_BLOCK - 1);
        mark_unknown(f, index);
        return 0;
    }
    info->next_free = lay_get64(b.inodes.next_free);
    info->has_free = b.inodes.used != 0xff;
    for (unsigned slot = 0; slot < LAY_INODES_PER_BLOCK && !err; slot++) {
        uint64_t ino = index * LAY_INODES_PER_BLOCK + slot;
        if (ino != 0 && b.inodes.used >> slot & 1)
            err = check_inode(f, ino, &b.inodes.inodes[slot]);
    }
    return err;
}

int fsck_inodes(struct fsck *f)
{
    char detail[64];
    int err = locate_blocks(f);

    for (uint64_t index = 0; index < f->inode_block_count && !err; index++) {
        err = check_block(f, index);
        fsck_progress(f, "inodes", index + 1, f->inode_block_count);
    }
    if (err || f->incomplete || f->inodes_used == lay_get64(f->sb.inodes))
        return err;
    snprintf(detail, sizeof(detail), "is %" PRIu64 ", counted %" PRIu64, lay_get64(f->sb.inodes),
             f->inodes_used);
    fsck_report(f, PROBLEM_SUPER_INODES, detail, "superblock");
    return 0;
}
