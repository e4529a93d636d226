/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Searches the device for chunks that the map lacks. A segment is where blocks
 * bear its addresses, in space that is in use and that no known chunk has.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mkfs/fsck/find_chunks.h"

struct chunk_scan {
    struct fsck *f;
    const uint8_t *taken; /* per chunk: it is not sought */
    struct fsck_list *chunks;
    union lay_block *blocks; /* of the segment */
    bool deep;
};

/* Describes what was found in a segment. */
struct scan_segment {
    uint64_t number, tid;
    uint32_t score; /* blocks that bear its addresses, entries aside */
    uint32_t used;  /* blocks that the entries mark as in use, or 0 */
};

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

/* Reads a segment; blocks that cannot be read are zero. */
static int scan_read(struct chunk_scan *s, uint64_t block)
{
    size_t len = LAY_SEGMENT_BLOCKS << LAY_BLOCK_SHIFT;
    int err = bd_read(s->f->img.dev, block << LAY_BLOCK_SHIFT, s->blocks, len);

    if (err != -EIO)
        return err;
    memset(s->blocks, 0, len);
    for (uint64_t i = 0; i < LAY_SEGMENT_BLOCKS; i++) {
        err = image_read_raw(&s->f->img, block + i, &s->blocks[i]);
        if (err && err != -EIO)
            return err;
    }
    return 0;
}

/* Finds the segment of the first block that bears an address of its position. */
static bool scan_identify(const struct chunk_scan *s, uint64_t *segment)
{
    for (uint32_t i = 0; i < (s->deep ? LAY_SEGMENT_BLOCKS : 1); i++) {
        uint64_t addr = lay_get64(s->blocks[i].head.block);
        if (lay_addr_kind(addr) != LAY_KIND_CHUNK || lay_addr_index(addr) != i ||
            !fsck_bears_address(s->f, &s->blocks[i], addr))
            continue;
        *segment = lay_addr_segment(addr);
        return true;
    }
    return false;
}

/* Counts the blocks of the segment that were read. */
static void scan_count(const struct chunk_scan *s, struct scan_segment *found)
{
    const struct lay_entries *entries = &s->blocks[0].entries;
    bool sound = lay_check_entries(&s->f->img.geo, entries, found->number, NULL) == 0;

    for (uint32_t i = 0; i < LAY_SEGMENT_BLOCKS; i++) {
        bool used = sound && i > 0 && entries->used[i / 8] >> i % 8 & 1;
        uint64_t tid = lay_get64(s->blocks[i].head.tid);
        found->used += used;
        if (!fsck_bears_address(s->f, &s->blocks[i], LAY_ADDR_CHUNK(found->number, i)))
            continue;
        found->score += i > 0 && (used || !sound);
        found->tid = tid > found->tid ? tid : found->tid;
    }
}

/* Adds what was found to the chunk's place. */
static int scan_add(struct chunk_scan *s, const struct fsck_chunk *place,
                    const struct scan_segment *found)
{
    bool used =
        found->score > 0 || image_find_patch(&s->f->img, LAY_ADDR_CHUNK(found->number, 0)) != NULL;
    struct fsck_chunk *c = s->chunks->items;
    size_t i = 0;

    while (i < s->chunks->count && (c[i].number != place->number || c[i].place != place->place))
        i++;
    bool known = i < s->chunks->count;
    struct fsck_chunk *to = known ? &c[i] : fsck_grow(s->chunks, sizeof(*to));
    if (!to)
        return -ENOMEM;
    if (!known) {
        *to = *place;
        to->empty = true;
    }
    to->empty = to->empty && !used;
    to->score += 1 + found->score;
    to->tid = found->tid > to->tid ? found->tid : to->tid;
    return 0;
}

/* Takes the segment at a place. Old blocks in space that data has taken are too few. */
static int scan_segment(struct chunk_scan *s, uint64_t block)
{
    struct scan_segment found = {0};
    struct fsck_chunk place;
    int err = s->deep ? scan_read(s, block) : image_read_raw(&s->f->img, block, s->blocks);

    if (err)
        return err == -EIO ? 0 : err;
    if (!scan_identify(s, &found.number) || !fsck_chunk_at(s->f, found.number, block, &place) ||
        s->taken[place.number])
        return 0;
    err = s->deep ? 0 : scan_read(s, block);
    if (err)
        return err;
    scan_count(s, &found);
    return found.score * 2 >= found.used ? scan_add(s, &place, &found) : 0;
}

/*
 * Returns true if a bitmap that is sound has a free block in the segment. A
 * segment is in one group.
 */
static bool scan_is_free(struct fsck *f, uint64_t block)
{
    const struct lay_bitmap *bm = fsck_bitmap_of(f, block);
    uint8_t used[LAY_SEGMENT_BLOCKS / 8];

    memset(used, 0xff, sizeof(used));
    return bm && memcmp(bm->bits + block % LAY_GROUP_BLOCKS / 8, used, sizeof(used)) != 0;
}

int fsck_scan_chunks(struct fsck *f, const uint8_t *taken, struct fsck_list *chunks, bool deep)
{
    struct chunk_scan s = {.f = f, .taken = taken, .chunks = chunks, .deep = deep};
    uint64_t end = f->img.geo.blocks / LAY_SEGMENT_BLOCKS;
    int err = 0;

    s.blocks = aligned_alloc(LAY_BLOCK_SIZE, LAY_SEGMENT_BLOCKS << LAY_BLOCK_SHIFT);
    if (!s.blocks)
        return -ENOMEM;
    for (uint64_t i = 0; i < end && !err; i++) {
        uint64_t block = i * LAY_SEGMENT_BLOCKS;
        if (!scan_is_free(f, block) && !fsck_any_claimed(f, block, LAY_SEGMENT_BLOCKS))
            err = scan_segment(&s, block);
        fsck_progress(f, "chunks", i + 1, end);
    }
    free(s.blocks);
    return err;
}
