/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Sets the kernel's read-ahead window. FUSE starts with 128 KiB, 1/8 of the
 * largest READ.
 */
#ifndef FUSEFS_DAEMON_MOUNTER_READAHEAD_H
#define FUSEFS_DAEMON_MOUNTER_READAHEAD_H

#include <stdint.h>

/*
 * Raises the window of the mount at `mountpoint`. Must precede the reply to
 * INIT, whose max_readahead lowers the window; therefore no request is sent to
 * the mount. Returns the bytes set, or 0 without privilege or sysfs.
 */
uint32_t readahead_raise(const char *mountpoint, uint32_t bytes);

#endif
