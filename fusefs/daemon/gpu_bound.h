/*
 * The GPU-bound flag of a file or directory (FORMAT.md 3.6) as an extended attribute: "1" or "0".
 *
 * It stands in no list of attributes: a program that copies a file's attributes sets them once the
 * data is there, when it is too late for this one.
 */
#ifndef FUSEFS_DAEMON_GPU_BOUND_H
#define FUSEFS_DAEMON_GPU_BOUND_H

#include <stdbool.h>
#include <sys/types.h>

#include "fusefs/core/ffs.h"

#define GPU_BOUND_XATTR "user.gpunvme.gpu_bound"

bool gpu_bound_is(const char *name);
/* 1, the length; writes nothing when size is 0. */
ssize_t gpu_bound_get(struct ffs_inode *inode, char *value, size_t size);
/* -EINVAL: not "0" or "1", a file that has blocks already, or neither file nor directory. */
int gpu_bound_set(struct ffs_inode *inode, const char *value, size_t size);

#endif
