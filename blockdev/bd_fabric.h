/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds out whether a kernel block device is an NVMe namespace on a network. */
#ifndef BLOCKDEV_BD_FABRIC_H
#define BLOCKDEV_BD_FABRIC_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Returns true if sysfs names a transport other than PCIe for a controller of
 * the block device. `folder` is the device's folder in sysfs, such as
 * /sys/dev/block/259:0; a partition is judged by its disk.
 */
bool bd_on_fabric(const char *folder);

#ifdef __cplusplus
}
#endif

#endif
