/* SPDX-License-Identifier: BSD-2-Clause */
/* Ends open file descriptions and open directories. */
#ifndef FUSEFS_DAEMON_FUSE_FILE_CLOSE_H
#define FUSEFS_DAEMON_FUSE_FILE_CLOSE_H

#include "fusefs/daemon/state/daemon.h"

/*
 * RELEASE: removes the buffers registered through the file and drops the inode.
 * A file with leases is passed to the leases' thread, since ending a lease may
 * take admin commands.
 */
void file_free(struct daemon *d, struct open_file *file);
/*
 * Frees the files whose RELEASE never arrived because the connection was
 * aborted.
 */
void files_free_all(struct daemon *d);

#endif
