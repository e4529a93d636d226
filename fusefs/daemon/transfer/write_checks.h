/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checks that the kernel makes for write(2), for the WRITE ioctl; setid.h has another.
 */
#ifndef FUSEFS_DAEMON_TRANSFER_WRITE_CHECKS_H
#define FUSEFS_DAEMON_TRANSFER_WRITE_CHECKS_H

#include <stdint.h>
#include <sys/types.h>

struct ffs_inode;

/*
 * Applies RLIMIT_FSIZE of process pid: *len becomes shorter, as with write(2).
 * -EFBIG when offset is not below the limit; no SIGXFSZ is sent. The limit of a
 * process that the daemon may not query does not apply: pid 0 (outside the
 * daemon's PID namespace), and other users' processes for a daemon without
 * CAP_SYS_RESOURCE.
 */
int write_check_limit(pid_t pid, uint64_t offset, uint64_t *len);
/* Removes security.capability, as every write(2) does. 0 or -errno. */
int write_drop_capability(struct ffs_inode *inode);

#endif
