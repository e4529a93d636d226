/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Lends the only queue pair of a controller to an executor, run by run.
 *
 * Device and borrower have rings of their own with the same queue ID, and the
 * controller has the queues of one of them. A change deletes and creates the
 * queues: four admin commands. So a late store or command of one side does not
 * reach the rings of the other, and neither needs head, tail and phase of the
 * other. Without a change of sides nothing is sent.
 */
#ifndef BLOCKDEV_BD_LEND_H
#define BLOCKDEV_BD_LEND_H

#include <sys/cdefs.h>

#include "blockdev/bdev.h"
#include "blockdev/nvme/nvme.h"

__BEGIN_DECLS

/*
 * Decides whether a borrower stops waiting. Called under the device's lock about
 * every ms.
 */
struct bd_leave {
    bool (*now)(struct bd_leave *leave);
};

/*
 * Allocates the borrower's rings. dev is of bd_nvme_open() with one queue pair;
 * depth as in nvme_qpair_create(). *pair stays where it is until bd_lend_close().
 */
int bd_lend_open(struct bd_dev *dev, uint32_t depth, struct nvme_qpair *pair);
/* Frees the rings. The pair is not taken. */
void bd_lend_close(struct bd_dev *dev, struct nvme_qpair *pair);
/*
 * Waits for the queue pair in order of arrival, and makes it the borrower's
 * until bd_lend_give(). A transfer of the device waits meanwhile, so the caller
 * must not wait for one. Returns 0 if the rings are as at the last give, 1 if
 * they are those of a new pair, -ERESTART if leave->now() returned true, -ENODEV
 * if the queues need a reset of the controller, -EIO or -ETIMEDOUT.
 */
int bd_lend_take(struct bd_dev *dev, struct nvme_qpair *pair, struct bd_leave *leave);
/*
 * Gives the queue pair back. If `end` is true, the queues are deleted, which
 * ends commands in flight. Returns -EIO if that fails; a reset of the controller
 * then ends them.
 */
int bd_lend_give(struct bd_dev *dev, struct nvme_qpair *pair, bool end);

__END_DECLS

#endif
