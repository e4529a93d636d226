/* SPDX-License-Identifier: BSD-2-Clause */
/* Uses a cache (client/device/gd_cache.h) as warps do, by a host thread. */
#ifndef TESTS_CLIENT_LIB_CACHE_RIG_H
#define TESTS_CLIENT_LIB_CACHE_RIG_H

#include <sys/cdefs.h>

#include "client/device/gd_cache_types.h"

__BEGIN_DECLS

#define CACHE_LANES 32u

/* An element of a lane, and its result: 0 or -errno. */
struct cache_element {
    uint64_t dst, offset;
    int err;
};

/* Reads as a warp. Returns the bytes or -errno. */
int64_t cache_rig_read(const struct gpunvme_device_cache *c, void *dst, uint64_t n,
                       uint64_t offset);
/* Reads CACHE_LANES elements of `size` bytes, one by each lane of a warp. */
void cache_rig_elements(const struct gpunvme_device_cache *c, uint32_t size,
                        struct cache_element *elements);
/* Prefetches as a warp. Returns 0 or -errno. */
int cache_rig_prefetch(const struct gpunvme_device_cache *c, uint64_t n, uint64_t offset);
/* A warp holds this line. */
struct cache_rig_line {
    const uint8_t *bytes; /* NULL: no line is held */
    uint64_t offset, len; /* in the file, in bytes */
    uint64_t *word;
};
/* Holds a line as a warp. Stores the result, 0 or -errno. */
struct cache_rig_line cache_rig_hold(const struct gpunvme_device_cache *c, uint64_t offset,
                                     int *err);
void cache_rig_release(const struct cache_rig_line *line);

__END_DECLS

#endif
