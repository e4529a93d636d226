/* SPDX-License-Identifier: BSD-2-Clause */
/* The argument of the library's kernel that compares data with checksums. */
#ifndef CLIENT_DEVICE_GD_COMPARE_LAUNCH_H
#define CLIENT_DEVICE_GD_COMPARE_LAUNCH_H

#include "client/device/gd_types.h"

/* Warps of a block, blocks at most, and data blocks that a warp compares in a turn. */
#define GD_COMPARE_WARPS  8u
#define GD_COMPARE_BLOCKS 528u
#define GD_COMPARE_TURN   4u

/* Fewer blocks than this for each warp that reads are compared by these warps themselves. */
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
