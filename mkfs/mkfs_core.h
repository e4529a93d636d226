/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Makes an empty file system on a block device. No output and no policy of the command line: the
 * tests of the live file system make their images with this.
 */
#ifndef MKFS_MKFS_CORE_H
#define MKFS_MKFS_CORE_H

#include <stdbool.h>
#include <stdint.h>

#include "blockdev/bdev.h"
#include "layout/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MKFS_MIN_BYTES ((uint64_t)LAY_MIN_BLOCKS << LAY_BLOCK_SHIFT)

struct mkfs_params {
    uint8_t uuid[16];
    const char *label;       /* NULL: none; checked with lay_label_ok() by the caller */
    uint64_t bytes;          /* of the file system; 0: the whole device */
    uint64_t journal_blocks; /* 0: chosen by size */
    int64_t time_sec;        /* of creation */
    uint32_t time_nsec;
    uint8_t hash_seed[16]; /* of names: random, or hash collisions can be aimed */
    uint32_t root_uid, root_gid;
    bool data_csum; /* feature: checksums of data */
    /* Asked at least once for each MiB written; true: give up with -EINTR. NULL: never. */
    bool (*interrupted)(void);
};

/* Where things are on a new file system; all that the parameters decide. */
struct mkfs_plan {
    struct lay_geometry geo;
    uint64_t inode_block; /* the inode file's one block */
    uint64_t root_node;   /* the root directory's empty leaf */
    uint64_t free_blocks;
};

/*
 * Lays out a file system for a device of device_bytes. -EINVAL: smaller than MKFS_MIN_BYTES, or a
 * journal out of range; -ENOSPC: params->bytes is more than the device has; -EFBIG: more blocks
 * than the format can count.
 */
int mkfs_lay_out(const struct mkfs_params *params, uint64_t device_bytes, struct mkfs_plan *plan);

/* Is every block of the group free? Its bitmap is a block of zeros. */
bool mkfs_group_is_free(const struct mkfs_plan *plan, uint64_t group);

/*
 * Writes every metadata block of an empty file system, reads all of it back and checks it, the
 * superblocks last. The same parameters give the same bytes. When it fails, the device holds no
 * valid superblock; or, if the old ones could not be erased, its old contents less some copies of
 * the superblock. Errors: those of mkfs_lay_out(), the device's, -EINTR, -EUCLEAN (the blocks read
 * back differ from those written).
 */
int mkfs_format(struct bd_dev *dev, const struct mkfs_params *params, struct mkfs_plan *plan);

#ifdef __cplusplus
}
#endif

#endif
