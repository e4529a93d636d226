/*
 * What programs have changed through mappings and the kernel still holds.
 */
#ifndef FUSEFS_DAEMON_WRITEBACK_H
#define FUSEFS_DAEMON_WRITEBACK_H

struct daemon;

/*
 * Has the kernel write back the files that are open for writing, and waits until all of it has
 * reached the file system, but no longer than `seconds` (0: as long as it takes). For a thread of
 * its own: the session's threads serve the writes.
 */
void write_back(struct daemon *d, unsigned seconds);

#endif
