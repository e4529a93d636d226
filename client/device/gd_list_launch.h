/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The argument of the library's own kernel for lists: all it needs, so that it loads nothing first.
 */
#ifndef CLIENT_DEVICE_GD_LIST_LAUNCH_H
#define CLIENT_DEVICE_GD_LIST_LAUNCH_H

#include "client/device/gd_types.h"

/* A warp in a block of its own for each share: so many of them at most, with so many pieces. */
#define GD_LIST_QUEUES  32u
#define GD_QUEUE_PIECES 8u

struct gd_list_launch {
    struct gpunvme_device_file file;
    struct gd_buffer buffer; /* that the offsets of pieces begin at */
    struct gq_read_desc *list;
    struct gq_dealing *dealing; /* words of this list alone; NULL: even shares */
    struct gd_check *check; /* of pieces whose data other warps compare; NULL: the kernel does */
    uint32_t n;
    bool concludes; /* after the comparison: reads again what differs */
};

#endif
