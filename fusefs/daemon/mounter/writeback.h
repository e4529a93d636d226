/* SPDX-License-Identifier: BSD-2-Clause */
/* Write-back of pages that programs dirtied through mappings. */
#ifndef FUSEFS_DAEMON_MOUNTER_WRITEBACK_H
#define FUSEFS_DAEMON_MOUNTER_WRITEBACK_H

#include <stddef.h>
#include <stdint.h>

struct daemon;

/* A file to sync; passed to the mounter. */
struct sync_target {
    uint64_t ino;
    uint32_t generation;
    uint32_t reserved;
};

/*
 * Has the mounter sync the files open for writing and waits until the writes have reached the
 * file system, for at most `seconds` (0: unbounded). Must not run in a session
 * thread: these serve the writes.
 */
void write_back(struct daemon *d, unsigned seconds);
/*
 * The mounter's part: syncs these files of the mount. Takes over the targets. 0, the error of a
 * file's write, or -ETIMEDOUT; 0 as well when nothing is mounted there any more.
 */
int writeback_files(const char *mountpoint, struct sync_target *targets, size_t count,
                    unsigned seconds);

#endif
