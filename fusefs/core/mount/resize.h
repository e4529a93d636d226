/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The shape of a mounted file system changes: its size, and where its areas lie. Private to the
 * storage half; ffs_grow() and ffs_shrink() are in ffs.h.
 */
#ifndef FUSEFS_CORE_MOUNT_RESIZE_H
#define FUSEFS_CORE_MOUNT_RESIZE_H

#include "fusefs/core/storage.h"

/*
 * Between ffs_freeze() and ffs_thaw(): gives the file system the shape of *geo. Areas that move go
 * to free blocks, or past the old end; the bitmaps always move. Nothing else may be in use past the
 * new end. -EUCLEAN: it is, or a block is not as it was last written, or does not read back as
 * written: nothing has changed. -EIO: the file system has stopped writing, and the next mount finds
 * the old shape or the new one.
 */
int ffs_reshape(struct ffs *fs, const struct lay_geometry *geo);

#endif
