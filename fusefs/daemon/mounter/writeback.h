/* SPDX-License-Identifier: BSD-2-Clause */
/* Writes back pages that programs dirtied through mappings. */
#ifndef FUSEFS_DAEMON_MOUNTER_WRITEBACK_H
#define FUSEFS_DAEMON_MOUNTER_WRITEBACK_H

#include <stddef.h>
#include <stdint.h>

/* Describes a file to sync, and is passed to the mounter. */
struct sync_target {
    uint64_t ino;
    uint32_t generation;
    uint32_t reserved;
};

/*
 * Called by the mounter. Syncs these files of the mount and takes ownership of
 * the targets. Returns 0, the error of a file's write, or -ETIMEDOUT. Returns 0
 * as well if nothing is mounted there any more.
 */
int writeback_files(const char *mountpoint, struct sync_target *targets, size_t count,
                    unsigned seconds);

#endif
