/* SPDX-License-Identifier: BSD-2-Clause */
/* A read of the direct path as a warp makes it, by a host thread that plays its lanes. */
#ifndef TESTS_CLIENT_LIB_DIRECT_SINGLE_RIG_H
#define TESTS_CLIENT_LIB_DIRECT_SINGLE_RIG_H

#include "client/device/gd_types.h"

/* Bytes or -errno, as gpunvme_pread_warp(): of a read that ends before the file does. */
int64_t direct_single_read(const struct gpunvme_device_file *f, uint64_t dst, uint64_t len,
                           uint64_t offset);

/* The rank-th of `groups` parts of it: 0 or -errno. dealing: gd_reader.dealing. */
int direct_part_read(const struct gpunvme_device_file *f, uint64_t dst, uint64_t len,
                     uint64_t offset, uint32_t rank, uint32_t groups, struct gq_dealing *dealing);

#endif
