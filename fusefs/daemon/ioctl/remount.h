/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mount -o remount: a second gpunvmefs changes the flags of the mount in the kernel, and tells the
 * daemon by an ioctl on the root directory what the kernel does not.
 */
#ifndef FUSEFS_DAEMON_IOCTL_REMOUNT_H
#define FUSEFS_DAEMON_IOCTL_REMOUNT_H

#include <stdint.h>
#include <sys/ioctl.h>

#include "fusefs/daemon/start/mount_options.h"

struct daemon;

/* Between two processes of this program; another version of it may have another size. */
struct remount_args {
    uint32_t given;     /* OPTIONS_GIVEN_*: the fields that count */
    uint32_t access;    /* enum ffs_access */
    uint32_t commit_s;  /* as commit= */
    uint32_t discard;   /* 0 or 1 */
    uint32_t read_only; /* 0 or 1 */
};
#define REMOUNT_IOCTL _IOW('g', 1, struct remount_args)

/* The whole of such a program run: the exit status, a failure is logged. Needs user id 0. */
int remount_run(const struct options *opts);
/* In the daemon. 0, or -errno: -EROFS when it was started read-only and is to write. */
int remount_apply(struct daemon *d, const struct remount_args *args);

#endif
