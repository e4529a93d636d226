/* SPDX-License-Identifier: BSD-2-Clause */
/* A part of a long staged read as a warp makes it, by a host thread that plays its lanes. */
#ifndef TESTS_CLIENT_LIB_DIRECT_STAGED_RIG_H
#define TESTS_CLIENT_LIB_DIRECT_STAGED_RIG_H

#include <stdbool.h>

#include "client/device/gd_types.h"

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

#endif
