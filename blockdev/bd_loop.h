/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds the file behind a loop device. */
#ifndef BLOCKDEV_BD_LOOP_H
#define BLOCKDEV_BD_LOOP_H

/*
 * fd is an open block device. Opens the file behind it for reading if it is a
 * loop device or a partition of one. Returns the new descriptor, which the
 * caller closes. Returns -1 if it is no loop device, or if its file can no
 * longer be opened by its name.
 */
int bd_loop_file(int fd);

#endif
