/* SPDX-License-Identifier: BSD-2-Clause */
/* Copies chunks of metadata to other places (FORMAT.md 5.8). */
#include "fusefs/core/mount/move_chunk.h"

#include <errno.h>
#include <string.h>

#include "fusefs/core/data/data.h"
#include "fusefs/core/inode/tx.h"
#include "fusefs/core/journal/ops.h"
#include "fusefs/core/state.h"

/* Returns true if the block at an address is whole and has the age that is named. */
static bool move_chunk_is_present(struct ffs *fs, uint64_t addr, const void *data, uint32_t age)
{
    const struct lay_head *head = data;

    return lay_age(data) == age && lay_block_crc(fs->geo.uuid, addr, data) == lay_get32(head->crc);
}

/*
 * Checks the entries of a segment and its blocks that are in use, all of which
 * are in place.
 */
static int move_chunk_check_segment(struct ffs *fs, uint64_t segment, const uint8_t *data)
{
    const struct lay_entries *entries = (const void *)data;
    int err = 0;

    for (uint32_t b = 0; b < LAY_SEGMENT_BLOCKS && !err; b++) {
        uint64_t addr = LAY_ADDR_CHUNK(segment, b);
        uint32_t age = 0;
        if (b == 0 || entries->used[b / 8] >> b % 8 & 1)
            err = ffs_age_of(fs, addr, &age);
        if (!err && age != 0 && !move_chunk_is_present(fs, addr, data + ffs_bytes(b), age))
            err = -EUCLEAN;
    }
    return err;
}

static int move_chunk_compare(struct ffs *fs, uint64_t segment, uint64_t from, uint64_t to,
                              uint8_t *data)
{
    const uint64_t bytes = ffs_bytes(LAY_SEGMENT_BLOCKS);
    uint8_t *copy = data + bytes;
    int err = bd_read(fs->dev, ffs_bytes(from), data, bytes);

    if (!err)
        err = bd_read(fs->dev, ffs_bytes(to), copy, bytes);
    if (!err && memcmp(data, copy, bytes) != 0)
        err = -EUCLEAN;
    return err ? err : move_chunk_check_segment(fs, segment, data);
}

int ffs_chunk_copy(struct ffs *fs, uint64_t first, uint64_t from, uint64_t to, void *data)
{
    const uint64_t bytes = ffs_bytes(LAY_SEGMENT_BLOCKS);
    const uint32_t segments = lay_chunk_segments(&fs->geo);
    int err = 0;

    for (uint32_t i = 0; i < segments && !err; i++) {
        err = bd_read(fs->dev, ffs_bytes(from) + i * bytes, data, bytes);
        if (!err)
            err = bd_write(fs->dev, ffs_bytes(to) + i * bytes, data, bytes, 0);
    }
    if (!err)
        err = ffs_flush(fs);
    for (uint32_t i = 0; i < segments && !err; i++)
        err = move_chunk_compare(fs, first + i, from + i * LAY_SEGMENT_BLOCKS,
                                 to + i * LAY_SEGMENT_BLOCKS, data);
    return err;
}

/* Enters a place of a segment in the map, with the same age. */
static int move_chunk_set_slot(struct ffs_tx *tx, uint64_t segment, unsigned place, uint64_t block)
{
    struct ffs_expect expect = {.magic = LAY_MAGIC_MAP, .index = segment / LAY_MAP_SLOTS};
    struct ffs_buf *buf;
    int err = ffs_buf_get(tx->fs, LAY_ADDR(LAY_KIND_MAP, expect.index), &expect, &buf);

    if (err)
        return err;
    err = ffs_tx_dirty(tx, buf);
    if (!err) {
        struct lay_map_block *map = buf->data;
        map->slots[segment % LAY_MAP_SLOTS].places[place] = lay_put64(block);
    }
    ffs_buf_put(buf);
    return err;
}

int ffs_chunk_set_place(struct ffs_tx *tx, uint64_t first, unsigned place, uint64_t to)
{
    struct ffs *fs = tx->fs;
    int err = 0;

    for (uint64_t i = 0; i < lay_chunk_segments(&fs->geo) && !err; i++)
        err = move_chunk_set_slot(tx, first + i, place, to + i * LAY_SEGMENT_BLOCKS);
    if (!err)
        ffs_chunks_move(fs, first >> fs->geo.chunk_shift, place, to);
    return err;
}

/* --- A second place --------------------------------------------------------------------------- */

bool ffs_chunk_lacks_copy(const struct ffs *fs, uint64_t first)
{
    return lay_has_copies(&fs->geo) && first % lay_chunk_segments(&fs->geo) == 0 &&
           ffs_segment_mapped(&fs->chunks, first) && fs->chunks.copies[first] == 0;
}

/* Takes space, copies the chunk there and enters it in the map. */
static int move_chunk_add_in(struct ffs_tx *tx, uint64_t first, void *data)
{
    struct ffs *fs = tx->fs;
    const uint64_t near = fs->chunks.copies[0], goal = near ? near : fs->geo.supers[1];
    uint64_t to;

    if (!ffs_chunk_lacks_copy(fs, first))
        return -EEXIST;
    int err = ffs_alloc_chunk(tx, &goal, 1, &to);
    if (!err)
        err = ffs_chunk_copy(fs, first, fs->chunks.starts[first], to, data);
    return err ? err : ffs_chunk_set_place(tx, first, 1, to);
}

/*
 * All images are in place before the handle begins, and commit_lock keeps
 * checkpoints from writing others until memory has both places. It is released
 * before the handle, whose end may evict inodes, for which it is needed.
 */
static int move_chunk_add(struct ffs *fs, uint64_t first, void *data)
{
    struct ffs_journal *j = &fs->journal;
    struct ffs_tx *tx;

    pthread_mutex_lock(&j->commit_lock);
    int err = ffs_writable(fs);
    if (!err)
        err = ffs_checkpoint(fs);
    if (!err)
        err = ffs_tx_begin_committing(fs, FFS_CHUNK_CREDITS, &tx);
    if (err) {
        pthread_mutex_unlock(&j->commit_lock);
        return err;
    }
    err = move_chunk_add_in(tx, first, data);
    pthread_mutex_unlock(&j->commit_lock);
    return ffs_tx_finish(tx, err);
}

/* Returns a number that changes when space is freed. */
static uint64_t move_chunk_released(struct ffs *fs)
{
    pthread_mutex_lock(&fs->alloc.lock);
    uint64_t released = fs->alloc.released + 1;
    pthread_mutex_unlock(&fs->alloc.lock);
    return released;
}

int ffs_chunk_add_copy(struct ffs *fs, uint64_t first)
{
    uint64_t released = move_chunk_released(fs);
    bool tried = false;
    int err;

    if (atomic_load(&fs->chunks.copies_refused) == released)
        return -ENOSPC;
    void *data = ffs_dma_alloc(fs, ffs_bytes(FFS_CHUNK_COPY_BLOCKS));
    if (!data)
        return -ENOMEM;
    do {
        err = move_chunk_add(fs, first, data);
    } while (ffs_retry_space(fs, err, &tried));
    if (err == -ENOSPC)
        atomic_store(&fs->chunks.copies_refused, released);
    ffs_dma_free(fs, data, ffs_bytes(FFS_CHUNK_COPY_BLOCKS));
    return err;
}
