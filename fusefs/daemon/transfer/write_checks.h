/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Makes the checks of the kernel's write(2) for the WRITE ioctl; setid.h makes
 * another.
 */
#ifndef FUSEFS_DAEMON_TRANSFER_WRITE_CHECKS_H
#define FUSEFS_DAEMON_TRANSFER_WRITE_CHECKS_H

#include <stdint.h>
#include <sys/types.h>

struct ffs_inode;

/*
 * Applies RLIMIT_FSIZE of process pid: shortens *len, as write(2) does. Returns
 * -EFBIG if offset is not below the limit; no SIGXFSZ is sent. The limit of a
 * process that the daemon may not query does not apply: pid 0 (outside the
 * daemon's PID namespace), and other users' processes for a daemon without
 * CAP_SYS_RESOURCE.
 */
int write_check_limit(pid_t pid, uint64_t offset, uint64_t *len);
/* Removes security.capability, as every write(2) does. Returns 0 or -errno. */
int write_drop_capability(struct ffs_inode *inode);

#endif
