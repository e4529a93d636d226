/* SPDX-License-Identifier: BSD-2-Clause */
/* Translates logical addresses with the chunk map in memory. */
#include "fusefs/core/base/places.h"

#include "fusefs/core/state.h"

static unsigned places_in_chunk(const struct ffs_chunks *c, uint64_t addr,
                                uint64_t places[FFS_PLACES])
{
    uint64_t segment = lay_addr_segment(addr);

    if (segment >= c->segments || c->starts[segment] == 0)
        return 0;
    places[0] = c->starts[segment] + lay_addr_index(addr);
    if (c->copies[segment] == 0)
        return 1;
    places[1] = c->copies[segment] + lay_addr_index(addr);
    return 2;
}

unsigned ffs_places_of(const struct ffs *fs, uint64_t addr, uint64_t places[FFS_PLACES])
{
    if (lay_addr_kind(addr) != LAY_KIND_CHUNK)
        return lay_places(&fs->geo, addr, places);
    if (!ffs_segment_mapped(&fs->chunks, lay_addr_segment(addr)))
        return 0;
    return places_in_chunk(&fs->chunks, addr, places);
}

unsigned ffs_homes_of(const struct ffs *fs, uint64_t addr, uint64_t places[FFS_PLACES])
{
    if (lay_addr_kind(addr) != LAY_KIND_CHUNK)
        return lay_places(&fs->geo, addr, places);
    return places_in_chunk(&fs->chunks, addr, places);
}
