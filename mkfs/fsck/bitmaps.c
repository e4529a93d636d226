/* SPDX-License-Identifier: BSD-2-Clause */
/* Compares the bitmaps with the blocks that belong to an object. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "mkfs/fsck/store.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "bitmaps are compared as words in place");

/* Holds the results for all groups that were checked so far. */
struct totals {
    uint64_t free_blocks;
    bool whole; /* no bitmap remains damaged */
};

static enum problem bitmaps_judge(const struct fsck *f, uint64_t block, bool marked)
{
    bool claimed = fsck_is_claimed(f, block);

    if (claimed && !marked)
        return PROBLEM_BITMAP_FREE;
    /* An unreadable object may own blocks that look lost. */
    return marked && !claimed && !f->incomplete ? PROBLEM_BITMAP_LEAK : PROBLEM_COUNT;
}

/* Skips words that agree, which are most words of a large file system. */
static void compare_group(struct fsck_range *r, const struct lay_bitmap *bm, uint64_t group)
{
    static const struct fsck_group none;
    const struct fsck_group *g = r->f->groups[group] ? r->f->groups[group] : &none;
    uint64_t first = group * LAY_GROUP_BLOCKS, bits;
    uint32_t blocks = lay_group_blocks(&r->f->img.geo, group);

    for (uint32_t b = 0; b < blocks; b += 64) {
        memcpy(&bits, bm->bits + b / 8, sizeof(bits));
        if (bits == g->claimed[b / 64])
            fsck_range_add(r, PROBLEM_COUNT, first + b);
        for (uint32_t i = b; bits != g->claimed[b / 64] && i < b + 64 && i < blocks; i++)
            fsck_range_add(r, bitmaps_judge(r->f, first + i, bits >> i % 64 & 1), first + i);
    }
    fsck_range_add(r, PROBLEM_COUNT, first + blocks);
}

/* Creates the bitmap that matches the claims. */
static void make_bitmap(struct fsck *f, uint64_t group, union lay_block *b)
{
    uint32_t blocks = lay_group_blocks(&f->img.geo, group);
    uint32_t free_bits = 0;

    memset(b, 0, sizeof(*b));
    lay_head_init(&b->head, LAY_MAGIC_BITMAP, f->img.geo.uuid, LAY_ADDR(LAY_KIND_BITMAP, group), 0);
    b->bitmap.group = lay_put32((uint32_t)group);
    for (uint32_t bit = 0; bit < LAY_GROUP_BLOCKS; bit++) {
        bool used = bit >= blocks || fsck_is_claimed(f, group * LAY_GROUP_BLOCKS + bit);
        if (used)
            b->bitmap.bits[bit / 8] |= (uint8_t)(1u << bit % 8);
        free_bits += !used;
    }
    b->bitmap.free = lay_put32(free_bits);
}

static enum problem bitmap_problem(const char *why)
{
    if (strcmp(why, "free") == 0)
        return PROBLEM_BITMAP_COUNT;
    return strcmp(why, "bits past the end") == 0 ? PROBLEM_BITMAP_TAIL : PROBLEM_BITMAP;
}

/*
 * Reads the bitmap of a group. Returns 0, -EUCLEAN with *why if it is damaged or
 * stale, -ENOMEM or a device error.
 */
static int bitmaps_read(struct fsck *f, uint64_t group, union lay_block *b, const char **why)
{
    int err = image_read(&f->img, LAY_ADDR(LAY_KIND_BITMAP, group), b);

    if (err)
        return err;
    if (f->img.age == IMAGE_AGE_STALE) {
        *why = IMAGE_STALE_WHY;
        return -EUCLEAN;
    }
    return lay_check_bitmap(&f->img.geo, &b->bitmap, group, why);
}

const struct lay_bitmap *fsck_bitmap_of(struct fsck *f, uint64_t block)
{
    uint64_t group = block / LAY_GROUP_BLOCKS;
    const char *why;

    if (group != f->bitmap_group)
        f->bitmap_sound = bitmaps_read(f, group, &f->bitmap, &why) == 0;
    f->bitmap_group = group;
    return f->bitmap_sound ? &f->bitmap.bitmap : NULL;
}

bool fsck_in_use(struct fsck *f, uint64_t block, uint64_t len)
{
    for (uint64_t end = block + len; block < end; block++) {
        const struct lay_bitmap *bm = fsck_bitmap_of(f, block);
        if (bm && !fsck_is_marked(bm, block))
            return false;
    }
    return true;
}

/* *sound is true if the bitmap can be counted, as it is or as repaired. */
static int bitmaps_check_group(struct fsck *f, uint64_t group, union lay_block *b, bool *sound)
{
    uint64_t addr = LAY_ADDR(LAY_KIND_BITMAP, group);
    struct fsck_range range = {.f = f, .where = "", .problem = PROBLEM_COUNT};
    const char *why = "cannot be read";
    int err = bitmaps_read(f, group, b, &why);

    if (err && err != -EUCLEAN)
        return err;
    *sound = !err;
    if (*sound)
        compare_group(&range, &b->bitmap, group);
    else
        range.fix = fsck_report(f, bitmap_problem(why), why, "group %" PRIu64, group);
    if (!range.fix)
        return 0;
    make_bitmap(f, group, b);
    *sound = true;
    return store_put(f, addr, b);
}

static void bitmaps_check_free(struct fsck *f, const struct totals *t)
{
    char detail[64];

    if (!t->whole || t->free_blocks == lay_get64(f->sb.area.free_blocks))
        return;
    snprintf(detail, sizeof(detail), "is %" PRIu64 ", counted %" PRIu64,
             lay_get64(f->sb.area.free_blocks), t->free_blocks);
    if (fsck_report(f, PROBLEM_SUPER_FREE, detail, "superblock"))
        f->sb.area.free_blocks = lay_put64(t->free_blocks);
}

static int check_groups(struct fsck *f, struct totals *t)
{
    const struct lay_geometry *geo = &f->img.geo;
    union lay_block b;

    for (uint64_t group = 0; group < lay_groups(geo); group++) {
        bool sound = false;
        int err = bitmaps_check_group(f, group, &b, &sound);
        if (err)
            return err;
        t->whole = t->whole && sound;
        if (sound)
            t->free_blocks += lay_get32(b.bitmap.free);
        fsck_progress(f, "bitmaps", group + 1, lay_groups(geo));
    }
    return 0;
}

int fsck_bitmaps(struct fsck *f)
{
    struct totals t = {.whole = true};

    /* Maps that still have to be repaired decide which blocks are in use. */
    if (f->structural || f->fix_inode_file)
        return 0;
    int err = check_groups(f, &t);
    if (err)
        return err;
    bitmaps_check_free(f, &t);
    return 0;
}
