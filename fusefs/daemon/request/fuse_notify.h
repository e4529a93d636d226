/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Notifications to the kernel about changes behind its page cache.
 */
#ifndef FUSEFS_DAEMON_REQUEST_FUSE_NOTIFY_H
#define FUSEFS_DAEMON_REQUEST_FUSE_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

struct daemon;
struct ffs_inode;
struct fuse_session;

/*
 * Bytes [offset, offset + len) of the inode were written on the device; later
 * reads and mappings must return them. grew: offset + len is the new end of the
 * file, and last its last byte; any byte where the end is that of a block.
 *
 * Called by the thread that serves the WRITE ioctl, before the reply, without a
 * lock of the file system and without a buffer use: notify_pages() applies.
 */
void notify_written(struct fuse_session *session, struct ffs_inode *inode, uint64_t offset,
                    uint64_t len, bool grew, char last);

/*
 * Invalidates the pages of bytes [offset, offset + len), and the attributes.
 *
 * The kernel waits in here for page locks. A page is locked while a READ or
 * WRITE request for it waits for a session thread, so the request that is being
 * served must hold no page lock, and some session threads must remain outside.
 */
void notify_pages(struct fuse_session *session, uint64_t ino, uint64_t offset, uint64_t len);

/*
 * On a mount with writeback_cache, before the bytes are read past the kernel: what programs wrote
 * there reaches the file system. len 0: to the end of the file. Called by workers, and
 * by few session threads: notify_pages() applies, and the WRITE requests need session threads.
 */
void notify_flush(struct daemon *d, struct ffs_inode *inode, uint64_t offset, uint64_t len);

/*
 * The name in the directory `dir` means no longer `ino`. Waits for the directory's lock, which a
 * process holds while its request waits for a session thread: never called by one.
 */
void notify_removed(struct fuse_session *session, uint64_t dir, uint64_t ino, const char *name);

/* Invalidates the attributes. Waits for no page lock. */
void notify_attr(struct fuse_session *session, uint64_t ino);

#endif
