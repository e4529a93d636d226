/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Read-only access to the blocks of a file system that is not mounted, with the
 * journal replayed in memory. fsck and dump use this; neither trusts the live
 * file system's code.
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
    uint64_t order;     /* position in the log */
    uint64_t tid;
};

struct image {
    struct bd_dev *dev;
    struct lay_geometry geo;
    uint64_t device_blocks;
    struct image_patch *patches; /* sorted by block */
    size_t patch_count;
    /*
     * Returns true and fills *out if a repair has changed the block but not written
     * it. NULL means that there are no such blocks.
     */
    bool (*changed)(void *arg, uint64_t block, union lay_block *out);
    void *changed_arg;
    /* Reads an unreadable block as zeros, which no check accepts. */
    bool tolerant;
    bool unreadable; /* the block of the last image_read() was unreadable */
};

struct image_super {
    struct lay_super sb;
    uint64_t addr;     /* address where it was found */
    int error;         /* state of block 0: 0, -EINVAL, -EUCLEAN, -ENOTSUP, -EIO */
    const char *why;   /* damage of block 0 */
    uint64_t features; /* unknown incompat bits */
};

/*
 * Finds the newest valid superblock and sets img->geo. It is block 0, or a copy
 * if block 0 is damaged, unreadable or older. Returns 0, a device error, or
 * -EINVAL, -ENOTSUP, -EUCLEAN or -EIO if there is none.
 * -EINVAL also if block 0 lacks the magic of a superblock and reclaim is false.
 */
int image_start(struct image *img, struct bd_dev *dev, bool reclaim, struct image_super *super);
/* Frees the patches. */
void image_end(struct image *img);

/* Reads a block of the file system as after recovery: 0 or an error. */
int image_read(struct image *img, uint64_t block, union lay_block *out);
/* Returns the newest image in the log, or NULL; part of the patches. */
struct image_patch *image_find_patch(const struct image *img, uint64_t block);
/* True if the block on the device is older than the result of image_read(). */
bool image_is_newer(const struct image *img, uint64_t block);
/* Reads a block as it is on the device. */
int image_read_raw(struct image *img, uint64_t block, union lay_block *out);

#endif
