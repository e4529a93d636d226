/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Describes the memory of transfers. At its first use with a mount, a region
 * registers a buffer at that mount.
 */
#ifndef CLIENT_LIB_REGIONS_H
#define CLIENT_LIB_REGIONS_H

#include "client/lib/client_internal.h"

struct regions;
struct region;

int regions_new(struct regions **out);
/* No region may be in use. */
void regions_free(struct regions *rs);

/*
 * Adds a region of the caller. Returns -EEXIST if it overlaps another one. `own` is a buffer of
 * that memory, or NULL, and ends with the region.
 */
int regions_add(struct regions *rs, struct cuda_driver *cu, void *addr, size_t len,
                struct gpunvme_buffer *own);
/* Removes a region of the caller. Returns -ENOENT if none begins there. */
int regions_remove(struct regions *rs, void *addr);

/* Refers to a buffer that contains [addr, addr + len) until region_release(). */
struct region_use {
    struct region *region;
    struct gpunvme_buffer *buffer;
    size_t offset; /* offset of addr in the buffer */
    bool held;     /* the caller registered the memory */
};
/*
 * Finds or registers a buffer at g: in the caller's region, in the region of the CUDA allocation,
 * or in one for this use only.
 */
int regions_use(struct regions *rs, struct cuda_driver *cu, struct connection *g, void *addr,
                size_t len, struct region_use *out);
/* Registers all memory of the caller at g. */
int regions_reach(struct regions *rs, struct cuda_driver *cu, struct connection *g);
void regions_release(struct regions *rs, struct region_use *use);

#endif
