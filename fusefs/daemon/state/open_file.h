/* SPDX-License-Identifier: BSD-2-Clause */
/* Open file descriptions and open directories. */
#ifndef FUSEFS_DAEMON_STATE_OPEN_FILE_H
#define FUSEFS_DAEMON_STATE_OPEN_FILE_H

#include "fusefs/daemon/state/daemon.h"

/*
 * As ffs_read(), but short only at the end of the file: an error after some
 * bytes is returned as the error. The kernel takes a short reply for the end of
 * the file.
 */
ssize_t file_read(struct ffs_inode *inode, uint64_t offset, void *buf, size_t len);

/* After a read by a descriptor with these flags (O_NOATIME). */
void file_accessed(struct ffs_inode *inode, int flags);

/* Was it opened for writing? */
bool file_writes(const struct open_file *file);
/*
 * On a mount with writeback_cache: is the inode open for writing? Otherwise the kernel holds
 * nothing of it that the file system has not: RELEASE follows the last dirty page. Elsewhere false.
 */
bool file_has_writer(const struct daemon *d, struct ffs_inode *inode);
/* Waits a moment for a RELEASE that is on its way; -ETXTBSY: there still is a writer. */
int file_refuse_writers(const struct daemon *d, struct ffs_inode *inode);

/*
 * Takes over the reference on inode, also on failure: -ENOMEM; -ESTALE as caches_file_opened().
 */
int file_new(struct daemon *d, struct ffs_inode *inode, int flags, bool directory,
             struct open_file **out);
/* The first half of file_free(). */
void file_unlist(struct daemon *d, struct open_file *file);
/*
 * The second half of file_free(), called by the leases' thread after the leases
 * have ended.
 */
void file_end(struct daemon *d, struct open_file *file);

#endif
