/* SPDX-License-Identifier: BSD-2-Clause */
/* Copies chunks of metadata to other places (FORMAT.md 5.8). Private to the storage half. */
#ifndef FUSEFS_CORE_MOUNT_MOVE_CHUNK_H
#define FUSEFS_CORE_MOUNT_MOVE_CHUNK_H

#include "fusefs/core/storage.h"

#define FFS_CHUNK_CREDITS 8u /* bitmaps of both places, and two blocks of the map */

/*
 * Copies the chunk with this first segment from one of its places to free
 * space, flushes, reads the result back, and checks that each block in use has
 * the age that is named. `data` is DMA memory of a segment. The caller has a
 * handle; no image waits for a checkpoint, and none runs. Returns 0, -EUCLEAN,
 * -ENOMEM or the device's error.
 */
int ffs_chunk_copy(struct ffs *fs, uint64_t first, uint64_t from, uint64_t to, void *data);
/*
 * Returns true if a chunk begins with this segment that has one place, although
 * the file system has copies of metadata. The caller holds ffs.meta.
 */
bool ffs_chunk_lacks_copy(const struct ffs *fs, uint64_t first);
/*
 * Gives such a chunk a second place. Copies it without locks, and then copies
 * again in a handle what has changed meanwhile. Called without locks. Returns
 * 0, -EEXIST if the chunk does not lack it any more, -ENOSPC, -EAGAIN if the
 * log was too full at this time, -EUCLEAN or -EIO if the first place is
 * damaged, or another error; nothing has changed then.
 */
int ffs_chunk_add_copy(struct ffs *fs, uint64_t first);

#endif
