/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Finds and removes signatures on a device: file systems, partition tables and
 * the like.
 */
#ifndef MKFS_SIGNATURE_H
#define MKFS_SIGNATURE_H

#include <stddef.h>

#include "blockdev/bdev.h"

/*
 * Looks for a known signature. fd is the device or a copy of its ends; lba_size
 * is the device's, which determines the place of a partition table. Returns 0
 * if there is none, 1 with its kind in `name`, or -errno.
 */
int signature_find(int fd, uint32_t lba_size, char *name, size_t size);
/*
 * Removes the signatures that signature_find() finds, except our own. Returns 0
 * or -errno.
 */
int signature_wipe(int fd, uint32_t lba_size);

/*
 * Copies a device without a descriptor into a file in memory for the functions
 * above. The file is as long as the device and contains its ends, where all
 * signatures are. Returns 0 and *fd, or -errno.
 */
int signature_copy_ends(struct bd_dev *dev, int *fd);
/* Writes the ends back to the device. Returns 0 or -errno. */
int signature_write_ends(struct bd_dev *dev, int fd);

#endif
