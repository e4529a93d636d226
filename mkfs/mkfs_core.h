/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Creates an empty file system on a block device, without output or
 * command-line policy. The tests of the live file system also create their
 * images with it.
 */
#ifndef MKFS_MKFS_CORE_H
#define MKFS_MKFS_CORE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "blockdev/bdev.h"
#include "layout/layout.h"

__BEGIN_DECLS

#define MKFS_MIN_BYTES ((uint64_t)LAY_MIN_BLOCKS << LAY_BLOCK_SHIFT)

struct mkfs_params {
    uint8_t uuid[16];    /* the visible UUID */
    const char *label;   /* NULL for none; the caller has checked it with lay_label_ok() */
    uint64_t bytes;      /* size of the file system; 0 selects the whole device */
    uint64_t log_blocks; /* 0 selects a size that fits the device */
    int64_t time_sec;    /* time of creation */
    uint32_t time_nsec;
    uint8_t hash_seed[16]; /* must be random, or hash collisions can be provoked */
    uint32_t root_uid, root_gid;
    bool data_csum;   /* feature: data blocks have checksums */
    bool meta_copies; /* feature: metadata has two places */
    /*
     * Called at least once per MiB written. If it returns true, the format ends
     * with -EINTR. NULL means never.
     */
    bool (*interrupted)(void);
};

/* These addresses in a new file system are the inode file's block and the root's leaf. */
#define MKFS_INODE_BLOCK LAY_ADDR_CHUNK(0, 1)
#define MKFS_ROOT_NODE   LAY_ADDR_CHUNK(0, 2)

/*
 * Describes the layout of a new file system, which follows from the parameters.
 */
struct mkfs_plan {
    struct lay_geometry geo;
    uint32_t chunks;                            /* that are mapped: 0 to chunks - 1 */
    uint64_t chunk_starts[LAY_MAX_RESERVE + 1]; /* their first blocks, in ascending order */
    uint64_t chunk_copies[LAY_MAX_RESERVE + 1]; /* first blocks of their copies, with meta_copies */
    uint64_t free_blocks;
};

/* Returns the first block of a segment of the mapped chunks. */
uint64_t mkfs_segment_start(const struct mkfs_plan *plan, uint64_t segment);

/*
 * Lays out a file system for a device of device_bytes. Returns 0, -EINVAL if it
 * is smaller than MKFS_MIN_BYTES or the log size is out of range, -ENOSPC
 * if params->bytes exceeds the device, and -EFBIG if it has more blocks than
 * the format supports.
 */
int mkfs_lay_out(const struct mkfs_params *params, uint64_t device_bytes, struct mkfs_plan *plan);

/*
 * Writes every metadata block of an empty file system, the labels last, and
 * reads all of them back to check them. The same parameters produce the same
 * bytes. After a failure the device holds no valid label; or, if the old labels
 * could not be erased, its old contents without one of them. Returns errors of
 * mkfs_lay_out() and of the device, -EINTR, and -EUCLEAN if blocks read back
 * differ from those written.
 */
int mkfs_format(struct bd_dev *dev, const struct mkfs_params *params, struct mkfs_plan *plan);

__END_DECLS

#endif
