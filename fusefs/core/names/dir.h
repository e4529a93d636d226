/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Directories: names in a B+tree by hash (FORMAT.md 7). All under ffs.meta.
 */
#ifndef FUSEFS_CORE_NAMES_DIR_H
#define FUSEFS_CORE_NAMES_DIR_H

#include "fusefs/core/storage.h"

struct ffs_name {
    const char *s;
    size_t len;
};

struct ffs_entry {
    uint64_t key; /* found: its own; not found: where it would go, 0 when 256 names share a hash */
    uint64_t ino;
    uint8_t type; /* DT_* */
};

/* What names may be created, removed or looked up: -ENOENT (empty), -ENAMETOOLONG, -EINVAL. */
int ffs_name_check(const char *s, struct ffs_name *out);

/* -ENOENT (with *out->key set), -ENOTDIR, -EUCLEAN. */
int ffs_dir_find(struct ffs_inode *dir, struct ffs_name name, struct ffs_entry *out);
/* At the key that ffs_dir_find() gave; -ENOSPC when that was 0. */
int ffs_dir_insert(struct ffs_tx *tx, struct ffs_inode *dir, struct ffs_name name,
                   const struct ffs_entry *entry);
int ffs_dir_remove(struct ffs_tx *tx, struct ffs_inode *dir, uint64_t key);
/* Lets the name at entry->key stand for another inode. */
int ffs_dir_replace(struct ffs_tx *tx, struct ffs_inode *dir, const struct ffs_entry *entry);
/* 0, or -ENOTEMPTY. */
int ffs_dir_check_empty(struct ffs_inode *dir);

static inline uint8_t ffs_dirent_type(uint32_t mode)
{
    return (uint8_t)(mode >> 12 & 15); /* DT_* are defined so */
}

#endif
