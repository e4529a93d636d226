/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mount -o remount: a second gpunvmefs changes the flags of the mount in the
 * kernel, and sends the remaining options to the daemon by an ioctl on the root
 * directory.
 */
#ifndef FUSEFS_DAEMON_IOCTL_REMOUNT_H
#define FUSEFS_DAEMON_IOCTL_REMOUNT_H

#include <stdint.h>
#include <sys/ioctl.h>

#include "fusefs/daemon/start/mount_options.h"

struct daemon;

/*
 * Passed between two processes of this program. Another version may use a
 * struct of another size.
 */
struct remount_args {
    uint32_t given;     /* OPTIONS_GIVEN_* of the valid fields */
    uint32_t access;    /* enum ffs_access */
    uint32_t commit_s;  /* value of commit= */
    uint32_t discard;   /* 0 or 1 */
    uint32_t read_only; /* 0 or 1 */
    uint32_t reserved;
    uint64_t scrub_rate; /* value of scrub=, in bytes per second */
};
#define REMOUNT_IOCTL _IOW('g', 1, struct remount_args)

/*
 * Runs the whole remount and returns the exit status. Failures are logged.
 * Requires user id 0.
 */
int remount_run(const struct options *opts);
/*
 * Called in the daemon. Returns 0 or -errno, with -EROFS if a mount that was
 * started read-only is to become writable.
 */
int remount_apply(struct daemon *d, const struct remount_args *args);

#endif
