/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reserves a block device of the kernel by its persistent reservations
 * (linux/pr.h), which NVMe and SCSI drivers have. As with nvme_reserve() the
 * type is Write Exclusive.
 */
#ifndef BLOCKDEV_BD_PR_H
#define BLOCKDEV_BD_PR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

/*
 * Registers the key, not 0, for this host and reserves the device. Continues
 * with a reservation of this host. With `preempt` it takes the reservation away
 * from another host: Linux 7.0 and later also end the commands of that host.
 * Returns 0; -EBUSY and the other host's key in *holder (0 if the kernel does
 * not report it); -ENOTSUP if driver or device have no reservations, as for
 * partitions; -EPERM if Linux before 6.5 wants CAP_SYS_ADMIN; or another error.
 */
int bd_pr_take(int fd, uint64_t key, bool preempt, uint64_t *holder);
/* Returns 0 if this host still has the reservation of bd_pr_take(), -EACCES if it has lost it. */
int bd_pr_keep(int fd, uint64_t key);
/* Ends the reservation and the registration of this host. Returns 0 or -errno. */
int bd_pr_release(int fd, uint64_t key);

__END_DECLS

#endif
