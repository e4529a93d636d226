/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Rebuilds a directory from its valid names, minus those to be removed, plus
 * those to be added.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "mkfs/fsck/salvage.h"

#define NUMBERS  256  /* maximum number of names with equal hashes */
#define ATTEMPTS 1000 /* names tried for one inode */

static bool same_bytes(const struct salvaged *s, const struct salvaged_name *a,
                       const struct salvaged_name *b)
{
    return a->len == b->len && memcmp(salvaged_bytes(s, a), salvaged_bytes(s, b), a->len) == 0;
}

/* Applies the passes' decision about a name. Returns false if the name is removed. */
static bool apply_fix(const struct fsck *f, uint64_t dir, struct salvaged_name *n)
{
    const struct fsck_name_fix *fix = f->name_fixes.items;

    for (size_t i = 0; i < f->name_fixes.count; i++) {
        if (fix[i].dir != dir || fix[i].key == 0 || fix[i].key != n->key)
            continue;
        if (fix[i].ino == 0)
            return false;
        n->type = fix[i].type;
    }
    return true;
}

/*
 * Checks a name against its inode, which decides whether it stays and with
 * which type. The record may never have been checked.
 */
static bool fits_inode(const struct fsck *f, struct salvaged_name *n)
{
    if (n->ino >= f->img.geo.blocks * LAY_INODES_PER_BLOCK)
        return false;
    const struct inode_info *info = n->ino < fsck_inode_limit(f) ? &f->inodes[n->ino] : NULL;
    if (info && info->type != 0)
        n->type = info->type;
    switch (n->type) {
    case 1: /* the types of FORMAT.md 7 */
    case 2:
    case 4:
    case 6:
    case 8:
    case 10:
    case 12:
        return true;
    default:
        return false;
    }
}

static void keep_names(struct fsck *f, uint64_t dir, struct salvaged *s)
{
    struct salvaged_name *n = s->names.items;
    size_t kept = 0;

    for (size_t i = 0; i < s->names.count; i++) {
        const char *bytes = (const char *)salvaged_bytes(s, &n[i]);
        uint64_t hash = lay_name_key(f->img.geo.hash_seed, bytes, n[i].len);
        if (!apply_fix(f, dir, &n[i]) || !fits_inode(f, &n[i]))
            continue;
        /* The number stays if the hash is right, because readers use it as a position. */
        if ((n[i].key & ~UINT64_C(0xff)) != hash)
            n[i].key = hash;
        n[kept++] = n[i];
    }
    s->names.count = kept;
}

static bool directory_is_taken(const struct salvaged *s, const char *name, size_t len)
{
    const struct salvaged_name *n = s->names.items;

    for (size_t i = 0; i < s->names.count; i++) {
        if (n[i].len == len && memcmp(salvaged_bytes(s, &n[i]), name, len) == 0)
            return true;
    }
    return false;
}

static void new_name(const struct fsck *f, const struct fsck_name_fix *fix, unsigned attempt,
                     char name[64])
{
    char tail[16] = "";

    if (attempt > 0)
        snprintf(tail, sizeof(tail), ".%u", attempt);
    if (fix->kind == FSCK_NAME_LOST_FOUND)
        snprintf(name, 64, "lost+found%s", f->lost_found_taken ? ".1" : "");
    else if (fix->kind == FSCK_NAME_JOURNAL || fix->kind == FSCK_NAME_REPORT)
        snprintf(name, 64, "%s-%" PRIu64 "%s", fix->kind == FSCK_NAME_REPORT ? "report" : "journal",
                 f->next_tid, tail);
    else
        snprintf(name, 64, "#%" PRIu64 "%s", fix->ino, tail);
}

static int directory_add_name(struct fsck *f, const struct fsck_name_fix *fix, struct salvaged *s)
{
    struct salvaged_name n = {.ino = fix->ino, .type = fix->type};
    char name[64];

    for (unsigned attempt = 0; attempt < ATTEMPTS; attempt++) {
        new_name(f, fix, attempt, name);
        if (!directory_is_taken(s, name, strlen(name)))
            break;
    }
    n.len = (uint8_t)strlen(name);
    n.key = lay_name_key(f->img.geo.hash_seed, name, n.len);
    return salvage_add(s, &n, name);
}

static int add_names(struct fsck *f, uint64_t dir, struct salvaged *s)
{
    const struct fsck_name_fix *fix = f->name_fixes.items;
    int err = 0;

    for (size_t i = 0; i < f->name_fixes.count && !err; i++) {
        if (fix[i].dir == dir && fix[i].key == 0)
            err = directory_add_name(f, &fix[i], s);
    }
    return err;
}

/*
 * Assigns ascending numbers to names with equal hashes, as close to their own
 * numbers as possible. Removes duplicates and names beyond NUMBERS. Returns how
 * many are left.
 */
static size_t number_names(const struct salvaged *s, struct salvaged_name *n, size_t count)
{
    uint64_t hash = n->key & ~UINT64_C(0xff);
    uint64_t next = hash;
    size_t kept = 0;

    for (size_t i = 0; i < count; i++) {
        bool twice = false;
        for (size_t k = 0; k < kept && !twice; k++)
            twice = same_bytes(s, &n[k], &n[i]);
        if (twice || kept == NUMBERS)
            continue;
        n[kept] = n[i];
        if (n[kept].key < next)
            n[kept].key = next;
        next = n[kept++].key + 1;
    }
    /* If the numbers became too high, count from the first number instead. */
    for (size_t k = 0; k < kept && next > hash + NUMBERS; k++)
        n[k].key = hash + k;
    return kept;
}

static int build_name(struct build *b, const struct salvaged *s, const struct salvaged_name *n)
{
    union {
        struct lay_dirent d;
        uint8_t bytes[LAY_DIRENT_LEN(LAY_NAME_MAX)];
    } r;
    size_t len = LAY_DIRENT_LEN(n->len);

    memset(&r, 0, sizeof(r));
    r.d.key = lay_put64(n->key);
    r.d.ino = lay_put64(n->ino);
    r.d.len = lay_put16((uint16_t)len);
    r.d.type = n->type;
    r.d.name_len = n->len;
    memcpy(r.bytes + offsetof(struct lay_dirent, name), salvaged_bytes(s, n), n->len);
    return build_add(b, n->key, &r, len);
}

static int build_names(struct build *b, void *arg)
{
    struct salvaged *s = arg;
    struct salvaged_name *n = s->names.items;
    size_t count = s->names.count;
    int err = 0;

    fsck_sort(&s->names, sizeof(*n));
    for (size_t i = 0, same; i < count && !err; i += same) {
        for (same = 1; i + same < count && n[i + same].key >> 8 == n[i].key >> 8;)
            same++;
        size_t kept = number_names(s, n + i, same);
        for (size_t k = 0; k < kept && !err; k++)
            err = build_name(b, s, &n[i + k]);
    }
    return err;
}

int fsck_rebuild_dir(struct fsck *f, uint64_t ino, struct lay_inode *inode)
{
    struct salvaged s = {0};
    struct build b;
    int err = salvage_tree(f, ino, LAY_MAGIC_DIR, lay_get64(inode->map.tree.root), &s);

    if (!err) {
        keep_names(f, ino, &s);
        err = add_names(f, ino, &s);
    }
    if (!err)
        err = build_tree(&b, f, LAY_MAGIC_DIR, ino, &s.nodes, build_names, &s);
    salvage_free(&s);
    if (err)
        return err;
    inode->map_height = lay_put16((uint16_t)b.height);
    inode->map.tree.root = lay_put64(b.root);
    inode->map.tree.blocks = lay_put64(b.nodes);
    inode->map.tree.entries = lay_put64(b.entries);
    inode->size = lay_put64(b.nodes << LAY_BLOCK_SHIFT);
    return 0;
}
