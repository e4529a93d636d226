/* SPDX-License-Identifier: BSD-2-Clause */
/* Notifies the kernel of changes that bypass its page cache. */
#ifndef FUSEFS_DAEMON_REQUEST_FUSE_NOTIFY_H
#define FUSEFS_DAEMON_REQUEST_FUSE_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

struct daemon;
struct ffs_inode;
struct fuse_session;

/*
 * Reports that bytes [offset, offset + len) of the inode were written on the
 * device; later reads and mappings must return them. With `grew`, offset + len
 * is the new end of the file. `last` is then its last byte, or any byte if the
 * end is that of a block.
 *
 * Called by the thread that serves the WRITE ioctl, before the reply, without a
 * lock of the file system and without a buffer use. The rules of notify_pages()
 * apply.
 */
void notify_written(struct fuse_session *session, struct ffs_inode *inode, uint64_t offset,
                    uint64_t len, bool grew, char last);

/*
 * Invalidates the pages of bytes [offset, offset + len), and the attributes.
 *
 * The kernel waits in this call for page locks. A page is locked while a READ
 * or WRITE request for it waits for a session thread. The caller must therefore
 * serve a request that holds no page lock, and some session threads must not be
 * in this call.
 */
void notify_pages(struct fuse_session *session, uint64_t ino, uint64_t offset, uint64_t len);

/*
 * Writes back the data of this range that the kernel holds, if its cache is
 * newer than the file system, so that a read that bypasses the kernel sees that
 * data. len 0 extends to the end of the file. Only workers and few session
 * threads may call it: the rules of notify_pages() apply, and session threads
 * serve the WRITE requests.
 */
void notify_flush(struct daemon *d, struct ffs_inode *inode, uint64_t offset, uint64_t len);

/*
 * Reports that the name in the directory `dir` no longer refers to `ino`. Waits
 * for the directory's lock, which a process holds while its request waits for a
 * session thread. It must therefore not be called by a session thread.
 */
void notify_removed(struct fuse_session *session, uint64_t dir, uint64_t ino, const char *name);

/* Invalidates the attributes. Does not wait for page locks. */
void notify_attr(struct fuse_session *session, uint64_t ino);

#endif
