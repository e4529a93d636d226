/* SPDX-License-Identifier: BSD-2-Clause */
/* Says where a chunk can be, and writes where it is. */
#include <string.h>

#include "mkfs/fsck/find_chunks.h"
#include "mkfs/fsck/store.h"

uint64_t fsck_chunk_blocks(const struct fsck *f)
{
    return (uint64_t)LAY_SEGMENT_BLOCKS << f->img.geo.chunk_shift;
}

bool fsck_bears_address(const struct fsck *f, const union lay_block *b, uint64_t addr)
{
    return lay_get64(b->head.block) == addr &&
           lay_check_head(b, lay_get32(b->head.magic), f->img.geo.uuid, addr, LAY_ANY_OWNER,
                          NULL) == 0;
}

bool fsck_chunk_at(const struct fsck *f, uint64_t segment, uint64_t block, struct fsck_chunk *out)
{
    const struct lay_geometry *geo = &f->img.geo;
    uint64_t before = segment % lay_chunk_segments(geo) * LAY_SEGMENT_BLOCKS;

    *out = (struct fsck_chunk){.number = segment >> geo->chunk_shift, .place = block - before};
    return segment < lay_segments(geo) && block % LAY_SEGMENT_BLOCKS == 0 && block >= before &&
           lay_range_ok(geo, out->place, fsck_chunk_blocks(f));
}

/* Sets a slot. The age of entries that stay where they were stays, too. */
static int chunk_space_set(struct fsck *f, uint64_t segment, const struct lay_slot *old,
                           struct lay_slot *slot)
{
    struct image_segment s = image_find_segment(&f->img, segment);
    uint32_t age;
    int err = 0;

    lay_slot_set(slot, s.block, s.copy);
    if (!lay_slot_mapped(slot))
        return 0;
    if (old && lay_get64(old->places[0]) == lay_get64(slot->places[0]))
        age = lay_get32(old->age);
    else
        err = fsck_age_of_block(f, LAY_ADDR_CHUNK(segment, 0), &age);
    slot->age = lay_put32(age);
    return err;
}

int fsck_put_map_block(struct fsck *f, uint64_t index)
{
    uint64_t addr = LAY_ADDR(LAY_KIND_MAP, index);
    union lay_block b, old;
    bool sound;
    int err = image_read_name(&f->img, addr, &old, &sound);

    memset(&b, 0, sizeof(b));
    lay_head_init(&b.head, LAY_MAGIC_MAP, f->img.geo.uuid, addr, 0);
    b.map.index = lay_put64(index);
    for (unsigned i = 0; i < LAY_MAP_SLOTS && !err; i++)
        err = chunk_space_set(f, index * LAY_MAP_SLOTS + i, sound ? &old.map.slots[i] : NULL,
                              &b.map.slots[i]);
    return err ? err : store_put(f, addr, &b);
}
