/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The GPU-bound flag of a file or directory (FORMAT.md 3.6) as an extended
 * attribute, "1" or "0".
 *
 * LISTXATTR omits it: a program that copies a file sets the attributes after
 * the data, when a file that has blocks no longer accepts the flag.
 */
#ifndef FUSEFS_DAEMON_STATE_GPU_BOUND_H
#define FUSEFS_DAEMON_STATE_GPU_BOUND_H

#include <stdbool.h>
#include <sys/types.h>

#include "fusefs/core/ffs.h"

#define GPU_BOUND_XATTR "user.gpunvme.gpu_bound"

bool gpu_bound_is(const char *name);
/* Returns the length 1. Writes nothing if size is 0. */
ssize_t gpu_bound_get(struct ffs_inode *inode, char *value, size_t size);
/*
 * Returns -EINVAL if the value is not "0" or "1", if the file has blocks, or if
 * the inode is neither a file nor a directory.
 */
int gpu_bound_set(struct ffs_inode *inode, const char *value, size_t size);

#endif
