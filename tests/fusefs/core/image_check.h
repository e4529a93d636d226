/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * fsck's passes on a device in memory, without its command line.
 */
#ifndef TESTS_FUSEFS_IMAGE_CHECK_H
#define TESTS_FUSEFS_IMAGE_CHECK_H

#include <sys/cdefs.h>

#include "blockdev/bdev.h"

__BEGIN_DECLS

/* Problems found (each is printed), or -errno when there is no file system to check. */
int64_t image_check(struct bd_dev *dev);
/*
 * Repairs everything: problems found (each is printed), -ENOTRECOVERABLE when some are left, or
 * another -errno when there is no file system to repair.
 */
int64_t image_fsck(struct bd_dev *dev);

/* Makes safe repairs, like `fsck.gpunvme -p -f`. Returns like image_fsck(). */
int64_t image_preen(struct bd_dev *dev);

__END_DECLS

#endif
