/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The pass over the directories: every name, and whether its inode agrees.
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mkfs/fsck.h"

#define SAME_HASH_MAX 256

/* Names of one hash are neighbours; they are kept until the hash changes. */
struct same_hash {
    uint64_t hash;
    unsigned count;
    struct {
        uint8_t len;
        uint8_t bytes[LAY_NAME_MAX];
    } names[SAME_HASH_MAX];
};

struct dir_walk {
    struct fsck *f;
    uint64_t ino;
    uint32_t subdirectories;
    struct same_hash same;
};

/* The name of a record, which is longer than the struct. */
static const uint8_t *name_of(const struct lay_dirent *d)
{
    return (const uint8_t *)d + offsetof(struct lay_dirent, name);
}

/* A name as a terminal can show it: each byte outside printable ASCII as \xNN. */
static const char *printable(const uint8_t *name, unsigned len, char *out)
{
    char *to = out;

    for (unsigned i = 0; i < len; i++) {
        if (name[i] < 0x20 || name[i] >= 0x7f || name[i] == '\\')
            to += sprintf(to, "\\x%02x", name[i]);
        else
            *to++ = (char)name[i];
    }
    *to = 0;
    return out;
}

static void report_name(struct dir_walk *w, enum problem problem, const struct lay_dirent *d)
{
    char name[4 * LAY_NAME_MAX + 1];
    char detail[64];

    snprintf(detail, sizeof(detail), "inode %" PRIu64, lay_get64(d->ino));
    fsck_report(w->f, problem, detail, "directory %" PRIu64 " name '%s'", w->ino,
                printable(name_of(d), d->name_len, name));
}

static void check_twice(struct dir_walk *w, const struct lay_dirent *d)
{
    struct same_hash *same = &w->same;
    uint64_t hash = lay_get64(d->key) >> 8;

    if (hash != same->hash)
        same->count = 0;
    same->hash = hash;
    for (unsigned i = 0; i < same->count; i++) {
        if (same->names[i].len == d->name_len &&
            memcmp(same->names[i].bytes, name_of(d), d->name_len) == 0)
            report_name(w, PROBLEM_NAME_TWICE, d);
    }
    /* Keys of one hash differ in their low byte, so there are no more than fit. */
    if (same->count < SAME_HASH_MAX) {
        same->names[same->count].len = d->name_len;
        memcpy(same->names[same->count++].bytes, name_of(d), d->name_len);
    }
}

static void check_subdirectory(struct dir_walk *w, const struct lay_dirent *d,
                               struct inode_info *child)
{
    w->subdirectories++;
    if (child->flags & INODE_NAMED)
        report_name(w, PROBLEM_DIR_TWICE, d);
    child->flags |= INODE_NAMED;
    if (child->parent != w->ino)
        report_name(w, PROBLEM_DIR_PARENT, d);
}

static void take_name(void *arg, const struct lay_dirent *d)
{
    struct dir_walk *w = arg;
    uint64_t ino = lay_get64(d->ino);

    w->f->inodes[w->ino].flags |= INODE_HAS_NAMES;
    check_twice(w, d);
    struct inode_info *child = ino < fsck_inode_limit(w->f) ? &w->f->inodes[ino] : NULL;
    if (child && child->flags & INODE_UNKNOWN) {
        w->subdirectories += d->type == DT_DIR;
        return;
    }
    if (!child || child->type == 0) {
        report_name(w, PROBLEM_NAME_DANGLING, d);
        return;
    }
    if (child->type != d->type)
        report_name(w, PROBLEM_NAME_TYPE, d);
    if (child->type == DT_DIR)
        check_subdirectory(w, d, child);
    else
        child->found++;
}

static bool claim_node(void *arg, uint64_t block)
{
    struct dir_walk *w = arg;

    return fsck_claim(w->f, w->ino, block, 1);
}

static void report_damage(void *arg, uint64_t block, const char *why)
{
    struct dir_walk *w = arg;

    w->f->incomplete = true;
    fsck_report(w->f, PROBLEM_DIR_NODE, why, "inode %" PRIu64 " block %" PRIu64, w->ino, block);
}

static void check_counts(struct dir_walk *w, const struct lay_inode *inode,
                         const struct walk_totals *totals)
{
    char detail[128];
    uint64_t nodes = lay_get64(inode->map.tree.blocks);
    uint64_t entries = lay_get64(inode->map.tree.entries);

    if (totals->nodes == nodes && totals->entries == entries)
        return;
    snprintf(detail, sizeof(detail),
             "%" PRIu64 " nodes and %" PRIu64 " names, counted %" PRIu64 " and %" PRIu64, nodes,
             entries, totals->nodes, totals->entries);
    fsck_report(w->f, PROBLEM_DIR_COUNTS, detail, "inode %" PRIu64, w->ino);
}

static int check_directory(struct dir_walk *w, uint64_t ino, const struct lay_inode *inode)
{
    static const struct walk_ops ops = {
        .visit = claim_node, .damaged = report_damage, .name = take_name};
    struct walk_totals totals;

    w->ino = ino;
    w->subdirectories = 0;
    w->same.count = 0;
    int err = walk_names(&w->f->img, ino, inode, &ops, w, &totals);
    w->f->inodes[ino].found = w->subdirectories;
    if (err == 0)
        check_counts(w, inode, &totals);
    else
        w->f->incomplete = true;
    return err == -EUCLEAN ? 0 : err;
}

/* Reads an inode block again; it was sound in the pass before. */
static int check_block(struct dir_walk *w, uint64_t index)
{
    struct fsck *f = w->f;
    const struct inode_block_info *info = &f->inode_blocks[index];
    union image_block b;
    int err = info->damaged ? 0 : image_read(&f->img, info->addr, &b);

    for (unsigned slot = 0; slot < LAY_INODES_PER_BLOCK && !err && !info->damaged; slot++) {
        uint64_t ino = index * LAY_INODES_PER_BLOCK + slot;
        if (f->inodes[ino].type == DT_DIR)
            err = check_directory(w, ino, &b.inodes.inodes[slot]);
    }
    return err;
}

int fsck_directories(struct fsck *f)
{
    struct dir_walk *w = calloc(1, sizeof(*w));
    int err = w ? 0 : -ENOMEM;

    for (uint64_t index = 0; index < f->inode_block_count && !err; index++) {
        w->f = f;
        err = check_block(w, index);
        fsck_progress(f, "directories", index + 1, f->inode_block_count);
    }
    free(w);
    return err;
}
