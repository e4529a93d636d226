/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The argument of the library's own kernels for reads and lists: all they need, so that they load
 * nothing first.
 */
#ifndef CLIENT_DEVICE_GD_LAUNCH_H
#define CLIENT_DEVICE_GD_LAUNCH_H

#include "client/device/gd_types.h"

/*
 * Each share of a list has a block. A list has at most GD_LIST_QUEUES shares,
 * and a share has at least GD_QUEUE_PIECES pieces.
 */
#define GD_LIST_QUEUES  32u
#define GD_QUEUE_PIECES 4u

struct gd_launch {
    struct gpunvme_device_file file;
    struct gd_buffer buffer; /* of a read: holds addr; of a list: the pieces' offsets begin at it */
    uint64_t addr, len, offset;      /* of a read */
    int64_t *bytes;                  /* of a read */
    struct gq_read_desc *list;       /* of a list; NULL: a read */
    uint32_t n;                      /* pieces of the list */
    uint32_t unit;                   /* of a read by blocks that stage it: bytes of a command */
    struct gd_check *check;          /* of data that other warps compare; NULL: the kernel does */
    bool concludes;                  /* after the comparison: reads again what differs */
    struct gd_parts_table *parts;    /* of launches of several blocks; NULL: shares are even */
    const volatile uint32_t *cancel; /* of a read by blocks: not 0 cancels it; may be NULL */
    const uint32_t *bounds; /* range of pieces by a kernel: gd_list_window(); NULL: all n */
    uint32_t from;          /* number of the first of the n pieces, with bounds */
};

#endif
