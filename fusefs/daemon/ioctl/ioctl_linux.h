/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * ioctls that Linux defines for every file system: inode flags (chattr(1),
 * lsattr(1)), the label, and FITRIM (fstrim(8)). The ioctl of remount.h is also
 * served here.
 */
#ifndef FUSEFS_DAEMON_IOCTL_IOCTL_LINUX_H
#define FUSEFS_DAEMON_IOCTL_IOCTL_LINUX_H

#include <stdbool.h>

#include "fusefs/daemon/request/fuse_request.h"

/*
 * Serves the ioctl and returns true, or returns false if cmd is another ioctl.
 * `in` has in_size bytes.
 */
bool ioctl_linux(fuse_req_t req, struct open_file *file, unsigned cmd, const void *in,
                 size_t in_size, size_t out_size);

#endif
