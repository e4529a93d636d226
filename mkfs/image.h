/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A file system seen from outside: read-only, block by block, with the journal replayed in memory.
 * fsck and dump look through this; neither trusts the live file system's code.
 */
#ifndef MKFS_IMAGE_H
#define MKFS_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "blockdev/bdev.h"
#include "layout/layout.h"

/* The newest image of a block, still in the log. */
struct image_patch {
    uint64_t block;
    uint64_t log_block; /* device address of the image */
    uint64_t order;     /* in the log */
    uint64_t tid;
};

struct image {
    struct bd_dev *dev;
    struct lay_geometry geo;
    uint64_t device_blocks;
    struct image_patch *patches; /* sorted by block */
    size_t patch_count;
    /* What a repair has changed and not yet written: true when *out was filled. NULL: nothing. */
    bool (*changed)(void *arg, uint64_t block, union lay_block *out);
    void *changed_arg;
    /* A block that cannot be read has zeros, which no check accepts, instead of being an error. */
    bool tolerant;
    bool unreadable; /* the block of the last image_read() was one */
};

struct image_super {
    struct lay_super sb;
    uint64_t addr;     /* where it was found */
    int error;         /* of block 0: 0, -EINVAL, -EUCLEAN, -ENOTSUP, -EIO */
    const char *why;   /* the damage of block 0 */
    uint64_t features; /* unknown incompat bits */
};

/*
 * Finds the newest sound superblock and sets img->geo: block 0 or, if that is damaged, unreadable
 * or older, a copy. 0; device errors; -EINVAL, -ENOTSUP, -EUCLEAN or -EIO when there is none.
 */
int image_start(struct image *img, struct bd_dev *dev, struct image_super *super);
void image_end(struct image *img);

/* The block as it is after recovery. `block` must be below geo.blocks. 0 or a device error. */
int image_read(struct image *img, uint64_t block, union lay_block *out);
/* The newest image of the block in the log, or NULL. Valid while the patches are. */
struct image_patch *image_find_patch(const struct image *img, uint64_t block);
/* Is the block on the device older than what image_read() gives? */
bool image_is_newer(const struct image *img, uint64_t block);
/* The block as it is on the device. */
int image_read_raw(struct image *img, uint64_t block, union lay_block *out);
/* Inode `ino` with its block checked; -ENOENT: no such slot in the file; -EUCLEAN: damaged. */
int image_read_inode(struct image *img, const struct lay_super *sb, uint64_t ino,
                     struct lay_inode *out, const char **why);

#endif
