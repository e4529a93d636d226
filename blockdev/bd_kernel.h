/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds out what is behind a block device of the kernel. */
#ifndef BLOCKDEV_BD_KERNEL_H
#define BLOCKDEV_BD_KERNEL_H

#include <stdbool.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

/*
 * fd is an open block device. Opens the file behind it for reading if it is a
 * loop device or a partition of one. Returns the new descriptor, which the
 * caller closes. Returns -1 if it is no loop device, or if its file can no
 * longer be opened by its name.
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
