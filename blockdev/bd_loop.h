/* SPDX-License-Identifier: BSD-2-Clause */
/* Loop devices: the file behind one. */
#ifndef BLOCKDEV_BD_LOOP_H
#define BLOCKDEV_BD_LOOP_H

/*
 * fd: an open block device. A new descriptor of the file behind a loop device, or behind the loop
 * device of a partition, for reading; the caller closes it. -1: not a loop device, or its file
 * cannot be opened by its name any more.
 */
int bd_loop_file(int fd);

#endif
