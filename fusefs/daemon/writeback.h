/* SPDX-License-Identifier: BSD-2-Clause */
/* Write-back of pages that programs dirtied through mappings. */
#ifndef FUSEFS_DAEMON_WRITEBACK_H
#define FUSEFS_DAEMON_WRITEBACK_H

struct daemon;

/*
 * Syncs the files open for writing and waits until the writes have reached the
 * file system, for at most `seconds` (0: unbounded). Must not run in a session
 * thread: these serve the writes.
 */
void write_back(struct daemon *d, unsigned seconds);

#endif
