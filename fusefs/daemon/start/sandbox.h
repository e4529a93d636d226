/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The daemon drops rights before it reads the image: capabilities, access to
 * files, and system calls (confine.h). Threads inherit the restrictions, so they
 * are set up before the first thread. The mounter (mounter.h) keeps the rights
 * that mounting needs. Sockets that the daemon uses are open before.
 *
 * Each level includes those before it:
 *
 * SANDBOX_PRIVILEGES  No new privileges.
 * SANDBOX_CAPS        No capabilities except those listed in sandbox.c.
 * SANDBOX_FILES       Landlock: no file can be opened except the image and
 *                     /dev/null, and those of /proc for physical addresses
 *                     (noiommu). If CUDA is used, programs, libraries and
 *                     settings can be read, and devices written, that any user
 *                     may use; the devices of GPUs; and /proc/self. No signals
 *                     reach other processes. seccomp: no programs, no mounts,
 *                     no network.
 * SANDBOX_FULL        seccomp: calls not listed in confine_calls.c fail with
 *                     EPERM, among them socket(2) and connect(2). Excludes
 *                     CUDA, whose driver makes undocumented calls.
 *
 * SANDBOX_AUTO is SANDBOX_FULL as far as kernel and build support it, and
 * SANDBOX_FILES if CUDA may be used. Sanitizers start processes and open files
 * when they report, so a build with one stops at SANDBOX_CAPS.
 */
#ifndef FUSEFS_DAEMON_START_SANDBOX_H
#define FUSEFS_DAEMON_START_SANDBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/cdefs.h>

#include "fusefs/daemon/start/mount_options.h"
#include "support/reason.h"

__BEGIN_DECLS

/*
 * Enters the sandbox of opts->sandbox. `image` is the image file to be opened
 * later, or NULL if the drive is already open. Returns 0, or -errno with a
 * sentence in why if a level requested by name is not available.
 */
int sandbox_enter(const struct options *opts, const char *image, struct reason *why);

/*
 * Returns true if the drive's DMA may go to device memory, for which a guard
 * process runs.
 */
bool sandbox_may_use_p2p(const struct options *opts);

/* The files that may still be opened. */
struct sandbox_files {
    const char *image; /* for reading and writing, or NULL */
    bool proc;         /* allows reading in /proc */
    bool cuda;         /* allows what CUDA's driver needs */
};

/*
 * Restricts the opening of files, and signals. Returns 0, -ENOSYS without
 * Landlock, or another -errno.
 */
int sandbox_limit_files(const struct sandbox_files *files);

__END_DECLS

#endif
