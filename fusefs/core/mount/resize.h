/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Changes the shape of a mounted file system: its size and the location of its
 * areas. Private to the storage half; ffs_grow() and ffs_shrink() are in ffs.h.
 */
#ifndef FUSEFS_CORE_MOUNT_RESIZE_H
#define FUSEFS_CORE_MOUNT_RESIZE_H

#include "fusefs/core/storage.h"

/*
 * Gives the file system the shape of *geo. Called between ffs_freeze() and
 * ffs_thaw(). Areas that move go to free blocks or past the old end; the
 * bitmaps always move. Nothing else may be in use past the new end. Returns
 * -EUCLEAN if something is, or if a block is stale or does not read back as
 * written; nothing has changed then. Returns -EIO if the file system has
 * stopped writing; the next mount then finds either the old or the new shape.
 */
int ffs_reshape(struct ffs *fs, const struct lay_geometry *geo);

#endif
