/* SPDX-License-Identifier: BSD-2-Clause */
/* The direct path as warps execute it, by a host thread that plays their lanes. */
#ifndef TESTS_CLIENT_LIB_DIRECT_RIG_H
#define TESTS_CLIENT_LIB_DIRECT_RIG_H

#include <stdbool.h>

#include "client/device/gd_compare_launch.h"
#include "client/device/gd_table_launch.h"
#include "client/device/gd_types.h"

/* Bytes or -errno, as gpunvme_pread_warp(): of a read that ends before the file does. */
int64_t direct_single_read(const struct gpunvme_device_file *f, uint64_t dst, uint64_t len,
                           uint64_t offset);

/* The rank-th of `groups` parts of it: 0 or -errno. dealing: gd_reader.dealing. */
int direct_part_read(const struct gpunvme_device_file *f, uint64_t dst, uint64_t len,
                     uint64_t offset, uint32_t rank, uint32_t groups, struct gq_dealing *dealing);

/*
 * The rank-th of `groups` shares of n pieces, to the one buffer of the file's set from dst on.
 * parts: NULL, or the words by which the groups deal the list.
 */
int direct_list_read(const struct gpunvme_device_file *f, uint64_t dst, struct gq_read_desc *list,
                     uint32_t n, uint32_t rank, uint32_t groups, struct gd_parts *parts);

/* Call gd_parts_of() and gd_leave_parts() as one of the groups of a launch. */
struct gd_parts *parts_rig_take(const struct gpunvme_device_file *f, struct gd_parts_table *table,
                                uint64_t number);
bool parts_rig_leave(struct gd_parts_table *table, struct gd_parts *parts, uint32_t groups,
                     int *err);

/* A read to the one buffer of the file's set; the rest is as for gd_share_read(). */
struct direct_staged_rig {
    const struct gpunvme_device_file *file;
    uint64_t dst, len, offset;
    struct gd_parts *parts;
    const uint32_t *cancel;
    uint32_t groups, unit;
};

/* The rank-th group. True: it was the last one, and *err is the read's. */
bool direct_staged_rig_read(const struct direct_staged_rig *r, uint32_t rank, int *err);

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

/* Executes the share of group `rank` of `groups` groups in a pass. */
void table_rig_pass(const struct gd_table_launch *l, uint32_t rank, uint32_t groups);

#endif
