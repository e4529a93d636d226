/* SPDX-License-Identifier: BSD-2-Clause */
/* What tests of space look at inside of a mounted file system. */
#ifndef TESTS_FUSEFS_SPACE_PROBE_H
#define TESTS_FUSEFS_SPACE_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

struct ffs;

/* Does no thread hold the lock of metadata? */
bool space_is_unlocked(struct ffs *fs);
/* Groups that have a map of their own. */
size_t space_maps(struct ffs *fs);
/* Mapped chunks; UINT64_MAX if the superblock counts others. */
uint64_t space_chunks(struct ffs *fs);
/* The first block of a segment, or 0. */
uint64_t space_segment(struct ffs *fs, uint64_t segment);
/* Counts the blocks of the mapped segments, and those that their entries have as free. */
uint64_t space_meta_blocks(struct ffs *fs);
uint64_t space_meta_free(struct ffs *fs);
/*
 * Removes the second place of each chunk, as a repair without space does, and
 * returns the number of chunks that had one. No other thread uses the file
 * system.
 */
uint64_t space_drop_copies(struct ffs *fs);

__END_DECLS

#endif
