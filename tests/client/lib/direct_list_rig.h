/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A share of a list of the direct path as a warp reads it, and the words of a launch, by a host
 * thread that plays the lanes.
 */
#ifndef TESTS_CLIENT_LIB_DIRECT_LIST_RIG_H
#define TESTS_CLIENT_LIB_DIRECT_LIST_RIG_H

#include <stdbool.h>

#include "client/device/gd_types.h"

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

#endif
