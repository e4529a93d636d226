/* SPDX-License-Identifier: BSD-2-Clause */
/* Copies chunks of metadata to other places (FORMAT.md 5.8). */
#include "fusefs/core/mount/move_chunk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/core/alloc/alloc.h"
#include "fusefs/core/inode/tx.h"
#include "fusefs/core/journal/ops.h"
#include "fusefs/core/state.h"

/* Returns true if the block at an address is whole and has the age that is named. */
static bool move_chunk_is_present(struct ffs *fs, uint64_t addr, const void *data, uint32_t age)
{
    const struct lay_head *head = data;

    return lay_age(data) == age && lay_block_crc(fs->geo.uuid, addr, data) == lay_get32(head->crc);
}

/* Describes a copy that is being made. */
struct move_chunk {
    struct ffs *fs;
    uint64_t first, from, to; /* first segment, and blocks of the device */
    uint8_t *data;            /* DMA memory of a segment */
    /*
     * Each block of the chunk has the age of its whole copy at `to`, or 0
     * without one.
     */
    uint32_t *ages;
};

/*
 * Records the ages of the whole blocks of a segment. With `again`, it clears the
 * age of each block that has another one now.
 */
static void move_chunk_note(const struct move_chunk *m, uint32_t segment, bool again)
{
    uint32_t *ages = m->ages + segment * LAY_SEGMENT_BLOCKS;

    for (uint32_t b = 0; b < LAY_SEGMENT_BLOCKS; b++) {
        const uint8_t *block = m->data + ffs_bytes(b);
        uint64_t addr = LAY_ADDR_CHUNK(m->first + segment, b);
        bool whole = move_chunk_is_present(m->fs, addr, block, lay_age(block));
        if (!whole || (again && ages[b] != lay_age(block)))
            ages[b] = 0;
        else
            ages[b] = lay_age(block);
    }
}

/*
 * Copies the chunk as it is and reads the result back. It needs no lock: a block
 * that is written meanwhile is copied again later, like one that differs.
 */
static int move_chunk_ahead(const struct move_chunk *m)
{
    const uint64_t bytes = ffs_bytes(LAY_SEGMENT_BLOCKS);
    const uint32_t segments = lay_chunk_segments(&m->fs->geo);
    struct bd_dev *dev = m->fs->dev;
    int err = 0;

    for (uint32_t i = 0; i < segments && !err; i++) {
        err = bd_read(dev, ffs_bytes(m->from) + i * bytes, m->data, bytes);
        if (!err)
            err = bd_write(dev, ffs_bytes(m->to) + i * bytes, m->data, bytes, 0);
        move_chunk_note(m, i, false);
    }
    if (!err)
        err = ffs_flush(m->fs);
    for (uint32_t i = 0; i < segments && !err; i++) {
        err = bd_read(dev, ffs_bytes(m->to) + i * bytes, m->data, bytes);
        move_chunk_note(m, i, true);
    }
    return err;
}

/* Copies one block again, which has this age, and reads it back. */
static int move_chunk_again(const struct move_chunk *m, uint32_t index, uint32_t age)
{
    const uint64_t addr = LAY_ADDR_CHUNK(m->first, 0) + index;
    struct bd_dev *dev = m->fs->dev;
    uint8_t *back = m->data + LAY_BLOCK_SIZE;
    int err = bd_read(dev, ffs_bytes(m->from + index), m->data, LAY_BLOCK_SIZE);

    if (!err && !move_chunk_is_present(m->fs, addr, m->data, age))
        err = -EUCLEAN;
    if (!err)
        err = bd_write(dev, ffs_bytes(m->to + index), m->data, LAY_BLOCK_SIZE, BD_FUA);
    if (!err)
        err = bd_read(dev, ffs_bytes(m->to + index), back, LAY_BLOCK_SIZE);
    return !err && memcmp(m->data, back, LAY_BLOCK_SIZE) != 0 ? -EUCLEAN : err;
}

/*
 * Copies the blocks of a segment again that have another age in place than when
 * they were copied. The entries in place say which blocks are in use there.
 */
static int move_chunk_settle(const struct move_chunk *m, uint32_t segment)
{
    const uint32_t from = segment * LAY_SEGMENT_BLOCKS;
    union lay_block entries = {0};
    int err = 0;

    for (uint32_t b = 0; b < LAY_SEGMENT_BLOCKS && !err; b++) {
        uint32_t age = 0;
        if (b == 0 || entries.entries.used[b / 8] >> b % 8 & 1)
            err = ffs_age_of(m->fs, LAY_ADDR_CHUNK(m->first + segment, b), &age);
        if (!err && age != 0 && age != m->ages[from + b])
            err = move_chunk_again(m, from + b, age);
        if (!err && b == 0)
            err = bd_read(m->fs->dev, ffs_bytes(m->to + from), &entries, sizeof(entries));
    }
    return err;
}

int ffs_chunk_copy(struct ffs *fs, uint64_t first, uint64_t from, uint64_t to, void *data)
{
    struct move_chunk m = {.fs = fs, .first = first, .from = from, .to = to, .data = data};

    m.ages = calloc(ffs_chunk_blocks(&fs->geo), sizeof(*m.ages));
    int err = m.ages ? move_chunk_ahead(&m) : -ENOMEM;
    for (uint32_t i = 0; i < lay_chunk_segments(&fs->geo) && !err; i++)
        err = move_chunk_settle(&m, i);
    free(m.ages);
    return err;
}

/* --- A second place --------------------------------------------------------------------------- */

bool ffs_chunk_lacks_copy(const struct ffs *fs, uint64_t first)
{
    return lay_has_copies(&fs->geo) && first % lay_chunk_segments(&fs->geo) == 0 &&
           ffs_segment_mapped(&fs->chunks, first) && fs->chunks.copies[first] == 0;
}

/*
 * Takes the space that was kept, completes the copy and enters it in the map.
 * In the handle nobody else takes the space.
 */
static int move_chunk_enter_in(struct move_chunk *m, struct ffs_tx *tx)
{
    struct ffs *fs = m->fs;
    const uint64_t kept = m->to;
    uint64_t to;
    int err = 0;

    ffs_alloc_return(fs, kept, ffs_chunk_blocks(&fs->geo));
    m->to = 0;
    if (!ffs_chunk_lacks_copy(fs, m->first))
        return -EEXIST;
    err = ffs_alloc_chunk(tx, &kept, 1, &to);
    if (!err && (to != kept || m->from != fs->chunks.starts[m->first]))
        err = -EAGAIN;
    m->to = to;
    for (uint32_t i = 0; i < lay_chunk_segments(&fs->geo) && !err; i++)
        err = move_chunk_settle(m, i);
    m->to = 0;
    return err ? err : ffs_chunk_set_place(tx, m->first, 1, to);
}

/*
 * All images are in place before the handle begins, and commit_lock keeps
 * checkpoints from writing others until memory has both places. It is released
 * before the handle, whose end may evict inodes, for which it is needed.
 */
static int move_chunk_enter(struct move_chunk *m)
{
    struct ffs_journal *j = &m->fs->journal;
    struct ffs_tx *tx;

    pthread_mutex_lock(&j->commit_lock);
    int err = ffs_writable(m->fs);
    if (!err)
        err = ffs_checkpoint(m->fs);
    if (!err)
        err = ffs_tx_begin_committing(m->fs, FFS_CHUNK_CREDITS, &tx);
    if (err) {
        pthread_mutex_unlock(&j->commit_lock);
        return err;
    }
    err = move_chunk_enter_in(m, tx);
    pthread_mutex_unlock(&j->commit_lock);
    return ffs_tx_finish(tx, err);
}

/* Keeps space for the place. */
static int move_chunk_keep(struct move_chunk *m)
{
    struct ffs *fs = m->fs;
    struct ffs_tx *tx;
    int err = ffs_tx_begin(fs, 1, &tx);

    if (err)
        return err;
    const uint64_t near = fs->chunks.copies[0], goal = near ? near : fs->geo.supers[1];
    uint64_t to;
    err = ffs_chunk_lacks_copy(fs, m->first) ? 0 : -EEXIST;
    if (!err)
        err = ffs_alloc_keep_chunk(tx, goal, &to);
    if (!err) {
        m->from = fs->chunks.starts[m->first];
        m->to = to;
    }
    return ffs_tx_finish(tx, err);
}

/*
 * Makes the place. A checkpoint precedes the copy, so that few images are left
 * for the handle. shape_lock keeps the space within the file system. Callers
 * who find no space wait for trim_lock.
 */
static int move_chunk_add(struct move_chunk *m)
{
    struct ffs *fs = m->fs;

    pthread_mutex_lock(&fs->trim_lock);
    pthread_rwlock_rdlock(&fs->shape_lock);
    int err = ffs_checkpoint_now(fs);
    if (!err)
        err = move_chunk_keep(m);
    if (!err)
        err = move_chunk_ahead(m);
    if (!err)
        err = move_chunk_enter(m);
    if (m->to != 0) {
        ffs_alloc_return(fs, m->to, ffs_chunk_blocks(&fs->geo));
        m->to = 0;
    }
    pthread_rwlock_unlock(&fs->shape_lock);
    pthread_mutex_unlock(&fs->trim_lock);
    return err;
}

int ffs_chunk_add_copy(struct ffs *fs, uint64_t first)
{
    const size_t bytes = ffs_bytes(LAY_SEGMENT_BLOCKS);
    uint64_t released = ffs_alloc_released(fs) + 1;
    struct move_chunk m = {.fs = fs, .first = first};
    bool tried = false;
    int err;

    if (atomic_load(&fs->chunks.copies_refused) == released)
        return -ENOSPC;
    m.data = ffs_dma_alloc(fs, bytes);
    m.ages = calloc(ffs_chunk_blocks(&fs->geo), sizeof(*m.ages));
    do {
        err = m.data && m.ages ? move_chunk_add(&m) : -ENOMEM;
    } while (ffs_retry_space(fs, err, &tried));
    if (err == -ENOSPC)
        atomic_store(&fs->chunks.copies_refused, released);
    if (m.data)
        ffs_dma_free(fs, m.data, bytes);
    free(m.ages);
    return err;
}
