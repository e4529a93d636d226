/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Walks the trees and chains of an inode, whatever they contain. Damaged nodes
 * are reported and skipped, and no walk takes more steps than the device has
 * blocks.
 */
#ifndef MKFS_WALK_H
#define MKFS_WALK_H

#include <stdbool.h>
#include <sys/cdefs.h>

#include "mkfs/image.h"

__BEGIN_DECLS

/* Callbacks of a walk; any of them may be NULL. */
struct walk_ops {
    /* Called before a sound block is used; false skips it. */
    bool (*sound)(void *arg, uint64_t block);
    void (*damaged)(void *arg, uint64_t block, const char *why);
    void (*extent)(void *arg, const struct lay_extent *e);
    void (*name)(void *arg, const struct lay_dirent *d);
    void (*xattr)(void *arg, const struct lay_xattr *x);
};

struct walk_totals {
    uint64_t nodes;   /* valid blocks of the tree or chain */
    uint64_t entries; /* extents, names or attributes */
    bool whole;       /* nothing was damaged or skipped */
};

/*
 * Each returns 0, -EUCLEAN if something was damaged (the rest was walked),
 * -ENOMEM or a device error; walk_names() returns -ENOTDIR if the inode is no
 * directory. totals may be NULL.
 */
int walk_extents(struct image *img, uint64_t ino, const struct lay_inode *inode,
                 const struct walk_ops *ops, void *arg, struct walk_totals *totals);
int walk_names(struct image *img, uint64_t ino, const struct lay_inode *inode,
               const struct walk_ops *ops, void *arg, struct walk_totals *totals);
int walk_xattrs(struct image *img, uint64_t ino, const struct lay_inode *inode,
                const struct walk_ops *ops, void *arg, struct walk_totals *totals);

/*
 * Reads inode `ino` and checks its block. Returns 0, -ENOENT if the inode file
 * has no such slot, -EUCLEAN if the block is damaged, or a device error.
 */
int walk_read_inode(struct image *img, const struct lay_super *sb, uint64_t ino,
                    struct lay_inode *out, const char **why);

__END_DECLS

#endif
