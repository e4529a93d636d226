/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which blocks belong to something, and whether the bitmaps say the same.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "mkfs/fsck.h"

bool fsck_is_claimed(const struct fsck *f, uint64_t block)
{
    return f->claimed[block / 64] >> block % 64 & 1;
}

/* The bits of the word `block` lies in, from it on, as far as len goes. */
static uint64_t word_mask(uint64_t block, uint64_t len, uint64_t *n)
{
    uint64_t room = 64 - block % 64;

    *n = len < room ? len : room;
    uint64_t ones = *n == 64 ? UINT64_MAX : (UINT64_C(1) << *n) - 1;
    return ones << block % 64;
}

bool fsck_claim(struct fsck *f, uint64_t ino, uint64_t block, uint64_t len)
{
    bool alone = true;

    while (len > 0) {
        uint64_t n;
        uint64_t mask = word_mask(block, len, &n);
        uint64_t *word = &f->claimed[block / 64];
        if (*word & mask) {
            uint64_t first = block - block % 64 + (uint64_t)__builtin_ctzll(*word & mask);
            fsck_report(f, PROBLEM_BLOCK_TWICE, NULL, "inode %" PRIu64 " block %" PRIu64, ino,
                        first);
            alone = false;
        }
        *word |= mask;
        block += n;
        len -= n;
    }
    return alone;
}

/* A run of blocks with one finding, so that a lost file is one line. */
struct run {
    struct fsck *f;
    enum problem problem; /* PROBLEM_COUNT: none is open */
    uint64_t first, len;
};

static void end_run(struct run *r)
{
    if (r->problem != PROBLEM_COUNT)
        fsck_report(r->f, r->problem, NULL, "blocks %" PRIu64 " to %" PRIu64, r->first,
                    r->first + r->len - 1);
    r->problem = PROBLEM_COUNT;
}

static void add_to_run(struct run *r, enum problem problem, uint64_t block)
{
    if (r->problem == problem && r->first + r->len == block) {
        r->len++;
        return;
    }
    end_run(r);
    r->problem = problem;
    r->first = block;
    r->len = 1;
}

static void compare_group(struct run *r, const struct lay_bitmap *bm, uint64_t group)
{
    struct fsck *f = r->f;
    uint32_t blocks = lay_group_blocks(&f->img.geo, group);

    for (uint32_t b = 0; b < blocks; b++) {
        uint64_t block = group * LAY_GROUP_BLOCKS + b;
        bool marked = bm->bits[b / 8] >> b % 8 & 1;
        bool claimed = fsck_is_claimed(f, block);
        if (claimed && !marked)
            add_to_run(r, PROBLEM_BITMAP_FREE, block);
        /* What could not be read may own blocks that look lost. */
        else if (marked && !claimed && !f->incomplete)
            add_to_run(r, PROBLEM_BITMAP_LEAK, block);
    }
}

/* The section that ends with this group: its sum of ages, and how many bitmaps were sound. */
static void check_section(struct fsck *f, uint64_t group, uint64_t sum, uint64_t sound)
{
    uint64_t each = lay_section_groups(&f->img.geo);
    uint64_t section = group / each;

    if (sound == group - section * each + 1 && sum != lay_get64(f->sb.bitmap_tids[section]))
        fsck_report(f, PROBLEM_BITMAP_OLD, NULL, "groups %" PRIu64 " to %" PRIu64, section * each,
                    group);
}

int fsck_bitmaps(struct fsck *f)
{
    const struct lay_geometry *geo = &f->img.geo;
    struct run run = {.f = f, .problem = PROBLEM_COUNT};
    union image_block b;
    uint64_t free_blocks = 0, ages = 0, sound = 0;
    uint64_t each = lay_section_groups(geo);
    bool whole = true;

    for (uint64_t group = 0; group < lay_groups(geo); group++) {
        const char *why = NULL;
        if (group % each == 0)
            ages = sound = 0;
        int err = image_read(&f->img, geo->bitmap_start + group, &b);
        if (err)
            return err;
        if (lay_check_bitmap(geo, &b.bitmap, group, &why) != 0) {
            fsck_report(f, PROBLEM_BITMAP, why, "group %" PRIu64, group);
            whole = false;
            continue;
        }
        free_blocks += lay_get32(b.bitmap.free);
        ages += lay_get64(b.bitmap.head.tid);
        sound++;
        if ((group + 1) % each == 0 || group + 1 == lay_groups(geo))
            check_section(f, group, ages, sound);
        compare_group(&run, &b.bitmap, group);
        fsck_progress(f, "bitmaps", group + 1, lay_groups(geo));
    }
    end_run(&run);
    if (whole && free_blocks != lay_get64(f->sb.free_blocks)) {
        char detail[64];
        snprintf(detail, sizeof(detail), "is %" PRIu64 ", counted %" PRIu64,
                 lay_get64(f->sb.free_blocks), free_blocks);
        fsck_report(f, PROBLEM_SUPER_FREE, detail, "superblock");
    }
    return 0;
}
