/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * FITRIM: discards the free blocks of a range of the device.
 */
#include <errno.h>

#include "fusefs/core/state.h"

#define TRIM_CHUNK 4096u /* blocks that FITRIM keeps from being allocated at a time */

/*
 * The part of a group that is being trimmed: its free ranges of at least
 * `least` blocks.
 */
struct chunk {
    uint64_t group;
    uint32_t from, to, least;
};

/* Creates the group's map in a handle that changes nothing. */
static int trim_take_chunk(struct ffs *fs, const struct chunk *c, struct ffs_ranges *taken)
{
    struct ffs_alloc *a = &fs->alloc;
    struct ffs_tx *tx;
    int err = ffs_tx_begin(fs, 1, &tx);

    if (err)
        return err;
    err = ffs_alloc_hold(fs, c->group);
    if (!err) {
        pthread_mutex_lock(&a->lock);
        ffs_alloc_take_free(a, c->group, (struct ffs_found){c->from, c->to - c->from}, c->least,
                            taken);
        ffs_alloc_idle(a, c->group, 1);
        pthread_mutex_unlock(&a->lock);
    }
    ffs_tx_end(tx);
    return err;
}

/* Adds the blocks discarded to *done. */
static int trim_chunk(struct ffs *fs, const struct chunk *c, uint64_t *done)
{
    struct ffs_alloc *a = &fs->alloc;
    struct ffs_ranges taken = {0};
    struct ffs_discards b = {.fs = fs};

    pthread_mutex_lock(&fs->trim_lock);
    int err = ffs_sections_of(fs, c->group * LAY_GROUP_BLOCKS, 1);
    if (!err)
        err = trim_take_chunk(fs, c, &taken);
    for (size_t i = 0; i < taken.n; i++)
        ffs_discard_add(&b, taken.v[i].block, taken.v[i].len);
    ffs_discard_submit(&b);
    pthread_mutex_lock(&a->lock);
    for (size_t i = 0; i < taken.n; i++) {
        *done += taken.v[i].len;
        ffs_alloc_give_back(a, taken.v[i].block, taken.v[i].len, true);
    }
    pthread_mutex_unlock(&a->lock);
    pthread_mutex_unlock(&fs->trim_lock);
    ffs_ranges_free(&taken);
    return err;
}

static struct chunk trim_chunk_at(uint64_t block, uint64_t end, uint64_t least)
{
    uint64_t first = block % LAY_GROUP_BLOCKS;
    uint64_t to = first - first % TRIM_CHUNK + TRIM_CHUNK;

    if (to > LAY_GROUP_BLOCKS)
        to = LAY_GROUP_BLOCKS;
    if (to > first + (end - block))
        to = first + (end - block);
    return (struct chunk){block / LAY_GROUP_BLOCKS, (uint32_t)first, (uint32_t)to,
                          (uint32_t)(least < LAY_GROUP_BLOCKS ? least : LAY_GROUP_BLOCKS)};
}

int ffs_trim(struct ffs *fs, const struct ffs_trim_range *range, ffs_stop_fn stop, void *arg,
             uint64_t *trimmed)
{
    uint64_t done = 0;
    int err = fs->dev->info.discards ? ffs_alive(fs) : -EOPNOTSUPP;

    *trimmed = 0;
    if (err)
        return err;
    ffs_meta_read(fs);
    uint64_t size = ffs_bytes(fs->geo.blocks);
    ffs_meta_done(fs);
    if (range->start >= size || range->len < LAY_BLOCK_SIZE)
        return -EINVAL;
    uint64_t len = range->len < size - range->start ? range->len : size - range->start;
    uint64_t block = (range->start + LAY_BLOCK_SIZE - 1) >> LAY_BLOCK_SHIFT;
    uint64_t end = (range->start + len) >> LAY_BLOCK_SHIFT;
    uint64_t least = range->min_len >> LAY_BLOCK_SHIFT;
    while (block < end && !err && !(stop && stop(arg))) {
        struct chunk c = trim_chunk_at(block, end, least);
        err = trim_chunk(fs, &c, &done);
        block += c.to - c.from;
    }
    *trimmed = ffs_bytes(done);
    return err;
}
