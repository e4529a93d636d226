/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Mounts with the type fuseblk, for which umount(2) returns when the daemon has
 * closed the connection, and which sync(2) reaches (Linux 6.18). Needs root
 * outside of user namespaces.
 */
#ifndef FUSEFS_DAEMON_MOUNTER_BLOCK_MOUNT_H
#define FUSEFS_DAEMON_MOUNTER_BLOCK_MOUNT_H

#include <stddef.h>

struct fuse_args;
struct options;

/*
 * Mounts on `name`, a path of one component in the working directory, with
 * libfuse's options in args. Returns the connection, which the caller closes,
 * or -errno. After an error nothing is mounted, and `why` names the step that
 * failed.
 */
int block_mount(const struct options *opts, const struct fuse_args *args, const char *name,
                char *why, size_t len);

#endif
