/* Notifications to the kernel about changes behind its page cache. */
#ifndef FUSEFS_DAEMON_FUSE_NOTIFY_H
#define FUSEFS_DAEMON_FUSE_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

struct fuse_session;

/*
 * Bytes [offset, offset + len) of the inode were written on the device; later
 * reads and mappings must return them. grew: offset + len is the new end of the
 * file, and last its last byte.
 *
 * Called by the worker that serves the WRITE ioctl, before the reply, without a
 * lock of the file system and without a buffer use: the kernel waits in here
 * for page locks, and a page is locked while a READ or WRITE request for it
 * waits for another thread. The caller of the ioctl holds no page lock. Never
 * called by a session thread: with all session threads in here, no thread would
 * serve the request that unlocks the page.
 */
void notify_written(struct fuse_session *session, uint64_t ino, uint64_t offset, uint64_t len,
                    bool grew, char last);

#endif
