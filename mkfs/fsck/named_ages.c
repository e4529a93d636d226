/* SPDX-License-Identifier: BSD-2-Clause */
/* Fills blocks that name the ages of others. */
#include <string.h>

#include "mkfs/fsck/fsck.h"

/* Returns the address of the block whose age is at `index` of a naming block. */
static uint64_t ages_below(uint64_t addr, unsigned index)
{
    uint64_t number = lay_addr_number(addr);

    if (lay_addr_kind(addr) == LAY_KIND_CHUNK)
        return addr + index;
    if (lay_addr_level(addr) == 0)
        return LAY_ADDR_CHUNK(number * LAY_MAP_SLOTS + index, 0);
    return LAY_ADDR_LEVEL(lay_addr_kind(addr), lay_addr_level(addr) - 1, number * LAY_AGES + index);
}

static unsigned ages_count(uint64_t addr)
{
    if (lay_addr_kind(addr) == LAY_KIND_CHUNK)
        return LAY_SEGMENT_BLOCKS;
    return lay_addr_level(addr) == 0 ? LAY_MAP_SLOTS : LAY_AGES;
}

/* Returns true if a naming block has an age for this index. */
static bool ages_has(const struct fsck *f, const union lay_block *name, uint64_t addr, unsigned i)
{
    uint64_t places[2];

    if (lay_addr_kind(addr) == LAY_KIND_CHUNK)
        return i != 0 && name->entries.used[i / 8] >> i % 8 & 1;
    return image_places(&f->img, ages_below(addr, i), places) > 0;
}

/* Returns true if a block that does not match its checksum may be one of this file system. */
static bool ages_is_ours(const struct fsck *f, const union lay_block *b, uint64_t addr)
{
    return lay_get64(b->head.block) == addr ||
           memcmp(b->head.uuid, f->img.geo.uuid, sizeof(b->head.uuid)) == 0;
}

int fsck_age_of_block(struct fsck *f, uint64_t addr, uint32_t *age)
{
    union lay_block b;
    int err = image_read(&f->img, addr, &b);

    *age = 0;
    if (err)
        return err;
    if (f->img.unreadable)
        *age = UINT32_MAX;
    else if (f->img.age != IMAGE_AGE_NEW &&
             (f->img.age != IMAGE_AGE_DAMAGED || ages_is_ours(f, &b, addr)))
        *age = lay_age(&b);
    return 0;
}

int fsck_fill_ages(struct fsck *f, uint64_t addr, union lay_block *b)
{
    bool behind;
    int err = 0;

    for (unsigned i = 0; i < ages_count(addr) && !err; i++) {
        uint64_t below = ages_below(addr, i);
        uint32_t age = 0;
        bool known = true;
        if (ages_has(f, b, addr, i)) {
            err = image_named_age(&f->img, below, &age, &known);
            if (!err && !known)
                age = lay_named_age(b, below, i);
            if (!err && !known && age == 0)
                err = fsck_age_of_block(f, below, &age);
        }
        lay_set_named_age(b, below, i, age);
    }
    return err ? err : fsck_refresh_ages(f, addr, b, &behind);
}

int fsck_refresh_ages(struct fsck *f, uint64_t addr, union lay_block *b, bool *changed)
{
    union lay_block read;
    int err = 0;

    *changed = false;
    for (unsigned i = 0; f->img.names_lost && i < ages_count(addr) && !err; i++) {
        uint64_t below = ages_below(addr, i);
        if (!ages_has(f, b, addr, i) || image_is_newer(&f->img, below))
            continue;
        err = image_read(&f->img, below, &read);
        if (err || f->img.age != IMAGE_AGE_UNKNOWN)
            continue;
        lay_set_named_age(b, below, i, lay_age(&read));
        *changed = true;
    }
    return err;
}
