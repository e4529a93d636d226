/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The pass over the inode file checks every slot and everything that an inode
 * refers to, except names.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "mkfs/fsck/salvage.h"
#include "mkfs/fsck/store.h"

/* Bound of the file's length, since a damaged map can state any. */
#define MOST_BLOCKS(mapped) (UINT64_C(65536) + 16 * (mapped))

/* Describes an extent of the inode file that no other object has claimed. */
struct extent {
    uint64_t first, addr, len;
};

/* Holds the state of the search for the blocks of the inode file. */
struct locate {
    struct fsck *f;
    struct fsck_list extents;
    uint64_t expected; /* the next file block */
    uint64_t mapped;
    bool whole, failed;
};

static bool inodes_take_node(void *arg, uint64_t addr)
{
    struct locate *l = arg;

    return fsck_claim(l->f, 0, addr);
}

static void bad_node(void *arg, uint64_t addr, const char *why)
{
    struct locate *l = arg;

    if (fsck_report(l->f, PROBLEM_TREE_NODE, why, "inode 0 " FSCK_AT, FSCK_AT_OF(addr)))
        l->f->fix_inode_file = true;
}

static void inodes_add_block(struct locate *l, uint64_t first, uint64_t addr)
{
    struct extent *extents = l->extents.items;
    struct extent *last = l->extents.count ? &extents[l->extents.count - 1] : NULL;

    if (last && last->first + last->len == first && last->addr + last->len == addr) {
        last->len++;
        return;
    }
    const struct extent extent = {first, addr, 1};
    l->failed |= fsck_append(&l->extents, &extent, sizeof(extent)) != 0;
}

static void inodes_take_extent(void *arg, const struct lay_extent *e)
{
    struct locate *l = arg;
    uint64_t first = lay_get64(e->file_block);
    uint64_t len = lay_get32(e->len);

    if (first != l->expected || lay_get16(e->flags) != 0)
        l->whole = false;
    l->mapped += len;
    if (first + len > MOST_BLOCKS(l->mapped) || first < l->expected || !lay_extent_has_blocks(e))
        return;
    for (uint64_t i = 0; i < len && !l->failed; i++) {
        uint64_t addr = lay_get64(e->block) + i, places[2];
        /* Repairs cannot write a block whose segment is not mapped. */
        if (image_places(&l->f->img, addr, places) > 0 && fsck_claim(l->f, 0, addr))
            inodes_add_block(l, first + i, addr);
        else
            l->whole = false;
    }
    l->expected = first + len;
}

static void inodes_check_shape(struct fsck *f, const struct locate *l,
                               const struct walk_totals *totals)
{
    const struct lay_inode *inode = &f->sb.inode_file;
    bool is_tree = lay_get16(inode->map_kind) == LAY_MAP_TREE;

    if (totals->whole && l->whole && l->expected << LAY_BLOCK_SHIFT == lay_get64(inode->size) &&
        (!is_tree || (totals->nodes == lay_get64(inode->map.tree.blocks) &&
                      totals->entries == lay_get64(inode->map.tree.entries))))
        return;
    if (fsck_report(f, PROBLEM_INODE_FILE, NULL, "inode 0"))
        f->fix_inode_file = true;
    f->incomplete = true;
}

/* Returns the length of the file. Unmapped blocks at its end may still be found. */
static uint64_t file_blocks(const struct fsck *f, const struct locate *l)
{
    uint64_t stated = lay_get64(f->sb.inode_file.size) >> LAY_BLOCK_SHIFT;

    if (stated > MOST_BLOCKS(l->mapped))
        stated = 1;
    if (stated > f->img.geo.blocks)
        stated = f->img.geo.blocks;
    return l->expected > stated ? l->expected : stated;
}

static int store_extents(struct fsck *f, const struct locate *l)
{
    const struct extent *extents = l->extents.items;

    f->inode_block_count = file_blocks(f, l);
    f->inode_blocks = calloc(f->inode_block_count + 1, sizeof(*f->inode_blocks));
    f->inodes = calloc(fsck_inode_limit(f) + 1, sizeof(*f->inodes));
    if (!f->inode_blocks || !f->inodes)
        return -ENOMEM;
    for (size_t r = 0; r < l->extents.count; r++) {
        for (uint64_t i = 0; i < extents[r].len; i++)
            f->inode_blocks[extents[r].first + i].addr = extents[r].addr + i;
    }
    return 0;
}

/* Takes the inode blocks of a record that may be wrong: they name their own places. */
static int inodes_take_unproven(struct locate *l, const struct lay_extent *e)
{
    const struct lay_geometry *geo = &l->f->img.geo;
    uint64_t first = lay_get64(e->file_block), block = lay_get64(e->block);
    union lay_block b;
    int err = 0;

    for (uint64_t i = 0; i < lay_get32(e->len) && !err && lay_extent_has_blocks(e); i++) {
        struct lay_extent one = {
            .file_block = lay_put64(first + i), .block = lay_put64(block + i), .len = lay_put32(1)};
        err = image_read(&l->f->img, block + i, &b);
        if (!err && lay_check_head(&b, LAY_MAGIC_INODES, geo->uuid, block + i,
                                   (first + i) * LAY_INODES_PER_BLOCK, NULL) == 0)
            inodes_take_extent(l, &one);
    }
    return err;
}

/* Takes the extents of a damaged tree. */
static int take_salvaged(struct fsck *f, struct locate *l)
{
    struct salvaged s = {0};
    int err = salvage_tree(f, 0, LAY_MAGIC_EXTENTS, lay_get64(f->sb.inode_file.map.tree.root), &s);
    const struct lay_extent *e = s.extents.items;

    fsck_sort_extents(&s.extents);
    for (size_t i = 0; i < s.extents.count && !err; i++) {
        if (lay_get16(e[i].flags) & SALVAGED_UNPROVEN)
            err = inodes_take_unproven(l, &e[i]);
        else
            inodes_take_extent(l, &e[i]);
    }
    salvage_free(&s);
    return err;
}

static int locate_blocks(struct fsck *f)
{
    static const struct walk_ops look = {.damaged = bad_node};
    static const struct walk_ops ops = {.sound = inodes_take_node, .extent = inodes_take_extent};
    struct locate l = {.f = f, .whole = true};
    struct walk_totals totals;
    int err = walk_extents(&f->img, 0, &f->sb.inode_file, &look, &l, &totals);

    if (err == -EUCLEAN)
        err = take_salvaged(f, &l);
    else if (!err)
        err = walk_extents(&f->img, 0, &f->sb.inode_file, &ops, &l, &totals);
    if (l.failed)
        err = -ENOMEM;
    if (!err || err == -EUCLEAN) {
        inodes_check_shape(f, &l, &totals);
        err = store_extents(f, &l);
    }
    free(l.extents.items);
    return err;
}

static int check_inode(struct fsck *f, uint64_t ino, const struct lay_inode *inode)
{
    struct inode_info *info = &f->inodes[ino];

    info->parent = lay_get64(inode->parent);
    info->nlink = lay_get32(inode->nlink);
    info->type = (uint8_t)(lay_get32(inode->mode) >> 12); /* DT_* are these bits of the mode */
    if (lay_get64(inode->next_orphan) != 0)
        info->flags |= INODE_ORPHAN;
    f->inodes_used++;
    return fsck_map(f, ino, inode);
}

/* Marks the inodes of a block that was not found as lost. */
static void mark_unknown(struct fsck *f, uint64_t index)
{
    if (fsck_report(f, PROBLEM_INODE_BLOCK, "not mapped", "inodes %" PRIu64 " to %" PRIu64,
                    index * LAY_INODES_PER_BLOCK,
                    index * LAY_INODES_PER_BLOCK + LAY_INODES_PER_BLOCK - 1))
        f->fix_inode_file = true;
    f->incomplete = true;
    f->inode_blocks[index].damaged = true;
    for (unsigned slot = 0; slot < LAY_INODES_PER_BLOCK; slot++) {
        uint64_t ino = index * LAY_INODES_PER_BLOCK + slot;
        f->inodes[ino].flags |= INODE_UNKNOWN;
        fsck_lose(f, ino, LOSS_INODE);
    }
}

static int inodes_check_block(struct fsck *f, uint64_t index)
{
    struct inode_block_info *info = &f->inode_blocks[index];
    union lay_block b;
    bool save = false;

    if (!info->addr) {
        mark_unknown(f, index);
        return 0;
    }
    int err = image_read(&f->img, info->addr, &b);
    if (err)
        return err;
    fsck_fit_block(f, &b.inodes, index, info->addr, true, &save);
    /* Records that need proof are not sealed before they have it. */
    if (save && !info->reseal)
        err = store_put(f, info->addr, &b);
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
        err = inodes_check_block(f, index);
        fsck_progress(f, "inodes", index + 1, f->inode_block_count);
    }
    if (err || f->incomplete || f->inodes_used == lay_get64(f->sb.inodes))
        return err;
    snprintf(detail, sizeof(detail), "is %" PRIu64 ", counted %" PRIu64, lay_get64(f->sb.inodes),
             f->inodes_used);
    if (fsck_report(f, PROBLEM_SUPER_INODES, detail, "superblock"))
        f->sb.inodes = lay_put64(f->inodes_used);
    return 0;
}
