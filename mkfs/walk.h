/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Walks the trees and chains of an inode, whatever they hold: damaged nodes are reported and
 * skipped, and no walk is longer than the device has blocks.
 */
#ifndef MKFS_WALK_H
#define MKFS_WALK_H

#include <stdbool.h>

#include "mkfs/image.h"

/* What happens on the way; any of them may be NULL. */
struct walk_ops {
    /* A block that passed its checks, before its contents are used; false: leave it out. */
    bool (*sound)(void *arg, uint64_t block);
    void (*damaged)(void *arg, uint64_t block, const char *why);
    void (*extent)(void *arg, const struct lay_extent *e);
    void (*name)(void *arg, const struct lay_dirent *d);
    void (*xattr)(void *arg, const struct lay_xattr *x);
};

struct walk_totals {
    uint64_t nodes;   /* blocks of the tree or chain that were sound */
    uint64_t entries; /* extents, names or attributes */
    bool whole;       /* nothing was damaged or left out */
};

/* Each: 0, -EUCLEAN (something was damaged; the rest was walked) or a device error. */
int walk_extents(struct image *img, uint64_t ino, const struct lay_inode *inode,
                 const struct walk_ops *ops, void *arg, struct walk_totals *totals);
int walk_names(struct image *img, uint64_t ino, const struct lay_inode *inode,
               const struct walk_ops *ops, void *arg, struct walk_totals *totals);
int walk_xattrs(struct image *img, uint64_t ino, const struct lay_inode *inode,
                const struct walk_ops *ops, void *arg, struct walk_totals *totals);

#endif
