/*
 * How far the kernel reads ahead. FUSE starts with 128 KiB, an eighth of what one READ carries.
 */
#ifndef FUSEFS_DAEMON_READAHEAD_H
#define FUSEFS_DAEMON_READAHEAD_H

#include <stdint.h>

/*
 * Raises it for what is mounted at `mountpoint`. To be called before the kernel has the answer to
 * INIT, which lowers it to what that says: so this asks the mount nothing. Returns the bytes set,
 * or 0 when it stays as it is, for want of privilege or of sysfs.
 */
uint32_t readahead_raise(const char *mountpoint, uint32_t bytes);

#endif
