/*
 * Telling the kernel that a file changed behind its page cache.
 */
#ifndef FUSEFS_DAEMON_FUSE_NOTIFY_H
#define FUSEFS_DAEMON_FUSE_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

struct fuse_session;

/*
 * Bytes [offset, offset + len) of the inode were written on the device and must be what every
 * later read(2) and mapping shows. grew: offset + len is the new end of the file, and last its
 * last byte.
 *
 * For the thread that serves the WRITE ioctl, before its reply, with no lock of the file system
 * and no hold on a buffer: the kernel waits in here for page locks, and a page is locked while a
 * READ or WRITE request for it waits to be served by another thread. The ioctl's own caller holds
 * no page lock. For the same reason it is never called by a session thread: were all of them in
 * here, none would be left to serve the request that unlocks the page.
 */
void notify_written(struct fuse_session *session, uint64_t ino, uint64_t offset, uint64_t len,
                    bool grew, char last);

#endif
