/* SPDX-License-Identifier: BSD-2-Clause */
/* Signatures on a device: file systems, partition tables and the like. */
#ifndef MKFS_SIGNATURE_H
#define MKFS_SIGNATURE_H

#include <stddef.h>

#include "blockdev/bdev.h"

/*
 * fd: the device, or a copy of its ends. lba_size: the device's, on which the place of a partition
 * table depends. 0: nothing known; 1: found, `name` says what; -errno.
 */
int signature_find(int fd, uint32_t lba_size, char *name, size_t size);
/* Removes what signature_find() finds, other than our own. 0 or -errno. */
int signature_wipe(int fd, uint32_t lba_size);

/*
 * A device without a descriptor as a file in memory for the functions above: as long as the device,
 * with the ends filled in, where all signatures are. 0 and *fd, or -errno.
 */
int signature_copy_ends(struct bd_dev *dev, int *fd);
/* Writes the ends back to the device. */
int signature_write_ends(struct bd_dev *dev, int fd);

#endif
