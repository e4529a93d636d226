/* SPDX-License-Identifier: BSD-2-Clause */
/* The argument of the library's own kernel: all it needs, so that it loads nothing first. */
#ifndef CLIENT_DEVICE_GD_LAUNCH_H
#define CLIENT_DEVICE_GD_LAUNCH_H

#include "client/device/gd_types.h"

/* A launch of the kernel for staged reads. A read by several blocks without parts has all three. */
enum gd_step {
    GD_READS,
    GD_BEGINS, /* before it: *bytes becomes 0 */
    GD_ENDS,   /* after it: *bytes becomes the length, unless a block has stored an error */
};

struct gd_launch {
    struct gpunvme_device_file file;
    struct gd_buffer buffer; /* holds addr */
    uint64_t addr, len, offset;
    int64_t *bytes;
    struct gd_check *check; /* of a read whose data other warps compare; NULL: the kernel does */
    bool concludes;         /* after the comparison: reads again what differs */
    struct gd_parts *parts; /* of a read by blocks that stage it; NULL: none */
    uint32_t unit;          /* of a staged read: bytes of a command */
    enum gd_step step;      /* of a staged read */
    const volatile uint32_t *cancel; /* of a staged read: not 0, it is given up; NULL: never */
};

#endif
