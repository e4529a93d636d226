/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads the log for a scrub. Private to the storage half. */
#ifndef FUSEFS_CORE_MOUNT_LOG_SCRUB_H
#define FUSEFS_CORE_MOUNT_LOG_SCRUB_H

#include "fusefs/core/base/checked.h"

struct log_scrubbed {
    struct ffs_scrubbed places[FFS_PLACES]; /* of a position where a block cannot be read */
    unsigned n;
    uint64_t blocks; /* that were read before that */
};

/*
 * Reads up to 64 positions of all logs from `pos` on, up to one where a block
 * cannot be read. Such a block is written again, from the other log or, if no
 * transaction has it, with zeros. Returns the position to go on from,
 * log_blocks at the end. Takes commit_lock only for such a block. The caller
 * holds no lock.
 */
uint64_t ffs_log_scrub(struct ffs *fs, uint64_t pos, struct log_scrubbed *out);

#endif
