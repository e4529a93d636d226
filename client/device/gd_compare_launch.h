/* SPDX-License-Identifier: BSD-2-Clause */
/* The argument of the library's kernel that compares data with checksums. */
#ifndef CLIENT_DEVICE_GD_COMPARE_LAUNCH_H
#define CLIENT_DEVICE_GD_COMPARE_LAUNCH_H

#include "client/device/gd_types.h"

/*
 * The launch geometry: warps per block, the maximum of blocks, and the data
 * blocks that a warp compares in a turn.
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
