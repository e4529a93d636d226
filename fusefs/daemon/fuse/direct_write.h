/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The reply to a WRITE request of an O_DIRECT file.
 *
 * The kernel invalidates its pages after a synchronous O_DIRECT write, but not
 * after an asynchronous one (io_submit, io_uring), which it cannot be told from.
 * The daemon invalidates them before the reply, so that a buffered read after
 * the completion returns the new data.
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
 * True for a request that bypasses the page cache, whose caller holds no page
 * lock. The lock owner tells it from the buffered rest of a short O_DIRECT write.
 */
bool direct_write_applies(const struct fuse_file_info *fi);

/* Replies, perhaps later: n bytes at offset were written. */
void direct_write_reply(struct fuse_req *req, struct ffs_inode *inode, uint64_t offset, size_t n);

#endif
