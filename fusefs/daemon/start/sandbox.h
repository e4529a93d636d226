/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The daemon drops rights before it reads the image: capabilities, access to
 * files, and system calls. Threads inherit the restrictions, so they are set up
 * before the first thread. The mounter (mounter.h) keeps the rights that
 * mounting needs.
 *
 * Each level includes those before it:
 *
 * SANDBOX_PRIVILEGES  No new privileges.
 * SANDBOX_CAPS        No capabilities except those listed in sandbox.c.
 * SANDBOX_FILES       Landlock: no file can be opened except the image and
 *                     /dev/null, and those of /proc for the groups of callers
 *                     (direct=GROUP) and for physical addresses (noiommu). If
 *                     CUDA is used, files can be opened for reading only,
 *                     except below /dev and /proc/self.
 * SANDBOX_FULL        seccomp: calls not listed in sandbox.c fail with
 *                     EPERM. Excludes CUDA, whose driver makes undocumented
 *                     calls.
 *
 * SANDBOX_AUTO is SANDBOX_FULL as far as kernel and build support it, and
 * SANDBOX_FILES if CUDA may be used. Sanitizers start processes and open files
 * when they report, so a build with one stops at SANDBOX_CAPS.
 */
#ifndef FUSEFS_DAEMON_START_SANDBOX_H
#define FUSEFS_DAEMON_START_SANDBOX_H

#include <stdbool.h>
#include <stddef.h>

#include "fusefs/daemon/start/mount_options.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Enters the sandbox of opts->sandbox. `image` is the image file to be opened
 * later, or NULL if the drive is already open. Returns 0, or -errno with a
 * sentence in why if a level requested by name is not available.
 */
int sandbox_enter(const struct options *opts, const char *image, char *why, size_t len);

/* The files that may still be opened. */
struct sandbox_files {
    const char *image; /* for reading and writing, or NULL */
    bool proc;         /* allows reading in /proc */
    bool cuda;         /* allows reading anywhere, writing in /dev and /proc/self */
};

/*
 * Restricts the opening of files. Returns 0, -ENOSYS without Landlock, or
 * another -errno.
 */
int sandbox_limit_files(const struct sandbox_files *files);
/*
 * Restricts system calls. `guard` permits kill(2), which ends the guard process
 * of a noiommu drive. Returns 0, -ENOSYS without seccomp, or another -errno.
 */
int sandbox_limit_calls(bool guard);

#ifdef __cplusplus
}
#endif

#endif
