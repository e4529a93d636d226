/* SPDX-License-Identifier: BSD-2-Clause */
/* The argument of the library's own kernel: all it needs, so that it loads nothing first. */
#ifndef CLIENT_DEVICE_GD_LAUNCH_H
#define CLIENT_DEVICE_GD_LAUNCH_H

#include "client/device/gd_types.h"

struct gd_launch {
    struct gpunvme_device_file file;
    struct gd_buffer buffer; /* holds addr */
    uint64_t addr, len, offset;
    int64_t *bytes;
    struct gd_check *check; /* of a read whose data other warps compare; NULL: the kernel does */
    bool concludes;         /* after the comparison: reads again what differs */
    struct gd_parts *parts; /* of a read by blocks that stage it; NULL: by one block */
    uint32_t unit;          /* of a staged read: bytes of a command */
    const volatile uint32_t *cancel; /* of a staged read: not 0, it is given up; NULL: never */
};

#endif
