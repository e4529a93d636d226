/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checks that need all inodes and all names: link counts, the path to the root,
 * the two lists.
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>

#include "mkfs/fsck/fsck.h"

static void check_nlink(struct fsck *f, uint64_t ino)
{
    const struct inode_info *info = &f->inodes[ino];
    bool is_dir = info->type == DT_DIR;
    bool named = ino == LAY_INO_ROOT || (is_dir ? info->flags & INODE_NAMED : info->found > 0);
    uint32_t expected = info->found + (is_dir ? 2 : 0);
    char detail[64];

    if (info->fix & (FIX_CLEAR | FIX_ATTACH))
        return;
    if (info->nlink == 0) {
        if (is_dir && info->flags & INODE_HAS_NAMES)
            fsck_want(f, PROBLEM_DIR_ORPHAN, NULL, ino,
                      FIX_NLINK | FIX_LIVE | (named ? 0 : FIX_ATTACH));
        if (!named)
            return;
    } else if (!named) {
        fsck_want(f, PROBLEM_UNREFERENCED, NULL, ino, FIX_ATTACH);
        return;
    }
    if (info->nlink == expected)
        return;
    snprintf(detail, sizeof(detail), "is %" PRIu32 ", counted %" PRIu32, info->nlink, expected);
    fsck_want(f, PROBLEM_NLINK, detail, ino, FIX_NLINK | (info->nlink == 0 ? FIX_LIVE : 0));
}

/*
 * Follows parents up to a directory known to be reachable. Returns false in a
 * loop or dead end; *last is the last directory before it.
 */
static bool reaches_root(struct fsck *f, uint64_t ino, uint64_t *last)
{
    while (ino < fsck_inode_limit(f) && f->inodes[ino].type == DT_DIR) {
        struct inode_info *info = &f->inodes[ino];
        if (info->flags & INODE_REACHED)
            return true;
        if (info->flags & INODE_ON_PATH)
            return false;
        info->flags |= INODE_ON_PATH;
        *last = ino;
        ino = info->parent;
    }
    /* A directory whose inode is unreadable may be connected to the root. */
    return ino < fsck_inode_limit(f) && f->inodes[ino].flags & INODE_UNKNOWN;
}

/* Removes the marks of the walk, so that each directory is walked only once. */
static void end_path(struct fsck *f, uint64_t ino, bool reached, uint64_t last)
{
    while (ino < fsck_inode_limit(f) && f->inodes[ino].flags & INODE_ON_PATH) {
        struct inode_info *info = &f->inodes[ino];
        info->flags &= (uint16_t)~INODE_ON_PATH;
        /* Attaching the last directory rescues those below it, too. */
        if (!reached && info->nlink != 0 && ino == last)
            fsck_want(f, PROBLEM_DIR_LOOP, NULL, ino, FIX_ATTACH);
        /* Directories below it are not reported again. */
        info->flags |= INODE_REACHED;
        ino = info->parent;
    }
}

static void check_connected(struct fsck *f, uint64_t ino)
{
    uint64_t last = ino;

    if (f->inodes[ino].type != DT_DIR || f->inodes[ino].flags & INODE_REACHED)
        return;
    bool reached = reaches_root(f, ino, &last);
    end_path(f, ino, reached, last);
}

static void walk_free_list(struct fsck *f)
{
    uint64_t index = lay_get64(f->sb.free_inode_block);

    while (index != LAY_NONE) {
        struct inode_block_info *info =
            index < f->inode_block_count ? &f->inode_blocks[index] : NULL;
        if (info && info->damaged) {
            f->incomplete = true;
            return;
        }
        if (!info || info->on_list || !info->has_free) {
            f->fix_free_list =
                fsck_report(f, PROBLEM_FREE_LIST, NULL, "inode-file block %" PRIu64, index);
            f->free_list_cut = true;
            return;
        }
        info->on_list = true;
        index = info->next_free;
    }
}

static void check_free_list(struct fsck *f)
{
    bool cut = f->incomplete || f->free_list_cut;

    for (uint64_t index = 0; index < f->inode_block_count; index++) {
        const struct inode_block_info *info = &f->inode_blocks[index];
        /* Blocks after a break in the list are not expected on it. */
        if (info->has_free && !info->on_list && !info->damaged && !cut &&
            fsck_report(f, PROBLEM_FREE_LIST_MISSING, NULL, "inode-file block %" PRIu64, index))
            f->fix_free_list = true;
    }
}

static int next_orphan(struct fsck *f, uint64_t ino, uint64_t *next)
{
    union lay_block b;
    int err = fsck_load_block(f, ino / LAY_INODES_PER_BLOCK, &b);

    if (!err)
        *next = lay_get64(b.inodes.inodes[ino % LAY_INODES_PER_BLOCK].next_orphan);
    return err;
}

static int walk_orphans(struct fsck *f)
{
    uint64_t ino = lay_get64(f->sb.orphan);
    int err = 0;

    while (ino != LAY_NONE && !err) {
        struct inode_info *info = ino < fsck_inode_limit(f) ? &f->inodes[ino] : NULL;
        if (info && info->flags & INODE_UNKNOWN)
            return 0;
        if (!info || !(info->flags & INODE_ORPHAN) || info->flags & INODE_ON_LIST) {
            f->fix_orphans = fsck_report(f, PROBLEM_ORPHAN_LIST, NULL, "inode %" PRIu64, ino);
            return 0;
        }
        info->flags |= INODE_ON_LIST;
        err = next_orphan(f, ino, &ino);
    }
    return err;
}

int fsck_links(struct fsck *f)
{
    int err = walk_orphans(f);

    if (err)
        return err;
    walk_free_list(f);
    check_free_list(f);
    if (LAY_INO_ROOT < fsck_inode_limit(f))
        f->inodes[LAY_INO_ROOT].flags |= INODE_REACHED;
    for (uint64_t ino = LAY_INO_ROOT; ino < fsck_inode_limit(f); ino++) {
        const struct inode_info *info = &f->inodes[ino];
        if (info->type == 0)
            continue;
        if ((info->flags & (INODE_ORPHAN | INODE_ON_LIST)) == INODE_ORPHAN && !f->incomplete &&
            fsck_report(f, PROBLEM_ORPHAN_MISSING, NULL, "inode %" PRIu64, ino))
            f->fix_orphans = true;
        /* An unreadable directory may hold the missing names. */
        if (f->incomplete)
            continue;
        check_connected(f, ino);
        check_nlink(f, ino);
    }
    return 0;
}
