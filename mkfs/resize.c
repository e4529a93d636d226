/* SPDX-License-Identifier: BSD-2-Clause */
/* Growth of a file system that is not mounted. */
#include "mkfs/resize.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "layout/layout.h"

#define CHUNK 256u /* blocks written at a time: 1 MiB */

union chunk_block {
    struct lay_bitmap bitmap;
    struct lay_sums sums;
    struct lay_journal journal;
};

struct resize {
    struct bd_dev *dev;
    struct lay_super sb; /* the old one, then the new one */
    struct lay_geometry old, geo;
    uint64_t tid; /* of the blocks written here */
    uint64_t free_blocks;
    union chunk_block *chunk; /* CHUNK of them */
    union chunk_block *check; /* the same, read back */
};

static uint64_t groups_of(uint64_t blocks)
{
    return (blocks + LAY_GROUP_BLOCKS - 1) / LAY_GROUP_BLOCKS;
}

static int read_block(struct resize *r, uint64_t block, void *buf)
{
    return bd_read(r->dev, block << LAY_BLOCK_SHIFT, buf, LAY_BLOCK_SIZE);
}

/* Durable when it returns. */
static int write_block(struct resize *r, uint64_t block, const void *buf)
{
    int err = bd_write(r->dev, block << LAY_BLOCK_SHIFT, buf, LAY_BLOCK_SIZE, 0);

    return err ? err : bd_flush(r->dev);
}

/* --- Bitmaps --------------------------------------------------------------------------------- */

/* Marks the blocks of [from, from + len) that lie in the group as in use, or as free. */
static void mark(struct lay_bitmap *bm, uint64_t group, uint64_t from, uint64_t len, bool used)
{
    uint64_t first = group * LAY_GROUP_BLOCKS, end = first + LAY_GROUP_BLOCKS;
    uint64_t to = from + len < end ? from + len : end;

    for (uint64_t b = from > first ? from : first; b < to; b++) {
        uint8_t bit = (uint8_t)(1u << (b - first) % 8);
        uint8_t *byte = &bm->bits[(b - first) / 8];
        *byte = used ? *byte | bit : *byte & (uint8_t)~bit;
    }
}

static int read_old(struct resize *r, uint64_t group, struct lay_bitmap *bm)
{
    memset(bm, 0, sizeof(*bm));
    if (group >= lay_groups(&r->old))
        return 0;
    int err = read_block(r, r->old.bitmap_start + group, bm);
    if (!err)
        lay_bitmap_complete(&r->old, bm, group);
    return err ? err : lay_check_bitmap(&r->old, bm, group, NULL);
}

static int make_bitmap(struct resize *r, uint64_t group, struct lay_bitmap *bm)
{
    const struct lay_geometry *old = &r->old, *geo = &r->geo;
    int err = read_old(r, group, bm);

    if (err)
        return err;
    /* Bits past an end are 1. */
    mark(bm, group, old->blocks, geo->blocks - old->blocks, false);
    mark(bm, group, geo->blocks, LAY_GROUP_BLOCKS, true);
    mark(bm, group, old->bitmap_start, old->bitmap_blocks, false);
    mark(bm, group, old->sums_start, old->sums_blocks, false);
    mark(bm, group, old->copies[1], 1, false);
    mark(bm, group, geo->bitmap_start, geo->bitmap_blocks, true);
    mark(bm, group, geo->sums_start, geo->sums_blocks, true);
    mark(bm, group, geo->copies[1], 1, true);
    uint32_t free_bits = 0;
    for (uint32_t i = 0; i < sizeof(bm->bits); i++)
        free_bits += 8u - (uint32_t)__builtin_popcount(bm->bits[i]);
    lay_head_init(&bm->head, LAY_MAGIC_BITMAP, geo->uuid, geo->bitmap_start + group, 0);
    bm->group = lay_put32((uint32_t)group);
    bm->free = lay_put32(free_bits);
    lay_seal(bm, r->tid);
    r->free_blocks += free_bits;
    return 0;
}

/* Writes the first n blocks of the chunk from block `at` on, durably, and reads them back. */
static int write_chunk(struct resize *r, uint64_t at, uint64_t n)
{
    int err = bd_write(r->dev, at << LAY_BLOCK_SHIFT, r->chunk, n << LAY_BLOCK_SHIFT, 0);

    if (!err)
        err = bd_flush(r->dev);
    if (!err)
        err = bd_read(r->dev, at << LAY_BLOCK_SHIFT, r->check, n << LAY_BLOCK_SHIFT);
    if (!err && memcmp(r->chunk, r->check, n << LAY_BLOCK_SHIFT) != 0)
        err = -EUCLEAN;
    return err;
}

static uint64_t chunk_of(uint64_t left)
{
    return left < CHUNK ? left : CHUNK;
}

static int write_bitmaps(struct resize *r)
{
    uint64_t groups = lay_groups(&r->geo);
    int err = 0;

    for (uint64_t g = 0, n; g < groups && !err; g += n) {
        n = chunk_of(groups - g);
        for (uint64_t i = 0; i < n && !err; i++)
            err = make_bitmap(r, g + i, &r->chunk[i].bitmap);
        if (!err)
            err = write_chunk(r, r->geo.bitmap_start + g, n);
    }
    return err;
}

/* --- Checksums of data ------------------------------------------------------------------------ */

/* A checksum block in its new place; one of zeros stays so. */
static int make_sums(struct resize *r, uint64_t index, struct lay_sums *sums)
{
    int err = read_block(r, r->old.sums_start + index, sums);

    if (!err)
        err = lay_check_sums(&r->old, sums, index, NULL);
    if (err || lay_get32(sums->head.magic) != LAY_MAGIC_SUMS)
        return err;
    lay_head_init(&sums->head, LAY_MAGIC_SUMS, r->geo.uuid, r->geo.sums_start + index, 0);
    lay_seal(sums, r->tid);
    return 0;
}

/* Blocks that are new have no checksums: zeros. */
static int write_sums(struct resize *r)
{
    uint64_t kept = r->old.sums_blocks;
    int err = 0;

    for (uint64_t at = 0, n; at < kept && !err; at += n) {
        n = chunk_of(kept - at);
        for (uint64_t i = 0; i < n && !err; i++)
            err = make_sums(r, at + i, &r->chunk[i].sums);
        if (!err)
            err = write_chunk(r, r->geo.sums_start + at, n);
    }
    if (err || kept == r->geo.sums_blocks)
        return err;
    err = bd_write_zeroes(r->dev, (r->geo.sums_start + kept) << LAY_BLOCK_SHIFT,
                          (r->geo.sums_blocks - kept) << LAY_BLOCK_SHIFT);
    return err ? err : bd_flush(r->dev);
}

/* --- Journal and superblocks ------------------------------------------------------------------ */

/* The number of this resize is taken: the log goes on with the next. */
static int write_header(struct resize *r, uint64_t super_tid)
{
    struct lay_journal *j = &r->chunk[0].journal;
    int err = read_block(r, r->geo.journal_start, j);

    if (!err)
        err = lay_check_journal(&r->geo, j, NULL);
    if (err)
        return err;
    j->tail_tid = lay_put64(r->tid + 1);
    j->super_tid = lay_put64(super_tid);
    lay_seal(j, r->tid + 1);
    return write_block(r, r->geo.journal_start, j);
}

static int write_super(struct resize *r, uint64_t at)
{
    lay_head_init(&r->sb.head, LAY_MAGIC_SUPER, r->geo.uuid, at, 0);
    lay_seal(&r->sb, r->tid);
    return write_block(r, at, &r->sb);
}

/* All bitmaps have one age, so a section has its count times that. */
static void set_ages(struct resize *r)
{
    uint64_t each = lay_section_groups(&r->geo), groups = lay_groups(&r->geo);

    memset(r->sb.bitmap_tids, 0, sizeof(r->sb.bitmap_tids));
    for (uint64_t first = 0; first < groups; first += each) {
        uint64_t n = groups - first < each ? groups - first : each;
        r->sb.bitmap_tids[first / each] = lay_put64(n * r->tid);
    }
}

static void set_super(struct resize *r)
{
    struct lay_super *sb = &r->sb;

    sb->blocks = sb->devices[0].blocks = lay_put64(r->geo.blocks);
    sb->free_blocks = lay_put64(r->free_blocks);
    sb->bitmap_start = lay_put64(r->geo.bitmap_start);
    sb->bitmap_blocks = lay_put64(r->geo.bitmap_blocks);
    sb->sums_start = lay_put64(r->geo.sums_start);
    sb->sums_blocks = lay_put64(r->geo.sums_blocks);
    sb->copies[1] = lay_put64(r->geo.copies[1]);
    set_ages(r);
}

/* Block 0 decides; what follows it a mount would do as well. */
static int write_supers(struct resize *r)
{
    static const uint8_t zeros[LAY_BLOCK_SIZE];

    set_super(r);
    int err = write_super(r, r->geo.copies[1]);
    if (!err)
        err = write_super(r, 0);
    if (!err)
        err = write_super(r, r->geo.copies[0]);
    if (!err)
        err = write_header(r, r->tid);
    return err ? err : write_block(r, r->old.copies[1], zeros);
}

/* --- The whole ------------------------------------------------------------------------------- */

/* Bitmaps, checksums and a copy of the superblock. */
static uint64_t needed(uint64_t blocks, bool data_csum)
{
    return groups_of(blocks) + (data_csum ? lay_sums_blocks(blocks) : 0) + 1;
}

uint64_t resize_least(uint64_t old, bool data_csum)
{
    uint64_t blocks = old + 1;

    /* What is needed may need a block more itself. */
    while (old + needed(blocks, data_csum) > blocks)
        blocks = old + needed(blocks, data_csum);
    return blocks;
}

static int read_old_super(struct resize *r)
{
    uint64_t device_blocks = r->dev->info.bytes >> LAY_BLOCK_SHIFT;
    int err = read_block(r, 0, &r->sb);

    if (!err)
        err = lay_check_super(&r->sb, 0, device_blocks, &r->old, NULL, NULL);
    if (err)
        return err == -EIO ? err : -EUCLEAN;
    uint64_t ro_compat = r->old.ro_compat & ~LAY_FEATURE_RO_COMPAT;
    uint64_t compat = r->old.compat & ~LAY_FEATURE_COMPAT;
    return lay_get32(r->sb.state) == LAY_STATE_CLEAN && !ro_compat && !compat ? 0 : -EUCLEAN;
}

static int plan(struct resize *r, uint64_t blocks)
{
    if (blocks < r->old.blocks)
        return -EINVAL;
    if (blocks > LAY_MAX_BLOCKS)
        return -EFBIG;
    if (blocks > r->dev->info.bytes >> LAY_BLOCK_SHIFT)
        return -ENOSPC;
    bool data_csum = r->old.sums_blocks != 0;
    if (blocks < resize_least(r->old.blocks, data_csum))
        return -ERANGE;
    r->geo = r->old;
    r->geo.blocks = blocks;
    r->geo.bitmap_start = r->old.blocks;
    r->geo.bitmap_blocks = groups_of(blocks);
    if (data_csum) {
        r->geo.sums_start = r->geo.bitmap_start + r->geo.bitmap_blocks;
        r->geo.sums_blocks = lay_sums_blocks(blocks);
    }
    r->geo.copies[1] = blocks - 1;
    r->tid = lay_get64(r->sb.head.tid) + 1;
    return 0;
}

static int grow(struct resize *r)
{
    int err = write_bitmaps(r);

    if (!err)
        err = write_sums(r);
    if (!err)
        err = write_header(r, r->tid - 1);
    return err ? err : write_supers(r);
}

int resize_grow(struct bd_dev *dev, uint64_t blocks)
{
    struct resize *r = calloc(1, sizeof(*r));

    if (!r)
        return -ENOMEM;
    r->dev = dev;
    r->chunk = calloc(CHUNK, sizeof(*r->chunk));
    r->check = calloc(CHUNK, sizeof(*r->check));
    int err = r->chunk && r->check ? read_old_super(r) : -ENOMEM;
    if (!err && blocks != r->old.blocks) {
        err = plan(r, blocks);
        if (!err)
            err = grow(r);
    }
    free(r->check);
    free(r->chunk);
    free(r);
    return err;
}
