/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Signatures that libblkid finds on a device: file systems, members of volume managers, and
 * partition tables. libblkid does not know the signature of gpunvmefs.
 */
#ifndef BLOCKDEV_BD_SIGNATURE_H
#define BLOCKDEV_BD_SIGNATURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "blockdev/bdev.h"

/* The offset of a signature whose place libblkid does not report. */
#define BD_SIGNATURE_NOWHERE UINT64_MAX

struct bd_signature {
    char name[64];   /* "a signature of btrfs", or "a partition table (gpt)" */
    uint64_t offset; /* byte of its magic number, or BD_SIGNATURE_NOWHERE */
};

/* Returns true if the signature matters to the caller. */
typedef bool (*bd_signature_counts)(const struct bd_signature *s, void *context);

/*
 * Looks for the first signature for which counts() returns true, from byte `start` of fd on. fd is
 * the device, or a copy of its ends. The place of a partition table depends on lba_size (0: that of
 * the device). counts may be NULL: every signature counts. Returns 1 and fills *out, 0 if there is
 * none, or -errno.
 */
int bd_signature_find(int fd, uint64_t start, uint32_t lba_size, bd_signature_counts counts,
                      void *context, struct bd_signature *out);
/*
 * Removes every signature that bd_signature_find() would find from byte 0 on.
 * Returns 0 or -errno.
 */
int bd_signature_wipe(int fd, uint32_t lba_size);

/*
 * Makes a file in memory of the device's length that holds what libblkid reads at both ends of the
 * device, and zeros elsewhere. Blocks that the device cannot read (-EIO) are zeros, too. Returns 0
 * and a descriptor that the caller closes, or -errno.
 */
int bd_signature_copy_ends(struct bd_dev *dev, int *fd);
/*
 * Writes those ranges of the file back to the device, and flushes it. Returns 0
 * or -errno.
 */
int bd_signature_write_ends(struct bd_dev *dev, int fd);

#endif
