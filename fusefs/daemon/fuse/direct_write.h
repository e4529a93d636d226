/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Replies to WRITE requests of O_DIRECT files.
 *
 * The kernel invalidates its pages after a synchronous O_DIRECT write, but not
 * after an asynchronous one (io_submit, io_uring), and the request does not
 * show which it is. The daemon therefore invalidates them before the reply, so
 * that a buffered read after the completion returns the new data.
 */
#ifndef FUSEFS_DAEMON_FUSE_DIRECT_WRITE_H
#define FUSEFS_DAEMON_FUSE_DIRECT_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ffs_inode;
struct fuse_file_info;
struct fuse_req;

/*
 * Returns true for a request that bypasses the page cache and whose caller
 * holds no page lock. The lock owner distinguishes it from the buffered
 * remainder of a short O_DIRECT write.
 */
bool direct_write_applies(const struct fuse_file_info *fi);

/* Replies, perhaps later, that n bytes at offset were written. */
void direct_write_reply(struct fuse_req *req, struct ffs_inode *inode, uint64_t offset, size_t n);

#endif
