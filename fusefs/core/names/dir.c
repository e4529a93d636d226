/* SPDX-License-Identifier: BSD-2-Clause */
/* Directories store names in a B+tree ordered by hash. */
#include "fusefs/core/names/dir.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <string.h>

#include "fusefs/core/journal/ops.h"
#include "fusefs/core/map/tree.h"

/* Names with equal hashes are numbered in the low byte of their keys. */
#define SAME_HASH 0xffull

int ffs_name_check(const char *s, struct ffs_name *out)
{
    *out = (struct ffs_name){s, strnlen(s, LAY_NAME_MAX + 1)};
    if (out->len == 0)
        return -ENOENT;
    if (out->len > LAY_NAME_MAX)
        return -ENAMETOOLONG;
    return lay_name_ok(s, out->len) ? 0 : -EINVAL;
}

static int dir_seek(struct ffs_inode *dir, uint64_t key, struct ffs_cursor *c)
{
    if (!ffs_is_dir(dir))
        return -ENOTDIR;
    return ffs_cursor_seek(dir, key, c);
}

/* Searches the names with one hash. *key becomes the first unused number. */
static int dir_find_among(struct ffs_cursor *c, struct ffs_name name, uint64_t *key,
                          const struct lay_dirent **out)
{
    uint64_t last = *key | SAME_HASH;

    for (;;) {
        const struct lay_dirent *d;
        int err = ffs_cursor_dirent(c, &d);
        if (err)
            return err;
        uint64_t at = lay_get64(d->key);
        if (at > last)
            return -ENOENT;
        if (d->name_len == name.len && memcmp(d->name, name.s, name.len) == 0) {
            *out = d;
            return 0;
        }
        if (at == *key)
            ++*key;
        ffs_cursor_skip(c, lay_get16(d->len));
    }
}

int ffs_dir_find(struct ffs_inode *dir, struct ffs_name name, struct ffs_entry *out)
{
    const struct lay_geometry *geo = ffs_geometry(dir->fs);
    uint64_t hash = lay_name_key(geo->hash_seed, name.s, name.len);
    const struct lay_dirent *d = NULL;
    struct ffs_cursor c;
    uint64_t key = hash;

    int err = dir_seek(dir, hash, &c);
    if (err)
        return err;
    err = dir_find_among(&c, name, &key, &d);
    if (err == -ENOENT)
        *out = (struct ffs_entry){.key = key <= (hash | SAME_HASH) ? key : 0};
    else if (!err)
        *out = (struct ffs_entry){lay_get64(d->key), lay_get64(d->ino), d->type};
    ffs_cursor_drop(&c);
    return err;
}

int ffs_dir_insert(struct ffs_tx *tx, struct ffs_inode *dir, struct ffs_name name,
                   const struct ffs_entry *entry)
{
    union {
        struct lay_dirent d;
        uint8_t bytes[LAY_DIRENT_LEN(LAY_NAME_MAX)];
    } record;
    size_t len = LAY_DIRENT_LEN(name.len);
    struct ffs_cursor c;

    assert(name.len >= 1 && name.len <= LAY_NAME_MAX);
    if (entry->key == 0)
        return -ENOSPC;
    memset(&record, 0, sizeof(record));
    record.d.key = lay_put64(entry->key);
    record.d.ino = lay_put64(entry->ino);
    record.d.len = lay_put16((uint16_t)len);
    record.d.type = entry->type;
    record.d.name_len = (uint8_t)name.len;
    memcpy(record.bytes + offsetof(struct lay_dirent, name), name.s, name.len);

    int err = dir_seek(dir, entry->key, &c);
    return err ? err : ffs_tree_insert(tx, &c, &record, len);
}

/* Moves the cursor to the record with exactly this key. */
static int dir_seek_exact(struct ffs_inode *dir, uint64_t key, struct ffs_cursor *c)
{
    const struct lay_dirent *d;
    int err = dir_seek(dir, key, c);

    if (err)
        return err;
    err = ffs_cursor_dirent(c, &d);
    if (!err && lay_get64(d->key) == key)
        return 0;
    ffs_cursor_drop(c);
    return err && err != -ENOENT ? err : ffs_corrupt(dir->fs, LAY_NONE, dir->ino, "lost name");
}

int ffs_dir_remove(struct ffs_tx *tx, struct ffs_inode *dir, uint64_t key)
{
    struct ffs_cursor c;
    int err = dir_seek_exact(dir, key, &c);

    return err ? err : ffs_tree_remove(tx, &c);
}

int ffs_dir_replace(struct ffs_tx *tx, struct ffs_inode *dir, const struct ffs_entry *entry)
{
    struct ffs_cursor c;
    int err = dir_seek_exact(dir, entry->key, &c);

    if (err)
        return err;
    err = ffs_tree_dirty(tx, &c);
    if (!err) {
        struct lay_node *leaf = ffs_cursor_node(&c, 0);
        struct lay_dirent *d = (struct lay_dirent *)(leaf->u.bytes + c.step[0].at);
        d->ino = lay_put64(entry->ino);
        d->type = entry->type;
    }
    ffs_cursor_drop(&c);
    return err;
}

int ffs_dir_check_empty(struct ffs_inode *dir)
{
    const struct lay_dirent *d;
    struct ffs_cursor c;
    int err = dir_seek(dir, 0, &c);

    if (err)
        return err;
    err = ffs_cursor_dirent(&c, &d);
    ffs_cursor_drop(&c);
    if (err == -ENOENT)
        return 0;
    return err ? err : -ENOTEMPTY;
}

/* --- Listing --------------------------------------------------------------------------------- */

/* Emits "." and "..", whose cookies are no keys. Returns true if emit() returned non-zero. */
static bool dir_emit_dots(struct ffs_inode *dir, uint64_t after, ffs_emit_fn emit, void *arg)
{
    return (after < 1 && emit(arg, ".", 1, dir->ino, DT_DIR, 1)) ||
           (after < 2 && emit(arg, "..", 2, lay_get64(dir->d.parent), DT_DIR, 2));
}

static int dir_emit_names(struct ffs_inode *dir, uint64_t after, ffs_emit_fn emit, void *arg)
{
    const struct lay_dirent *d;
    struct ffs_cursor c;
    int err = dir_seek(dir, after + 1, &c);

    if (err)
        return err;
    while ((err = ffs_cursor_dirent(&c, &d)) == 0) {
        if (emit(arg, (const char *)d->name, d->name_len, lay_get64(d->ino), d->type,
                 lay_get64(d->key)))
            break;
        ffs_cursor_skip(&c, lay_get16(d->len));
    }
    ffs_cursor_drop(&c);
    return err == -ENOENT ? 0 : err;
}

int ffs_readdir(struct ffs_inode *dir, uint64_t after, ffs_emit_fn emit, void *arg)
{
    int err = ffs_alive(dir->fs);

    if (err)
        return err;
    ffs_meta_read(dir->fs);
    if (!ffs_is_dir(dir))
        err = -ENOTDIR;
    else if (!dir_emit_dots(dir, after, emit, arg) && after < INT64_MAX)
        err = dir_emit_names(dir, after, emit, arg);
    ffs_meta_done(dir->fs);
    return err;
}
