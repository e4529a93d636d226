/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Translates logical addresses (FORMAT.md 2.3) to blocks of the device. Private
 * to the storage half.
 */
#ifndef FUSEFS_CORE_BASE_PLACES_H
#define FUSEFS_CORE_BASE_PLACES_H

#include <stdint.h>

struct ffs;

#define FFS_PLACES 2u /* that a block may have */

/*
 * Stores the blocks of the device that hold the metadata of a logical address,
 * and returns how many there are: at most FFS_PLACES. Returns 0 if the file
 * system has no such address, or its segment is not mapped. The caller holds
 * ffs.meta.
 */
unsigned ffs_places_of(const struct ffs *fs, uint64_t addr, uint64_t places[FFS_PLACES]);
/*
 * Acts like ffs_places_of() for a block that has an image in ffs.home. A chunk keeps its
 * place until the transaction that unmaps it is committed and its images are
 * dropped. The caller holds journal.commit_lock, and ffs.meta is not needed.
 */
unsigned ffs_homes_of(const struct ffs *fs, uint64_t addr, uint64_t places[FFS_PLACES]);

#endif
