/* SPDX-License-Identifier: BSD-2-Clause */
/* Writes back files with pages that programs dirtied through mappings. */
#ifndef FUSEFS_DAEMON_MOUNTER_DIRTY_FILES_H
#define FUSEFS_DAEMON_MOUNTER_DIRTY_FILES_H

struct daemon;

/*
 * Lets the mounter sync the files open for writing and waits until the writes
 * have reached the file system, for at most `seconds` (0: unbounded). Must not
 * run in a session thread, since these threads serve the writes.
 */
void dirty_files_write_back(struct daemon *d, unsigned seconds);

#endif
