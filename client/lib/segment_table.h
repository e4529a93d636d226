/* SPDX-License-Identifier: BSD-2-Clause */
/* Sends the segments of VMM memory to a mount. */
#ifndef CLIENT_LIB_SEGMENT_TABLE_H
#define CLIENT_LIB_SEGMENT_TABLE_H

#include "client/lib/client_internal.h"
#include "client/lib/cuda_driver.h"

/*
 * Sends a table of the segments with their descriptors, at most GPUNVME_MEMORY_SEGMENTS_MAX. Stores
 * the token for REGISTER. Returns 0, or -errno with gpunvme_error().
 */
int segment_table_send(struct connection *g, const struct cuda_segment *segments, unsigned n,
                       uint64_t *token);

#endif
