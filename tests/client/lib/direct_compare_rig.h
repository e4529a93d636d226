/* SPDX-License-Identifier: BSD-2-Clause */
/* The three kernels of a check as warps run them, one after the other, by a host thread. */
#ifndef TESTS_CLIENT_LIB_DIRECT_COMPARE_RIG_H
#define TESTS_CLIENT_LIB_DIRECT_COMPARE_RIG_H

#include "client/device/gd_compare_launch.h"

/* A check of a read, or of pieces that count from dst, to the one buffer of the file's set. */
struct compare_rig {
    const struct gpunvme_device_file *f;
    uint64_t dst;
    struct gq_read read;       /* at: 0 */
    struct gq_read_desc *list; /* NULL: the read */
    uint32_t n;                /* 1 of a read */
    struct gd_check *check;
};

/* Reads, by one group of the kernel. */
void compare_rig_read(const struct compare_rig *r);
/* All that `groups` groups compare. */
void compare_rig_compare(const struct compare_rig *r, uint32_t groups);
/* Concludes, of a list by the given number of groups. A read's result, else 0. */
int64_t compare_rig_conclude(const struct compare_rig *r, uint32_t groups);

#endif
