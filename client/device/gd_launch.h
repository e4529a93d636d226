/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the arguments of the library's own kernels for reads and lists, and of the kernel that
 * compares data with checksums. The arguments contain all values that a kernel needs, so that no
 * kernel has to load any first.
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
    const struct gpunvme_device_file *file_at; /* where kernels have it, with later leases */
    struct gd_buffer buffer; /* of a read: holds addr; of a list: the pieces' offsets begin at it */
    uint64_t addr, len, offset; /* of a read */
    int64_t *bytes;             /* of a read */
    struct gq_read_desc *list;  /* of a list; NULL: a read */
    uint32_t n;                 /* pieces of the list */
    uint32_t unit; /* of a read by queues of its own: bytes of a staged command; 0: shared ones */
    struct gd_check *check;          /* of data that other warps compare; NULL: the kernel does */
    bool concludes;                  /* after the comparison: reads again what differs */
    struct gd_parts_table *parts;    /* of launches of several blocks; NULL: shares are even */
    const volatile uint32_t *cancel; /* of a long read: not 0 cancels it; may be NULL */
    const uint32_t *bounds; /* range of pieces by a kernel: gd_list_window(); NULL: all n */
    uint32_t from;          /* number of the first of the n pieces, with bounds */
};

/*
 * The launch geometry of a comparison: warps per block, the maximum of blocks,
 * and the data blocks that a warp compares in a turn.
 */
#define GD_COMPARE_WARPS  8u
#define GD_COMPARE_BLOCKS 528u
#define GD_COMPARE_TURN   4u

/*
 * Warps that read compare their blocks themselves if there are fewer than this
 * many for each of them.
 */
#define GD_COMPARE_LEAST 8u

struct gd_compare_launch {
    struct gq_file_sums sums;
    uint64_t addr;             /* that places of pieces, and of the read, count from */
    struct gq_read_desc *list; /* NULL: the read */
    uint32_t n;                /* pieces; 1 of a read */
    struct gq_read read;       /* which ends before the file does */
    struct gd_check *check;
};

#endif
