/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checks what an inode refers to: extents, attributes, the target of a link.
 * Names come later.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "mkfs/fsck/fsck.h"

/* Room for a copy of every attribute name of one inode. */
#define XATTR_NAMES_MAX (LAY_XATTR_BLOCKS_MAX * LAY_PAYLOAD)

struct map_walk {
    struct fsck *f;
    uint64_t ino;
    bool proposed;       /* the records of the inode need proof, and claim nothing yet */
    enum problem damage; /* problem to report for a damaged block */
    bool gpu_bound;
    uint64_t size;                 /* of the file, bytes */
    uint64_t data;                 /* blocks of all extents */
    uint64_t file_end, device_end; /* ends of the previous extent */
    int err;
    struct fsck_list parts; /* of large values of attributes */
    size_t names_len;
    uint8_t names[XATTR_NAMES_MAX]; /* length, name, length, name, ... */
};

static bool references_claim_node(void *arg, uint64_t addr)
{
    struct map_walk *w = arg;

    if (fsck_claim(w->f, w->ino, addr))
        return true;
    if (w->f->agreed)
        fsck_mark(w->f, w->ino, w->damage == PROBLEM_XATTR_BLOCK ? FIX_XATTR : FIX_MAP);
    return false;
}

/* Maps the wrong field that a check names to a problem. */
static enum problem references_kind_of_damage(enum problem general, const char *why)
{
    if (strcmp(why, IMAGE_STALE_WHY) == 0)
        return PROBLEM_STALE;
    if (general == PROBLEM_XATTR_BLOCK && strncmp(why, "xattr", 5) == 0)
        return PROBLEM_XATTR_RECORD;
    if (general != PROBLEM_TREE_NODE)
        return general;
    if (strncmp(why, "branch.key", 10) == 0 || strncmp(why, "extent.file_block:", 18) == 0)
        return PROBLEM_TREE_ORDER;
    return strncmp(why, "extent.", 7) == 0 ? PROBLEM_TREE_EXTENT : PROBLEM_TREE_NODE;
}

static void references_report_damage(void *arg, uint64_t addr, const char *why)
{
    struct map_walk *w = arg;
    uint16_t fix = FIX_MAP;

    if (w->damage == PROBLEM_XATTR_BLOCK)
        fix = FIX_XATTR;
    else if (w->damage == PROBLEM_SYMLINK_BLOCK && strcmp(why, "checksum") != 0 &&
             strcmp(why, IMAGE_STALE_WHY) != 0)
        fix = FIX_CLEAR;
    if (w->damage != PROBLEM_TREE_NODE)
        fsck_lose(w->f, w->ino, fix == FIX_XATTR ? LOSS_XATTRS : LOSS_TARGET);
    w->f->incomplete = true;
    if (fsck_report(w->f, references_kind_of_damage(w->damage, why), why,
                    "inode %" PRIu64 " " FSCK_AT, w->ino, FSCK_AT_OF(addr)))
        fsck_mark(w->f, w->ino, fix);
}

static void check_units(struct map_walk *w, uint64_t file_block, uint64_t block)
{
    bool continues = file_block == w->file_end && block == w->device_end;
    bool aligned = file_block % LAY_GPU_ALIGN == 0 && block % LAY_GPU_ALIGN == 0;
    bool before_whole = w->file_end % LAY_GPU_ALIGN == 0;

    if ((block == LAY_NONE || (!continues && !(aligned && before_whole))) &&
        fsck_report(w->f, PROBLEM_GPU_ALIGNMENT, NULL, "inode %" PRIu64 " file block %" PRIu64,
                    w->ino, file_block))
        fsck_mark(w->f, w->ino, FIX_GPU);
}

static void references_take_extent(void *arg, const struct lay_extent *e)
{
    struct map_walk *w = arg;
    uint64_t file_block = lay_get64(e->file_block);
    uint64_t block = lay_get64(e->block);
    uint64_t len = lay_get32(e->len);

    struct fsck_extent extent = {
        .ino = w->ino,
        .size = w->size,
        .file_block = file_block,
        .block = block,
        .len = len,
        .damaged = lay_get16(e->flags) & LAY_EXTENT_DAMAGED,
    };
    fsck_look_for_losses(w->f, &extent);
    if (w->gpu_bound)
        check_units(w, file_block, block);
    if (!lay_extent_has_blocks(e) || w->proposed)
        return;
    int err = fsck_claim_data(w->f, w->ino, file_block, block, len);
    w->err = w->err ? w->err : err;
    w->data += len;
    w->file_end = file_block + len;
    w->device_end = block + len;
}

static int references_check_extents(struct map_walk *w, const struct lay_inode *inode)
{
    static const struct walk_ops ops = {.sound = references_claim_node,
                                        .damaged = references_report_damage,
                                        .extent = references_take_extent};
    struct walk_totals totals;

    w->damage = PROBLEM_TREE_NODE;
    w->size = lay_get64(inode->size);
    w->gpu_bound = lay_get32(inode->flags) & LAY_INODE_GPU_BOUND;
    w->proposed =
        w->f->inodes[w->ino].flags & INODE_DOUBTED && lay_get16(inode->map_kind) == LAY_MAP_INLINE;
    int err = walk_extents(&w->f->img, w->ino, inode, &ops, w, &totals);
    if (err || w->err)
        return err ? err : w->err;
    if (w->gpu_bound && w->file_end % LAY_GPU_ALIGN != 0)
        fsck_want(w->f, PROBLEM_GPU_ALIGNMENT, "end of the last extent", w->ino, FIX_GPU);
    if (lay_get16(inode->map_kind) == LAY_MAP_TREE)
        fsck_check_counts(w->f, w->ino, inode, &totals);
    return 0;
}

static bool seen_name(const struct map_walk *w, const char *name, uint8_t len)
{
    for (size_t pos = 0; pos < w->names_len; pos += 1u + w->names[pos]) {
        if (w->names[pos] == len && memcmp(w->names + pos + 1, name, len) == 0)
            return true;
    }
    return false;
}

static void take_xattr(void *arg, const struct lay_xattr *x)
{
    struct map_walk *w = arg;
    const char *name = lay_xattr_name(x);

    if (seen_name(w, name, x->name_len)) {
        fsck_want(w->f, PROBLEM_XATTR_TWICE, NULL, w->ino, FIX_XATTR);
        return;
    }
    /* A record is longer than its name, and the array is as long as all records. */
    w->names[w->names_len] = x->name_len;
    memcpy(w->names + w->names_len + 1, name, x->name_len);
    w->names_len += 1u + x->name_len;
    if (fsck_add_part(&w->parts, x))
        w->f->no_memory = true;
}

/* A value that lacks a part cannot be read. */
static void references_check_parts(struct map_walk *w)
{
    size_t broken = fsck_judge_parts(&w->parts);
    char detail[64];

    if (broken == 0)
        return;
    snprintf(detail, sizeof(detail), "values: %zu", broken);
    bool yes = fsck_report(w->f, PROBLEM_XATTR_PARTS, detail, "inode %" PRIu64, w->ino);
    if (yes) {
        fsck_mark(w->f, w->ino, FIX_XATTR);
        fsck_lose(w->f, w->ino, LOSS_XATTRS);
    }
}

static int check_xattrs(struct map_walk *w, const struct lay_inode *inode)
{
    static const struct walk_ops ops = {
        .sound = references_claim_node, .damaged = references_report_damage, .xattr = take_xattr};
    struct walk_totals totals;
    uint64_t before = fsck_problems(w->f);

    w->damage = PROBLEM_XATTR_BLOCK;
    int err = walk_xattrs(&w->f->img, w->ino, inode, &ops, w, &totals);
    if (err == -EUCLEAN && before == fsck_problems(w->f))
        fsck_want(w->f, PROBLEM_XATTR_CHAIN, NULL, w->ino, FIX_XATTR);
    /*
     * If a fault was found, the missing parts may be in blocks that are still
     * to be repaired. The blocks of a removed inode are freed in several
     * transactions, and the next mount frees the rest.
     */
    if (!err && before == fsck_problems(w->f) && lay_get32(inode->nlink) > 0)
        references_check_parts(w);
    free(w->parts.items);
    return err;
}

static int check_target(struct map_walk *w, const struct lay_inode *inode)
{
    uint64_t addr = lay_get64(inode->map.link.block);
    uint64_t size = lay_get64(inode->size);
    const char *why = IMAGE_STALE_WHY;
    union lay_block b;

    int err = image_read(&w->f->img, addr, &b);
    if (err)
        return err;
    w->damage = PROBLEM_SYMLINK_BLOCK;
    if (w->f->img.age == IMAGE_AGE_STALE ||
        lay_check_symlink_block(&w->f->img.geo, &b.symlink, addr, w->ino, &why) != 0) {
        references_report_damage(w, addr, why);
        return -EUCLEAN;
    }
    fsck_claim(w->f, w->ino, addr);
    if (lay_get32(b.symlink.len) != (size < LAY_PAYLOAD ? size : LAY_PAYLOAD))
        fsck_want(w->f, PROBLEM_SYMLINK_LENGTH, NULL, w->ino, FIX_SIZE);
    return 0;
}

/* A directory's nodes are walked with its names, when all inodes are known. */
static int check_contents(struct map_walk *w, const struct lay_inode *inode)
{
    switch (lay_get16(inode->map_kind)) {
    case LAY_MAP_INLINE:
    case LAY_MAP_TREE:
        return references_check_extents(w, inode);
    case LAY_MAP_LINK:
        return check_target(w, inode);
    default:
        return 0;
    }
}

int fsck_map(struct fsck *f, uint64_t ino, const struct lay_inode *inode)
{
    struct map_walk w;
    char detail[64];

    /* Clears all but the array of names, which is filled before it is read. */
    memset(&w, 0, offsetof(struct map_walk, names));
    w.f = f;
    w.ino = ino;
    int err = check_contents(&w, inode);
    if (err && err != -EUCLEAN)
        return err;
    int xattr_err = check_xattrs(&w, inode);
    if (xattr_err && xattr_err != -EUCLEAN)
        return xattr_err;
    /* If the map is rebuilt, the new map determines the count. */
    if (err || xattr_err || w.data == lay_get64(inode->blocks) || w.proposed ||
        f->inodes[ino].fix & FIX_COUNTS)
        return 0;
    snprintf(detail, sizeof(detail), "is %" PRIu64 ", counted %" PRIu64, lay_get64(inode->blocks),
             w.data);
    fsck_want(f, PROBLEM_INODE_BLOCKS, detail, ino, FIX_COUNTS);
    return 0;
}
