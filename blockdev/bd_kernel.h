/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds out what is behind a block device of the kernel. */
#ifndef BLOCKDEV_BD_KERNEL_H
#define BLOCKDEV_BD_KERNEL_H

#include <stdbool.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

/*
 * Opens the file behind a loop device, or behind a partition of one, for
 * reading. fd is the open block device. Returns a new descriptor, which the
 * caller closes. Returns -1 for any other device. Also returns -1 if the name
 * of the backing file no longer opens that file.
 */
int bd_loop_file(int fd);

/*
 * Returns true if a loop device over the file is in use: mounted, swap space, part of another
 * device, or opened exclusively. A loop device that this process may not open counts as used.
 */
bool bd_loop_in_use(const char *path);

/*
 * Returns true if sysfs names a transport other than PCIe for a controller of
 * the block device. `folder` is the device's folder in sysfs, such as
 * /sys/dev/block/259:0. For a partition the function examines the disk.
 */
bool bd_on_fabric(const char *folder);

__END_DECLS

#endif
