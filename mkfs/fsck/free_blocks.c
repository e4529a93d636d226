/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Allocates free blocks for repairs. No block is reused in the round that found
 * it in use.
 */
#include "mkfs/fsck/store.h"

struct allocator {
    struct fsck *f;
    uint64_t at;
    uint64_t group; /* group of `bits` */
    union lay_block bits;
    bool sound, by_bitmap;
};

/*
 * True if the bitmap on the device marks the block as free. Blocks in use there
 * may be lost data.
 */
static bool marked_free(struct allocator *a, uint64_t block)
{
    uint64_t group = block / LAY_GROUP_BLOCKS;
    uint64_t bit = block % LAY_GROUP_BLOCKS;
    const char *why;

    if (group != a->group) {
        a->group = group;
        a->sound = fsck_read_bitmap(a->f, group, &a->bits, &why) == 0;
    }
    return a->sound && !(a->bits.bitmap.bits[bit / 8] >> bit % 8 & 1);
}

static bool usable(struct allocator *a, uint64_t block)
{
    struct fsck *f = a->f;

    return !fsck_is_claimed(f, block) &&
           (!a->by_bitmap || (marked_free(a, block) && !fsck_is_given_up(f, block)));
}

static uint64_t free_blocks_find(struct allocator *a, uint64_t want, uint64_t *len)
{
    uint64_t end = a->f->img.geo.blocks;
    uint64_t block = a->at;

    while (block < end && !usable(a, block))
        block++;
    for (*len = 0; *len < want && block + *len < end && usable(a, block + *len);)
        ++*len;
    a->at = block + *len;
    return *len ? block : 0;
}

uint64_t fsck_alloc_chunk(struct fsck *f)
{
    struct allocator a = {.f = f, .group = UINT64_MAX, .by_bitmap = true};
    uint64_t len = fsck_chunk_blocks(f), block = LAY_SEGMENT_BLOCKS, n = 0;

    while (n < len && block + len <= f->img.geo.blocks) {
        for (n = 0; n < len && usable(&a, block + n);)
            n++;
        if (n < len)
            block = (block + n) / LAY_SEGMENT_BLOCKS * LAY_SEGMENT_BLOCKS + LAY_SEGMENT_BLOCKS;
    }
    if (n < len)
        return 0;
    fsck_claim_fixed(f, block, len);
    return block;
}

uint64_t fsck_alloc(struct fsck *f, uint64_t want, uint64_t *len)
{
    struct allocator a = {.f = f, .at = f->alloc_at, .group = UINT64_MAX};

    a.by_bitmap = !f->alloc_any;
    uint64_t block = free_blocks_find(&a, want, len);
    if (*len == 0 && !f->alloc_any) {
        f->alloc_any = true;
        a.by_bitmap = false;
        a.at = 1;
        block = free_blocks_find(&a, want, len);
    }
    f->alloc_at = a.at;
    fsck_claim_fixed(f, block, *len);
    return block;
}
