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

/* --- Names of inodes (namei.c) ---------------------------------------------------------------- */

/*
 * Gets the inode that belongs to a name of `dir`. A number not in use is a
 * corruption.
 */
int ffs_dir_inode(struct ffs_inode *dir, uint64_t ino, struct ffs_inode **out);
/*
 * Called after a name of `inode` was removed from `dir`. Decrements the links,
 * and adds the inode to the orphan list if none is left. An emptied directory
 * loses all its links, and `dir` loses the one from its "..".
 */
int ffs_drop_link(struct ffs_tx *tx, struct ffs_inode *dir, struct ffs_inode *inode);

/*
 * Creates a whiteout (a character device 0:0 with mode 0) for a name of `dir`,
 * with one link and the owner of `like`. *out is referenced as soon as it is
 * set, also on failure.
 */
int ffs_whiteout_new(struct ffs_tx *tx, struct ffs_inode *dir, const struct ffs_inode *like,
                     struct ffs_inode **out);

/* Convert device numbers between the form of stat(2) and the stored form. */
uint32_t ffs_rdev_pack(uint32_t rdev);

#endif
