/* SPDX-License-Identifier: BSD-2-Clause */
/* Right checksums for mutated images. */
#include "tests/fusefs/core/image_repair.h"

#include <string.h>

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

int image_geometry(const uint8_t *image, struct lay_geometry *geo)
{
    const struct lay_label *label = (const struct lay_label *)image;
    const uint64_t super = lay_get64(label->supers[0]);

    lay_label_geometry(label, geo);
    return lay_check_super((const struct lay_super *)(image + (super << LAY_BLOCK_SHIFT)), geo, geo,
                           NULL);
}

/* Newer commits have a higher incarnation, or a higher number in the same one. */
static bool is_newer(const struct lay_log_commit *a, const struct lay_log_commit *b)
{
    uint64_t x = lay_get64(a->incarnation.counter), y = lay_get64(b->incarnation.counter);

    return x != y ? x > y : lay_get64(a->head.tid) > lay_get64(b->head.tid);
}

struct lay_log_commit *image_newest_commit(uint8_t *image, const struct lay_geometry *geo)
{
    struct lay_log_commit *newest = NULL;

    for (uint64_t pos = 0; pos < geo->log_blocks; pos++) {
        uint8_t *block = image + ((geo->log_start + pos) << LAY_BLOCK_SHIFT);
        struct lay_log_commit *c = (struct lay_log_commit *)block;
        if (lay_get32(c->head.magic) == LAY_MAGIC_JCOMMIT &&
            lay_get64(c->head.block) == LAY_ADDR(LAY_KIND_LOG, pos) &&
            (!newest || is_newer(c, newest)))
            newest = c;
    }
    return newest;
}

void image_seal_super(uint8_t *image, const struct lay_geometry *geo)
{
    uint8_t *first = image + (geo->supers[0] << LAY_BLOCK_SHIFT);
    struct lay_log_commit *c = image_newest_commit(image, geo);

    image_repair_block(first);
    memcpy(image + (geo->supers[1] << LAY_BLOCK_SHIFT), first, LAY_BLOCK_SIZE);
    if (!c)
        return;
    c->super_age = lay_put32(lay_age(first));
    image_repair_block((uint8_t *)c);
}

/* Returns the block of the device at which a metadata block is, or LAY_NONE. */
static uint64_t place_of(const uint8_t *image, const struct lay_geometry *geo, uint64_t addr)
{
    uint64_t places[2] = {LAY_NONE}, segment = lay_addr_segment(addr);

    if (lay_addr_kind(addr) != LAY_KIND_CHUNK)
        return lay_places(geo, addr, places) > 0 ? places[0] : LAY_NONE;
    if (!lay_home_ok(geo, addr))
        return LAY_NONE;
    uint64_t at = geo->map_start + segment / LAY_MAP_SLOTS;
    const struct lay_map_block *mb = (const void *)(image + (at << LAY_BLOCK_SHIFT));
    uint64_t start = lay_get64(mb->slots[segment % LAY_MAP_SLOTS].places[0]);
    return lay_range_ok(geo, start, LAY_SEGMENT_BLOCKS) ? start + lay_addr_index(addr) : LAY_NONE;
}

static bool names_ages(const uint8_t *block)
{
    switch (lay_get32(((const struct lay_head *)block)->magic)) {
    case LAY_MAGIC_ENTRIES:
    case LAY_MAGIC_MAP:
    case LAY_MAGIC_AGES:
    case LAY_MAGIC_SUPER:
        return true;
    default:
        return false;
    }
}

void image_seal_block(uint8_t *image, const struct lay_geometry *geo, uint8_t *block)
{
    for (;;) {
        uint64_t addr = lay_get64(((const struct lay_head *)block)->block);
        unsigned index;
        image_repair_block(block);
        if (addr == LAY_ADDR_SUPER)
            break;
        /* Images in the log are named by nothing. */
        uint64_t own = place_of(image, geo, addr);
        if (own == LAY_NONE || block != image + (own << LAY_BLOCK_SHIFT))
            return;
        uint64_t name = lay_name_of(geo, addr, &index);
        uint64_t place = name == LAY_NONE ? LAY_NONE : place_of(image, geo, name);
        if (place == LAY_NONE || !names_ages(image + (place << LAY_BLOCK_SHIFT)))
            return;
        uint32_t age = lay_age(block);
        block = image + (place << LAY_BLOCK_SHIFT);
        lay_set_named_age(block, addr, index, age);
    }
    image_seal_super(image, geo);
}

static uint8_t *block_at(const struct repair *r)
{
    return r->image + ((r->geo->log_start + r->pos) << LAY_BLOCK_SHIFT);
}

static bool step(struct repair *r)
{
    r->pos = lay_log_after(r->geo, r->pos);
    return --r->left > 0;
}

static bool repair_desc(struct repair *r)
{
    struct lay_log_descriptor *d = (struct lay_log_descriptor *)block_at(r);
    uint32_t count = lay_get32(d->count);
    bool more = step(r);

    for (uint32_t i = 0; i < count && i < LAY_LOG_TAGS && more; i++) {
        image_repair_block(block_at(r));
        d->tags[i].age = lay_put32(lay_age(block_at(r)));
        more = step(r);
    }
    image_repair_block((uint8_t *)d);
    if (count <= LAY_LOG_TAGS)
        r->chain = lay_log_chain(r->chain, d);
    return more;
}

/* False: no record stands here. */
static bool repair_record(struct repair *r)
{
    uint8_t *block = block_at(r);

    switch (lay_get32(((const struct lay_head *)block)->magic)) {
    case LAY_MAGIC_JDESC:
        return repair_desc(r);
    case LAY_MAGIC_JCOMMIT:
        ((struct lay_log_commit *)block)->crc = lay_put32(r->chain);
        image_repair_block(block);
        r->chain = 0;
        return step(r);
    default:
        return false;
    }
}

void image_repair_log(uint8_t *image, const struct lay_geometry *geo)
{
    const struct lay_log_commit *newest = image_newest_commit(image, geo);
    uint64_t pos = newest ? lay_get64(newest->tail_pos) : LAY_NONE;
    struct repair r = {.image = image, .geo = geo, .pos = pos, .left = geo->log_blocks};
    bool more = pos < geo->log_blocks;

    while (more)
        more = repair_record(&r);
}
