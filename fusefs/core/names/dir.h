/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Directories store names in a B+tree ordered by hash (FORMAT.md 7). All
 * functions are called under ffs.meta.
 */
#ifndef FUSEFS_CORE_NAMES_DIR_H
#define FUSEFS_CORE_NAMES_DIR_H

#include "fusefs/core/storage.h"

struct ffs_name {
    const char *s;
    size_t len;
};

struct ffs_entry {
    uint64_t key; /* key of the name, or of its future place; 0 if 256 names share the hash */
    uint64_t ino;
    uint8_t type; /* DT_* */
};

/*
 * Checks a name that is to be created, removed or looked up. Returns -ENOENT
 * (empty), -ENAMETOOLONG or -EINVAL.
 */
int ffs_name_check(const char *s, struct ffs_name *out);

/* Finds a name. Returns -ENOENT (with out->key set), -ENOTDIR or -EUCLEAN. */
int ffs_dir_find(struct ffs_inode *dir, struct ffs_name name, struct ffs_entry *out);
/*
 * Inserts a name at the key that ffs_dir_find() returned. Returns -ENOSPC if
 * that is 0.
 */
int ffs_dir_insert(struct ffs_tx *tx, struct ffs_inode *dir, struct ffs_name name,
                   const struct ffs_entry *entry);
int ffs_dir_remove(struct ffs_tx *tx, struct ffs_inode *dir, uint64_t key);
/* Assigns the name at entry->key to another inode. */
int ffs_dir_replace(struct ffs_tx *tx, struct ffs_inode *dir, const struct ffs_entry *entry);
/* Returns 0 or -ENOTEMPTY. */
int ffs_dir_check_empty(struct ffs_inode *dir);

static inline uint8_t ffs_dirent_type(uint32_t mode)
{
    return (uint8_t)(mode >> 12 & 15); /* DT_* has these values */
}

#endif
