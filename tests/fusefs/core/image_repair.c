/* SPDX-License-Identifier: BSD-2-Clause */
/* Right checksums for mutated images. */
#include "tests/fusefs/core/image_repair.h"

/* The place in the log that is being repaired. */
struct repair {
    uint8_t *image;
    const struct lay_geometry *geo;
    uint64_t pos;
    uint64_t left; /* blocks of the log not yet seen */
    uint32_t chain;
};

bool image_is_metadata(const uint8_t *block)
{
    return block[0] == 'G' && block[1] == 'N' &&
           lay_get32(((const struct lay_head *)block)->magic) != LAY_MAGIC_JUNUSED;
}

void image_repair_block(uint8_t *block)
{
    const struct lay_head *head = (const struct lay_head *)block;

    lay_seal(block, lay_get64(head->tid));
}

static uint64_t address(const struct repair *r)
{
    return r->geo->journal_start + r->pos;
}

static uint8_t *block_at(const struct repair *r)
{
    return r->image + (address(r) << LAY_BLOCK_SHIFT);
}

static bool step(struct repair *r)
{
    r->pos = lay_journal_next(r->geo, r->pos);
    return --r->left > 0;
}

static bool repair_desc(struct repair *r)
{
    struct lay_journal_desc *d = (struct lay_journal_desc *)block_at(r);
    uint32_t count = lay_get32(d->count);
    bool more = step(r);

    for (uint32_t i = 0; i < count && i < LAY_JDESC_TAGS && more; i++) {
        image_repair_block(block_at(r));
        d->tags[i].crc = lay_put32(lay_block_crc(r->geo->uuid, address(r), block_at(r)));
        more = step(r);
    }
    image_repair_block((uint8_t *)d);
    if (count <= LAY_JDESC_TAGS)
        r->chain = lay_journal_chain(r->chain, d);
    return more;
}

/* False: no record stands here. */
static bool repair_record(struct repair *r)
{
    uint8_t *block = block_at(r);

    switch (lay_get32(((const struct lay_head *)block)->magic)) {
    case LAY_MAGIC_JDESC:
        return repair_desc(r);
    case LAY_MAGIC_JREVOKE:
        image_repair_block(block);
        r->chain = lay_journal_chain(r->chain, block);
        return step(r);
    case LAY_MAGIC_JCOMMIT:
        ((struct lay_journal_commit *)block)->crc = lay_put32(r->chain);
        image_repair_block(block);
        r->chain = 0;
        return step(r);
    default:
        return false;
    }
}

void image_repair_log(uint8_t *image, const struct lay_geometry *geo)
{
    const uint8_t *start = image + (geo->journal_start << LAY_BLOCK_SHIFT);
    uint64_t pos = lay_get64(((const struct lay_journal *)start)->tail_pos);
    struct repair r = {.image = image, .geo = geo, .pos = pos, .left = geo->journal_blocks - 1};
    bool more = pos >= 1 && pos < geo->journal_blocks;

    while (more)
        more = repair_record(&r);
}
