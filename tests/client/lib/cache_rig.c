/* SPDX-License-Identifier: BSD-2-Clause */
/* Uses a cache as warps do, by a host thread that executes 32 lanes. */
#define GQ_LANES 32u
#include "client/device/gd_cache_elements.h"
#include "client/device/gd_cache_pins.h"

#include "tests/client/lib/cache_rig.h"

int64_t cache_rig_read(const struct gpunvme_device_cache *c, void *dst, uint64_t n, uint64_t offset)
{
    return gd_cache_pread_warp(c, (uint64_t)(uintptr_t)dst, n, offset);
}

void cache_rig_elements(const struct gpunvme_device_cache *c, uint32_t size,
                        struct cache_element *elements)
{
    struct gd_cache_elements e = {.size = size};
    struct gd_cache_reader self;
    int err = gd_cache_begin(&self, gq_whole_group(), c);

    for (uint32_t i = 0; i < CACHE_LANES; i++) {
        e.dst[i] = elements[i].dst;
        e.offset[i] = elements[i].offset;
        e.left[i] = 1;
        e.err[i] = err;
    }
    if (!err)
        gd_cache_read_elements(&self, &e);
    for (uint32_t i = 0; i < CACHE_LANES; i++)
        elements[i].err = e.err[i];
}

int cache_rig_prefetch(const struct gpunvme_device_cache *c, uint64_t n, uint64_t offset)
{
    struct gd_cache_reader self;
    int err = gd_cache_begin(&self, gq_whole_group(), c);

    return err ? err : gd_cache_prefetch(&self, n, offset);
}

struct cache_rig_line cache_rig_hold(const struct gpunvme_device_cache *c, uint64_t offset,
                                     int *err)
{
    struct gd_cache_held held = {.word = NULL};
    struct gd_cache_reader self;

    *err = gd_cache_begin(&self, gq_whole_group(), c);
    if (!*err)
        *err = gd_cache_hold(&self, offset, &held);
    return (struct cache_rig_line){.bytes = (const uint8_t *)(uintptr_t)held.address,
                                   .offset = held.offset,
                                   .len = held.bytes,
                                   .word = held.word};
}

void cache_rig_release(const struct cache_rig_line *line)
{
    struct gd_cache_held held = {.word = line->word};

    gd_cache_release(&held);
}
