/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the daemon gives up before it reads the image: capabilities, the file system, system calls.
 * Threads inherit it, so it precedes the first one. The mounter (mounter.h) keeps what mounting
 * needs.
 *
 * Levels, each with those before it:
 *
 * SANDBOX_PRIVILEGES  no new privileges
 * SANDBOX_CAPS        capabilities except those listed in sandbox.c
 * SANDBOX_FILES       Landlock: no file can be opened but the image and /dev/null, and those of
 *                     /proc for the groups of callers (direct=GROUP) and physical addresses
 *                     (noiommu). Where CUDA is used: files are opened for reading only, except
 *                     below /dev and /proc/self.
 * SANDBOX_FULL        seccomp: calls that sandbox_calls.c does not list fail with EPERM. Excludes
 *                     CUDA, whose driver makes calls that are not documented.
 *
 * SANDBOX_AUTO is SANDBOX_FULL, as far as kernel and build support it, and SANDBOX_FILES where
 * CUDA may be used. Sanitizers start processes and open files when they report: a build with one
 * stops at SANDBOX_CAPS.
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
 * Enters the sandbox of opts->sandbox. image: the image file, opened later; NULL: the drive is
 * open. 0, or -errno with a sentence in why: a level that was asked for by name is not available.
 */
int sandbox_enter(const struct options *opts, const char *image, char *why, size_t len);

/* Where files may be opened. */
struct sandbox_files {
    const char *image; /* for reading and writing; NULL: none */
    bool proc;         /* /proc, for reading */
    bool cuda;         /* everything for reading, /dev and /proc/self for writing */
};

/* 0, -ENOSYS without Landlock, or another -errno. */
int sandbox_limit_files(const struct sandbox_files *files);
/*
 * guard: the process of a noiommu drive is ended by a signal. 0, -ENOSYS without seccomp, or
 * another -errno.
 */
int sandbox_limit_calls(bool guard);

#ifdef __cplusplus
}
#endif

#endif
