/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A share of a list of the direct path as a warp reads it, by a host thread that plays its lanes.
 */
#ifndef TESTS_CLIENT_LIB_DIRECT_LIST_RIG_H
#define TESTS_CLIENT_LIB_DIRECT_LIST_RIG_H

#include "client/device/gd_types.h"

/*
 * The rank-th of `groups` shares of n pieces, to the one buffer of the file's set from dst on.
 * dealing: NULL, or the words by which the groups deal the list.
 */
int direct_list_read(const struct gpunvme_device_file *f, uint64_t dst, struct gq_read_desc *list,
                     uint32_t n, uint32_t rank, uint32_t groups, struct gq_dealing *dealing);

#endif
