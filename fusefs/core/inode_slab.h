/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory for inodes, in mappings of their own: it goes back to the system when the inodes of a
 * mapping are gone, whatever malloc() has beside them. Private to the storage half.
 */
#ifndef FUSEFS_CORE_INODE_SLAB_H
#define FUSEFS_CORE_INODE_SLAB_H

#include <pthread.h>
#include <stddef.h>

struct ffs_inode;
struct ffs_slab;

struct ffs_inode_slabs {
    pthread_mutex_t lock;     /* protects all below; taken also under itable.lock */
    struct ffs_slab *partial; /* those with room */
    size_t count;             /* of all slabs */
};

void ffs_inode_slabs_init(struct ffs_inode_slabs *slabs);
/* Inodes of the table are gone. */
void ffs_inode_slabs_destroy(struct ffs_inode_slabs *slabs);
/* Zeroed; NULL: out of memory. */
struct ffs_inode *ffs_inode_slab_take(struct ffs_inode_slabs *slabs);
void ffs_inode_slab_give(struct ffs_inode_slabs *slabs, struct ffs_inode *inode);

#endif
