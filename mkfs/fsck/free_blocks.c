/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Allocates free blocks for repairs. No block is reused in the round that found
 * it in use.
 */
#include "mkfs/fsck/fsck.h"

struct allocator {
    struct fsck *f;
    uint64_t at;
    bool by_bitmap;
};

/*
 * With by_bitmap, the bitmap on the device must mark the block as free. Blocks
 * in use there may be lost data.
 */
static bool usable(const struct allocator *a, uint64_t block)
{
    if (fsck_is_claimed(a->f, block))
        return false;
    if (!a->by_bitmap)
        return true;
    const struct lay_bitmap *bm = fsck_bitmap_of(a->f, block);
    return bm && !fsck_is_marked(bm, block) && !fsck_is_given_up(a->f, block);
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
    struct allocator a = {.f = f, .by_bitmap = true};
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
    struct allocator a = {.f = f, .at = f->alloc_at, .by_bitmap = !f->alloc_any};
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
