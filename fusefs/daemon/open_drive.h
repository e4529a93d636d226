/* SPDX-License-Identifier: BSD-2-Clause */
/* Opens the drive that the command line names. */
#ifndef FUSEFS_DAEMON_OPEN_DRIVE_H
#define FUSEFS_DAEMON_OPEN_DRIVE_H

#include "fusefs/daemon/start/mount_options.h"
#include "fusefs/daemon/start/stack.h"

/*
 * Checks the device and its options without opening it. Returns 0 or an exit
 * status; a problem has been logged.
 */
int open_drive_check(const struct options *opts);
/*
 * Opens the drive and enters the sandbox, in which the parser of an image runs.
 * Returns 0 or -errno; a problem has been logged.
 */
int open_drive(const struct options *opts, struct drive *out);

#endif
