/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Inodes by number: a hash that grows and shrinks by one bucket at a time, so that no call takes
 * long. Private to the storage half; the caller locks.
 */
#ifndef FUSEFS_CORE_INODE_INODE_HASH_H
#define FUSEFS_CORE_INODE_INODE_HASH_H

#include "fusefs/core/storage.h"

#define FFS_INODE_BUCKETS_MIN 1024u
#define FFS_INODE_BUCKETS_MAX (1u << 24)

struct ffs_inode_hash {
    struct ffs_inode **buckets; /* room for the most; pages without a bucket take no memory */
    size_t count;               /* buckets */
    size_t inodes;
};

/* -ENOMEM. */
int ffs_inode_hash_init(struct ffs_inode_hash *hash);
/* The inodes are the caller's. */
void ffs_inode_hash_destroy(struct ffs_inode_hash *hash);
/* NULL: none. */
struct ffs_inode *ffs_inode_hash_find(const struct ffs_inode_hash *hash, uint64_t ino);
/* Sets `hashed`. No other inode of that number is in the hash. */
void ffs_inode_hash_add(struct ffs_inode_hash *hash, struct ffs_inode *inode);
/* Nothing, unless `hashed`. */
void ffs_inode_hash_remove(struct ffs_inode_hash *hash, struct ffs_inode *inode);

#endif
