/* SPDX-License-Identifier: BSD-2-Clause */
/* The pass over the directories checks every name against its inode. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mkfs/fsck/fsck.h"

#define SAME_HASH_MAX 256

/* Names with equal hashes are neighbours; they are kept until the hash changes. */
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
    int err;
    struct same_hash same;
};

/* Returns the name of a record, which is longer than the struct. */
static const uint8_t *name_of(const struct lay_dirent *d)
{
    return (const uint8_t *)d + offsetof(struct lay_dirent, name);
}

static bool dirs_report_name(struct dir_walk *w, enum problem problem, const struct lay_dirent *d)
{
    char name[4 * LAY_NAME_MAX + 1];
    char detail[64];

    snprintf(detail, sizeof(detail), "inode %" PRIu64, lay_get64(d->ino));
    return fsck_report(w->f, problem, detail, "directory %" PRIu64 " name '%s'", w->ino,
                       fsck_printable(name_of(d), d->name_len, name));
}

/* Records a change to an existing name; ino 0 removes it. */
static int fix_name(struct fsck *f, uint64_t dir, uint64_t key, uint64_t ino, uint8_t type)
{
    const struct fsck_name_fix fix = {.dir = dir, .key = key, .ino = ino, .type = type};

    fsck_mark(f, dir, FIX_MAP);
    return fsck_append(&f->name_fixes, &fix, sizeof(fix));
}

static void dirs_remove_name(struct dir_walk *w, bool yes, const struct lay_dirent *d)
{
    if (yes && !w->err)
        w->err = fix_name(w->f, w->ino, lay_get64(d->key), 0, 0);
}

/* Returns false if the name is a duplicate that is to be removed. */
static bool check_twice(struct dir_walk *w, const struct lay_dirent *d)
{
    struct same_hash *same = &w->same;
    uint64_t hash = lay_get64(d->key) >> 8;

    if (hash != same->hash)
        same->count = 0;
    same->hash = hash;
    for (unsigned i = 0; i < same->count; i++) {
        if (same->names[i].len != d->name_len ||
            memcmp(same->names[i].bytes, name_of(d), d->name_len) != 0)
            continue;
        bool yes = dirs_report_name(w, PROBLEM_NAME_TWICE, d);
        dirs_remove_name(w, yes, d);
        return !yes;
    }
    /* Keys with equal hashes differ in their low byte, so there are no more than fit. */
    if (same->count < SAME_HASH_MAX) {
        same->names[same->count].len = d->name_len;
        memcpy(same->names[same->count++].bytes, name_of(d), d->name_len);
    }
    return true;
}

/*
 * Accepts the one name that the child's parent field confirms. Any other name
 * waits until all names are known.
 */
static void check_subdirectory(struct dir_walk *w, const struct lay_dirent *d,
                               struct inode_info *child)
{
    if (child->parent != w->ino) {
        const struct fsck_stray stray = {w->ino, lay_get64(d->key), lay_get64(d->ino)};
        if (fsck_append(&w->f->strays, &stray, sizeof(stray)) != 0)
            w->err = -ENOMEM;
        return;
    }
    if (child->flags & INODE_NAMED) {
        dirs_remove_name(w, dirs_report_name(w, PROBLEM_DIR_TWICE, d), d);
        return;
    }
    child->flags |= INODE_NAMED;
    w->f->inodes[w->ino].found++;
}

/* Recognises lost+found, or its substitute if another file has that name. */
static void look_for_lost_found(struct dir_walk *w, const struct lay_dirent *d,
                                const struct inode_info *child)
{
    static const char name[] = "lost+found.1";
    bool instead = d->name_len == sizeof(name) - 1;

    if (w->ino != LAY_INO_ROOT || (!instead && d->name_len != sizeof(name) - 3) ||
        memcmp(name_of(d), name, d->name_len) != 0)
        return;
    if (child->type == DT_DIR && child->parent == LAY_INO_ROOT && child->nlink > 0)
        w->f->lost_found = lay_get64(d->ino);
    else if (!instead)
        w->f->lost_found_taken = true;
}

static void check_child(struct dir_walk *w, const struct lay_dirent *d, struct inode_info *child)
{
    look_for_lost_found(w, d, child);
    if (child->type != d->type && dirs_report_name(w, PROBLEM_NAME_TYPE, d) && !w->err)
        w->err = fix_name(w->f, w->ino, lay_get64(d->key), lay_get64(d->ino), child->type);
    if (child->type == DT_DIR)
        check_subdirectory(w, d, child);
    else
        child->found++;
}

/* The inode of the name is lost, or the name is wrong. */
static void lose_dangling_name(struct dir_walk *w, const struct lay_dirent *d)
{
    bool yes = dirs_report_name(w, PROBLEM_NAME_DANGLING, d);

    fsck_lose_name(w->f, w->ino, d);
    dirs_remove_name(w, yes, d);
}

static void take_name(void *arg, const struct lay_dirent *d)
{
    struct dir_walk *w = arg;
    uint64_t ino = lay_get64(d->ino);

    w->f->inodes[w->ino].flags |= INODE_HAS_NAMES;
    if (!check_twice(w, d))
        return;
    struct inode_info *child = ino < fsck_inode_limit(w->f) ? &w->f->inodes[ino] : NULL;
    if (child && child->flags & INODE_UNKNOWN) {
        w->f->inodes[w->ino].found += d->type == DT_DIR;
        return;
    }
    if (child && child->type != 0)
        check_child(w, d, child);
    else
        lose_dangling_name(w, d);
}

static bool dirs_claim_node(void *arg, uint64_t addr)
{
    struct dir_walk *w = arg;

    if (fsck_claim(w->f, w->ino, addr))
        return true;
    if (w->f->agreed)
        fsck_mark(w->f, w->ino, FIX_MAP);
    return false;
}

static enum problem dirs_kind_of_damage(const char *why)
{
    if (strcmp(why, IMAGE_STALE_WHY) == 0)
        return PROBLEM_STALE;
    if (strstr(why, "out of order"))
        return PROBLEM_DIR_ORDER;
    if (strncmp(why, "dirent.key: not the hash", 24) == 0)
        return PROBLEM_NAME_HASH;
    return strncmp(why, "dirent", 6) == 0 ? PROBLEM_NAME_INVALID : PROBLEM_DIR_NODE;
}

static void dirs_report_damage(void *arg, uint64_t addr, const char *why)
{
    struct dir_walk *w = arg;

    w->f->incomplete = true;
    fsck_lose(w->f, w->ino, LOSS_NAMES);
    if (fsck_report(w->f, dirs_kind_of_damage(why), why, "inode %" PRIu64 " " FSCK_AT, w->ino,
                    FSCK_AT_OF(addr)))
        fsck_mark(w->f, w->ino, FIX_MAP);
}

static int check_directory(void *arg, uint64_t ino, const struct lay_inode *inode)
{
    static const struct walk_ops ops = {
        .sound = dirs_claim_node, .damaged = dirs_report_damage, .name = take_name};
    struct dir_walk *w = arg;
    struct walk_totals totals;

    w->ino = ino;
    w->same.count = 0;
    int err = walk_names(&w->f->img, ino, inode, &ops, w, &totals);
    if (err == 0)
        fsck_check_counts(w->f, ino, inode, &totals);
    else
        w->f->incomplete = true;
    return err && err != -EUCLEAN ? err : w->err;
}

/*
 * Accepts the first stray name of a directory if its parent does not name it.
 */
static int judge_stray(struct fsck *f, const struct fsck_stray *s)
{
    struct inode_info *child = &f->inodes[s->ino];

    if (child->flags & INODE_NAMED) {
        if (!fsck_report(f, PROBLEM_DIR_TWICE, NULL, "inode %" PRIu64 " in directory %" PRIu64,
                         s->ino, s->dir))
            return 0;
        return fix_name(f, s->dir, s->key, 0, 0);
    }
    child->flags |= INODE_NAMED;
    f->inodes[s->dir].found++;
    if (!fsck_report(f, PROBLEM_DIR_PARENT, NULL, "inode %" PRIu64 " in directory %" PRIu64, s->ino,
                     s->dir))
        return 0;
    child->parent = s->dir;
    fsck_mark(f, s->ino, FIX_PARENT);
    return 0;
}

int fsck_directories(struct fsck *f)
{
    struct dir_walk *w = calloc(1, sizeof(*w));

    if (!w)
        return -ENOMEM;
    w->f = f;
    int err = fsck_each_inode(f, "directories", DT_DIR, 0, check_directory, w);
    free(w);
    const struct fsck_stray *strays = f->strays.items;
    /* An unreadable directory may hold the name that the parent field confirms. */
    for (size_t i = 0; i < f->strays.count && !f->incomplete && !err; i++)
        err = judge_stray(f, &strays[i]);
    return err;
}
