/* SPDX-License-Identifier: BSD-2-Clause */
/* Waits for a drive that was unmounted a moment ago. */
#ifndef SUPPORT_LOCK_WAIT_H
#define SUPPORT_LOCK_WAIT_H

/*
 * Waits until no other process locks the file or block device (file_lock.h).
 * The daemon of a fuse mount holds its drive for some time after umount(2). The
 * wait ends after five seconds, or after a minute if a gpunvmefs daemon holds
 * the lock; `say` is then called once after five seconds. It ends at once if
 * the file is still mounted. `kind` is LOCK_SH or LOCK_EX. No lock is held on
 * return; the following open takes one or fails.
 */
void lock_wait(const char *path, int kind, void (*say)(const char *path));

#endif
