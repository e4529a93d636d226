/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Inodes by number, in a hash that grows and shrinks by one bucket at a time,
 * so that no call takes long. Private to the storage half; the caller locks.
 */
#ifndef FUSEFS_CORE_INODE_INODE_HASH_H
#define FUSEFS_CORE_INODE_INODE_HASH_H

#include "fusefs/core/storage.h"

#define FFS_INODE_BUCKETS_MIN 1024u
#define FFS_INODE_BUCKETS_MAX (1u << 24)

struct ffs_inode_hash {
    struct ffs_inode **buckets; /* room for the maximum; pages without a bucket use no memory */
    size_t count;               /* number of buckets */
    size_t inodes;
};

/* Returns 0 or -ENOMEM. */
int ffs_inode_hash_init(struct ffs_inode_hash *hash);
/* The inodes remain the caller's. */
void ffs_inode_hash_destroy(struct ffs_inode_hash *hash);
/* Returns the inode with this number, or NULL. */
struct ffs_inode *ffs_inode_hash_find(const struct ffs_inode_hash *hash, uint64_t ino);
/*
 * Adds an inode and sets `hashed`. No other inode in the hash has its number.
 */
void ffs_inode_hash_add(struct ffs_inode_hash *hash, struct ffs_inode *inode);
/* Removes an inode. Does nothing unless `hashed` is set. */
void ffs_inode_hash_remove(struct ffs_inode_hash *hash, struct ffs_inode *inode);

#endif
