/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * ioctls that Linux defines for every file system: inode flags (chattr(1), lsattr(1)), the label,
 * FITRIM (fstrim(8)); and that of remount.h.
 */
#ifndef FUSEFS_DAEMON_IOCTL_IOCTL_LINUX_H
#define FUSEFS_DAEMON_IOCTL_IOCTL_LINUX_H

#include <stdbool.h>

#include "fusefs/daemon/request/fuse_request.h"

/* false: cmd is another ioctl. true: replied. in holds in_size bytes. */
bool ioctl_linux(fuse_req_t req, struct open_file *file, unsigned cmd, const void *in,
                 size_t in_size, size_t out_size);

#endif
