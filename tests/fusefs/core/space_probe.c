/* SPDX-License-Identifier: BSD-2-Clause */
/* Looks into struct ffs, which C++ cannot include. */
#include "tests/fusefs/core/space_probe.h"

#include "fusefs/core/journal/ops.h"
#include "fusefs/core/mount/move_chunk.h"
#include "fusefs/core/state.h"

bool space_is_unlocked(struct ffs *fs)
{
    if (pthread_rwlock_trywrlock(&fs->meta))
        return false;
    pthread_rwlock_unlock(&fs->meta);
    return true;
}

size_t space_maps(struct ffs *fs)
{
    size_t n = 0;

    for (uint64_t g = 0; g < lay_groups(&fs->geo); g++)
        n += fs->alloc.groups[g].map != NULL;
    return n;
}

uint64_t space_chunks(struct ffs *fs)
{
    uint64_t n = 0;

    for (uint64_t s = 0; s < fs->chunks.end; s += lay_chunk_segments(&fs->geo))
        n += ffs_segment_mapped(&fs->chunks, s);
    return n == lay_get64(ffs_super(fs)->chunks) ? n : UINT64_MAX;
}

uint64_t space_segment(struct ffs *fs, uint64_t segment)
{
    return ffs_segment_mapped(&fs->chunks, segment) ? fs->chunks.starts[segment] : 0;
}

uint64_t space_meta_blocks(struct ffs *fs)
{
    return space_chunks(fs) * ffs_chunk_blocks(&fs->geo);
}

uint64_t space_meta_free(struct ffs *fs)
{
    uint64_t n = 0;

    for (uint64_t s = 0; s < fs->chunks.end; s++) {
        struct lay_expect expect = {.magic = LAY_MAGIC_ENTRIES};
        struct ffs_buf *buf;
        if (!space_segment(fs, s) || ffs_buf_get(fs, LAY_ADDR_CHUNK(s, 0), &expect, &buf))
            continue;
        n += lay_get32(((const struct lay_entries *)buf->data)->free);
        ffs_buf_put(buf);
    }
    return n;
}

/* Clears the second place of the slots of a chunk, and frees its space. */
static int drop_copy(struct ffs_tx *tx, uint64_t first)
{
    struct ffs_chunks *c = &tx->fs->chunks;
    uint64_t copy = c->copies[first];
    int err = 0;

    for (uint64_t s = first; s < first + lay_chunk_segments(&tx->fs->geo) && !err; s++) {
        struct lay_expect expect = {.magic = LAY_MAGIC_MAP};
        struct ffs_buf *buf;
        err = ffs_buf_get(tx->fs, LAY_ADDR(LAY_KIND_MAP, s / LAY_MAP_SLOTS), &expect, &buf);
        if (err)
            return err;
        err = ffs_tx_dirty(tx, buf);
        struct lay_map_block *map = buf->data;
        map->slots[s % LAY_MAP_SLOTS].places[1] = lay_put64(LAY_NONE);
        ffs_chunks_note(c, c->copies[s], false);
        c->copies[s] = 0;
        ffs_buf_put(buf);
    }
    return err ? err : ffs_free(tx, copy, ffs_chunk_blocks(&tx->fs->geo));
}

uint64_t space_drop_copies(struct ffs *fs)
{
    uint64_t n = 0;

    for (uint64_t s = 0; s < fs->chunks.end; s += lay_chunk_segments(&fs->geo)) {
        struct ffs_tx *tx;
        if (ffs_checkpoint_now(fs) || ffs_tx_begin(fs, FFS_CHUNK_CREDITS, &tx))
            return 0;
        bool has = ffs_segment_mapped(&fs->chunks, s) && fs->chunks.copies[s] != 0;
        if (ffs_tx_finish(tx, has ? drop_copy(tx, s) : 0))
            return 0;
        n += has;
    }
    return n;
}
