/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checks the structure of checksum blocks. Data is read by `gpunvme scrub`, and
 * here only to repair a damaged block.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "mkfs/fsck/store.h"

#define CHUNK 256u /* blocks read at once: 1 MiB */

/* Replaces a damaged block by an empty one, which removes its data's checksums. */
static int empty_block(struct fsck *f, uint64_t index)
{
    uint64_t addr = LAY_ADDR(LAY_KIND_SUMS, index);
    union lay_block b;

    memset(&b, 0, sizeof(b));
    lay_head_init(&b.head, LAY_MAGIC_SUMS, f->img.geo.uuid, addr, 0);
    b.sums.index = lay_put64(index);
    return store_put(f, addr, &b);
}

/* Holds the entries of a damaged block. */
struct entries {
    struct fsck *f;
    uint64_t first; /* block of the first entry */
    struct lay_sums *sums;
    uint64_t matching;
    bool differs[LAY_SUMS_ENTRIES];
};

/* Compares the entry of a block with its data; entries of blocks without data become 0. */
static void entries_compare(struct entries *e, unsigned i)
{
    uint64_t block = e->first + i;
    bool data = block < e->f->img.geo.blocks && fsck_is_claimed(e->f, block) &&
                !fsck_is_metadata(e->f, block);
    union lay_block b;

    e->differs[i] = false;
    if (!data)
        e->sums->sums[i] = lay_put32(LAY_NO_SUM);
    if (lay_get32(e->sums->sums[i]) == LAY_NO_SUM)
        return;
    e->differs[i] = image_read_raw(&e->f->img, block, &b) != 0 ||
                    lay_data_sum(&b) != lay_get32(e->sums->sums[i]);
    e->matching += !e->differs[i];
}

static int entries_suspect(struct entries *e, uint64_t i, uint64_t len, bool unverified)
{
    const struct fsck_suspect s = {e->first + i, len, unverified};

    e->f->gave_up = true;
    return fsck_append(&e->f->suspects, &s, sizeof(s));
}

/* Compares all entries, and records the blocks whose data is in doubt. */
static int entries_judge(struct entries *e)
{
    int err = 0;

    for (unsigned i = 0; i < LAY_SUMS_ENTRIES; i++)
        entries_compare(e, i);
    if (e->matching == 0)
        return entries_suspect(e, 0, LAY_SUMS_ENTRIES, true);
    for (unsigned i = 0; i < LAY_SUMS_ENTRIES && !err; i++)
        err = e->differs[i] ? entries_suspect(e, i, 1, false) : 0;
    return err;
}

/*
 * Keeps the entries of a block whose checksum failed. An entry that matches its
 * data proves itself. The others stay as well, so that data that may be wrong is
 * not given out. If none matches, the block was overwritten, and all go.
 */
static int keep_matching(struct fsck *f, uint64_t index, union lay_block *b)
{
    uint64_t addr = LAY_ADDR(LAY_KIND_SUMS, index);
    struct entries *e = calloc(1, sizeof(*e));

    if (!e)
        return -ENOMEM;
    *e = (struct entries){.f = f, .first = index * LAY_SUMS_ENTRIES, .sums = &b->sums};
    int err = entries_judge(e);
    bool useless = e->matching == 0;
    free(e);
    if (err || useless)
        return err ? err : empty_block(f, index);
    lay_head_init(&b->head, LAY_MAGIC_SUMS, f->img.geo.uuid, addr, 0);
    b->sums.index = lay_put64(index);
    b->sums.reserved = lay_put64(0);
    return store_put(f, addr, b);
}

/* Returns true if the block as it is on the device is new, or sound and of the named age. */
static int sum_blocks_is_right(struct fsck *f, uint64_t index, const union lay_block *b,
                               bool *right)
{
    uint32_t age;
    bool known;
    int err = image_named_age(&f->img, LAY_ADDR(LAY_KIND_SUMS, index), &age, &known);

    *right = !err && known &&
             (age == 0 ||
              (age == lay_age(b) && lay_check_sums(&f->img.geo, &b->sums, index, NULL) == 0));
    return err;
}

static int sum_blocks_check_block(struct fsck *f, uint64_t index, const union lay_block *read)
{
    const char *why = IMAGE_STALE_WHY;
    union lay_block b;
    bool right;
    int err = sum_blocks_is_right(f, index, read, &right);

    if (err || right)
        return err;
    err = image_read(&f->img, LAY_ADDR(LAY_KIND_SUMS, index), &b);
    if (err ||
        (f->img.age != IMAGE_AGE_STALE && lay_check_sums(&f->img.geo, &b.sums, index, &why) == 0))
        return err;
    /* The next round knows which blocks are data. */
    if (f->structural)
        return 0;
    if (!fsck_report(f, PROBLEM_SUMS, why, "blocks %" PRIu64 " to %" PRIu64,
                     index * LAY_SUMS_ENTRIES, (index + 1) * LAY_SUMS_ENTRIES - 1))
        return 0;
    return keep_matching(f, index, &b);
}

/*
 * Reads blocks from the device, except newer ones and those with copies, which
 * image_read() reads.
 */
static int read_chunk(struct fsck *f, uint64_t first, uint64_t n, union lay_block *chunk)
{
    uint64_t at = f->img.geo.sums_start + first;
    bool one_by_one = lay_has_copies(&f->img.geo);
    int err = 0;

    if (!one_by_one)
        err = bd_read(f->img.dev, at << LAY_BLOCK_SHIFT, chunk, n << LAY_BLOCK_SHIFT);
    one_by_one |= err == -EIO;
    if (err && !one_by_one)
        return err;
    err = 0;
    for (uint64_t i = 0; i < n && !err; i++) {
        uint64_t addr = LAY_ADDR(LAY_KIND_SUMS, first + i);
        if (one_by_one || image_is_newer(&f->img, addr))
            err = image_read(&f->img, addr, &chunk[i]);
    }
    return err;
}

int fsck_sums(struct fsck *f)
{
    const struct lay_geometry *geo = &f->img.geo;
    const uint64_t most = geo->sums_blocks < CHUNK ? geo->sums_blocks : CHUNK;
    union lay_block *chunk;

    if (most == 0)
        return 0;
    chunk = aligned_alloc(LAY_BLOCK_SIZE, most * sizeof(*chunk));
    int err = chunk ? 0 : -ENOMEM;
    for (uint64_t first = 0, n; first < geo->sums_blocks && !err; first += n) {
        n = geo->sums_blocks - first < most ? geo->sums_blocks - first : most;
        err = read_chunk(f, first, n, chunk);
        for (uint64_t i = 0; i < n && !err; i++)
            err = sum_blocks_check_block(f, first + i, &chunk[i]);
        fsck_progress(f, "checksums", first + n, geo->sums_blocks);
    }
    free(chunk);
    return err;
}

int fsck_forget_sums(struct fsck *f, uint64_t block, uint64_t len)
{
    union lay_block b;
    int err = 0;

    for (uint64_t end = block + len; f->img.geo.sums_blocks && block < end && !err; block++) {
        uint64_t index = block / LAY_SUMS_ENTRIES, addr = LAY_ADDR(LAY_KIND_SUMS, index);
        err = image_read(&f->img, addr, &b);
        if (err)
            break;
        if (f->img.age == IMAGE_AGE_STALE ||
            lay_check_sums(&f->img.geo, &b.sums, index, NULL) != 0) {
            err = empty_block(f, index);
        } else if (lay_get32(b.sums.sums[block % LAY_SUMS_ENTRIES]) != LAY_NO_SUM) {
            b.sums.sums[block % LAY_SUMS_ENTRIES] = lay_put32(LAY_NO_SUM);
            err = store_put(f, addr, &b);
        }
    }
    return err;
}
