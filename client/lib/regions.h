/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory that transfers go to and from, and its buffers: one for each mount that it is used with,
 * registered when it is first needed.
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
 * The caller's: -EEXIST if it overlaps another one of the caller's that still is. own (or NULL) is
 * a buffer of that memory and ends with the region.
 */
int regions_add(struct regions *rs, struct cuda_driver *cu, void *addr, size_t len,
                struct gpunvme_buffer *own);
/* -ENOENT: no region of the caller's begins there. */
int regions_remove(struct regions *rs, void *addr);

/* A buffer around [addr, +len) until region_release(). */
struct region_use {
    struct region *region;
    struct gpunvme_buffer *buffer;
    size_t offset; /* of addr in it */
    bool held;     /* the caller registered the memory */
};
/*
 * g: where the buffer is to be registered. The caller's region, the one of the CUDA allocation, or
 * one for this use alone.
 */
int regions_use(struct regions *rs, struct cuda_driver *cu, struct connection *g, void *addr,
                size_t len, struct region_use *out);
/* Registers all memory of the caller's at g. */
int regions_reach(struct regions *rs, struct cuda_driver *cu, struct connection *g);
void regions_release(struct regions *rs, struct region_use *use);

#endif
