/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Makes a file system larger, offline. No output and no command line.
 *
 * The bitmaps move to the first of the new blocks and the second copy of the superblock to the last
 * one; everything else stays. Until block 0 is written the old file system is whole, and afterwards
 * the new one: bitmaps, copy and journal header come before it, and the old ones are not touched.
 */
#ifndef MKFS_RESIZE_H
#define MKFS_RESIZE_H

#include <stdbool.h>
#include <stdint.h>

#include "blockdev/bdev.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The file system on dev, which ffs_unmount() has left (clean, its journal in place), becomes
 * `blocks` long. 0 when it is that long already. -EINVAL: it would shrink; -ENOSPC: the device has
 * fewer blocks; -EFBIG: more than the format can count; -ERANGE: so few more that the new bitmaps
 * and checksums have no room there; -EUCLEAN: no clean file system, or a block that does not read
 * back as written; errors of the device.
 */
int resize_grow(struct bd_dev *dev, uint64_t blocks);
/* The fewest blocks above `old` that resize_grow() takes a file system of `old` blocks to. */
uint64_t resize_least(uint64_t old, bool data_csum);

#ifdef __cplusplus
}
#endif

#endif
