/* SPDX-License-Identifier: BSD-2-Clause */
/* Open file descriptions and open directories. */
#ifndef FUSEFS_DAEMON_STATE_OPEN_FILE_H
#define FUSEFS_DAEMON_STATE_OPEN_FILE_H

#include "fusefs/daemon/state/daemon.h"

/*
 * Behaves like ffs_read(), but is short only at the end of the file: an error
 * after some bytes is returned as the error. The kernel would take a short
 * reply for the end of the file.
 */
ssize_t file_read(struct ffs_inode *inode, uint64_t offset, void *buf, size_t len);

/* Called after a read by a descriptor with these flags (O_NOATIME). */
void file_accessed(struct ffs_inode *inode, int flags);

/* Returns whether the file was opened for writing. */
bool file_writes(const struct open_file *file);
/*
 * Returns whether the inode is open for writing on a mount with
 * writeback_cache. If it is not, the kernel holds no newer data of it than the
 * file system, since RELEASE follows the last dirty page. Returns false on
 * other mounts.
 */
bool file_has_writer(const struct daemon *d, struct ffs_inode *inode);
/*
 * Waits briefly for a pending RELEASE. Returns -ETXTBSY if there still is a
 * writer.
 */
int file_refuse_writers(const struct daemon *d, struct ffs_inode *inode);

/*
 * Takes over the reference on inode, even on failure. Returns -ENOMEM, or
 * -ESTALE as caches_file_opened() does.
 */
int file_new(struct daemon *d, struct ffs_inode *inode, int flags, bool directory,
             struct open_file **out);
/* Performs the first half of file_free(). */
void file_unlist(struct daemon *d, struct open_file *file);
/*
 * Performs the second half of file_free(). Called by the leases' thread after
 * the leases have ended.
 */
void file_end(struct daemon *d, struct open_file *file);

#endif
