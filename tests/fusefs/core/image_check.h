/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * fsck's passes on a device in memory, without its command line.
 */
#ifndef TESTS_FUSEFS_IMAGE_CHECK_H
#define TESTS_FUSEFS_IMAGE_CHECK_H

#include "blockdev/bdev.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Problems found (each is printed), or -errno when there is no file system to check. */
int64_t image_check(struct bd_dev *dev);
/*
 * Repairs everything: problems found (each is printed), -ENOTRECOVERABLE when some are left, or
 * another -errno when there is no file system to repair.
 */
int64_t image_fsck(struct bd_dev *dev);

/* Repairs what is safe, like `fsck.gpunvme -p -f`; returns what image_fsck() does. */
int64_t image_preen(struct bd_dev *dev);

#ifdef __cplusplus
}
#endif

#endif
