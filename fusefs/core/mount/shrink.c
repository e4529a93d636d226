/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Shrinks a file system. The contents past the new end are moved first, by
 * ordinary handles, each of which leaves a valid file system of the old size.
 * Then the shape changes.
 *
 * No other thread uses the file system, so data is copied inside the handle
 * that maps it, and no block is ever allocated without an owner.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/core/data/data.h"
#include "fusefs/core/inode/tx.h"
#include "fusefs/core/mount/move_chunk.h"
#include "fusefs/core/mount/resize.h"
#include "fusefs/core/state.h"

#define DATA_STEP 1024u /* blocks of data that one handle moves */
static_assert(DATA_STEP >= LAY_SEGMENT_BLOCKS, "chunks are copied through the same memory");

struct shrink {
    struct ffs *fs;
    uint64_t limit;          /* no block from here on is allocated */
    struct ffs_pin *pin;     /* keeps freed blocks past the limit from being reused */
    struct ffs_ranges taken; /* free blocks past the limit, which are busy in memory */
    void *data;              /* DATA_STEP blocks of DMA memory */
};

/* --- The fence -------------------------------------------------------------------------------- */

/* Makes the free blocks of [from, end of the group) busy. */
static int shrink_fence_group(struct shrink *s, uint64_t group, uint32_t from)
{
    struct ffs_tx *tx;
    int err = ffs_ranges_reserve(&s->taken, LAY_GROUP_BLOCKS / 2 + 1);

    if (!err)
        err = ffs_tx_begin(s->fs, 1, &tx);
    if (err)
        return err;
    err = ffs_alloc_keep(s->fs, group, (struct ffs_found){from, LAY_GROUP_BLOCKS - from}, 1,
                         &s->taken);
    ffs_tx_end(tx);
    return err;
}

static int shrink_fence(struct shrink *s)
{
    struct ffs *fs = s->fs;
    const struct ffs_segment past = {.device = ffs_bytes(s->limit),
                                     .len = ffs_bytes(fs->geo.blocks - s->limit)};
    int err = ffs_pin_add(fs, &past, 1, &s->pin);

    for (uint64_t b = s->limit; b < fs->geo.blocks && !err;) {
        uint32_t from = (uint32_t)(b % LAY_GROUP_BLOCKS);
        err = shrink_fence_group(s, b / LAY_GROUP_BLOCKS, from);
        b += LAY_GROUP_BLOCKS - from;
    }
    return err;
}

static void shrink_unfence(struct shrink *s)
{
    if (s->pin)
        ffs_pin_drop(s->fs, s->pin);
    s->pin = NULL;
    for (size_t i = 0; i < s->taken.n; i++)
        ffs_alloc_return(s->fs, s->taken.v[i].block, s->taken.v[i].len);
    ffs_ranges_free(&s->taken);
    s->taken = (struct ffs_ranges){.v = NULL};
}

/* --- Data ------------------------------------------------------------------------------------- */

static int shrink_copy_data(const struct shrink *s, uint64_t from, uint64_t to, uint64_t n)
{
    int err = bd_read(s->fs->dev, ffs_bytes(from), s->data, ffs_bytes(n));

    return err ? err : bd_write(s->fs->dev, ffs_bytes(to), s->data, ffs_bytes(n), 0);
}

/*
 * Maps the pieces of `e`, which may differ in state, to blocks from `block` on.
 */
static int shrink_remap(struct ffs_tx *tx, struct ffs_inode *inode, const struct ffs_extent *e,
                        uint64_t block)
{
    int err = 0;

    for (uint64_t done = 0; done < e->len && !err;) {
        struct ffs_extent piece;
        err = ffs_extent_find(inode, e->file_block + done, &piece);
        if (err)
            break;
        if (piece.block != e->block + done)
            return ffs_corrupt(inode->fs, piece.block, inode->ino, "unit of a GPU-bound file");
        piece.len = min_u64(piece.len, e->len - done);
        piece.block = block + done;
        err = ffs_extent_move(tx, inode, &piece);
        done += piece.len;
    }
    return err;
}

/* Moves blocks within a handle. *len is the moved part of `e`. */
static int shrink_move_in(const struct shrink *s, struct ffs_tx *tx, struct ffs_inode *inode,
                          struct ffs_extent e, unsigned align, const uint32_t *sums)
{
    uint64_t block;
    int err = ffs_alloc(tx, 0, align, e.len, align, &block, &e.len);

    if (!err && ffs_extent_is_data(&e))
        err = shrink_copy_data(s, e.block, block, e.len);
    if (!err)
        err = ffs_inode_dirty(tx, inode);
    if (!err)
        err = shrink_remap(tx, inode, &e, block);
    if (!err && ffs_extent_is_data(&e))
        err = ffs_sums_put(tx, block, e.len, sums);
    return err ? err : ffs_free(tx, e.block, e.len);
}

/*
 * Moves the first blocks of a run, or all of them if it is a unit. Blocks keep
 * their checksums.
 */
static int shrink_move_run(const struct shrink *s, struct ffs_inode *inode,
                           const struct ffs_extent *e, unsigned align)
{
    uint32_t sums[DATA_STEP] = {LAY_NO_SUM};
    struct ffs_tx *tx;
    int err = 0;

    if (ffs_has_sums(&s->fs->geo) && ffs_extent_is_data(e))
        err = ffs_sums_get(s->fs, e->block, e->len, sums);
    if (!err)
        err = ffs_tx_begin(s->fs, FFS_TX_MAX_CREDITS, &tx);
    return err ? err : ffs_tx_finish(tx, shrink_move_in(s, tx, inode, *e, align, sums));
}

/*
 * Returns the first run of `e` to move: a part past the limit, or a unit that
 * reaches past it, whose blocks are contiguous even if it has several extents.
 */
static struct ffs_extent shrink_run_of(const struct shrink *s, const struct ffs_extent *e,
                                       unsigned unit)
{
    uint64_t into = e->file_block % unit, start = e->block - into;
    uint64_t skip = start < s->limit ? (s->limit - start) / unit * unit : 0;
    struct ffs_extent run = {.file_block = e->file_block - into + skip,
                             .block = start + skip,
                             .len = unit,
                             .unwritten = e->unwritten && unit == 1,
                             .damaged = e->damaged && unit == 1};

    if (unit == 1)
        run.len = min_u64(e->len - skip, DATA_STEP);
    return run;
}

static int shrink_move_file(const struct shrink *s, struct ffs_inode *inode)
{
    bool bound = lay_get32(inode->d.flags) & LAY_INODE_GPU_BOUND;
    unsigned unit = bound ? LAY_GPU_ALIGN : 1;
    int err = 0;

    for (uint64_t at = 0; !err;) {
        struct ffs_extent e;
        ffs_meta_read(s->fs);
        err = ffs_extent_find(inode, at, &e);
        ffs_meta_done(s->fs);
        if (err || (e.block == LAY_NONE && e.len == UINT64_MAX - at))
            break;
        if (e.block == LAY_NONE || e.block + e.len <= s->limit) {
            at += e.len;
            continue;
        }
        struct ffs_extent run = shrink_run_of(s, &e, unit);
        err = shrink_move_run(s, inode, &run, unit);
    }
    return err;
}

/* --- Chunks ----------------------------------------------------------------------------------- */

/*
 * Copies the chunk from the place that it leaves, or from its other place if
 * that one is damaged.
 */
static int shrink_copy_any(const struct shrink *s, uint64_t first, unsigned place, uint64_t to)
{
    const struct ffs_chunks *c = &s->fs->chunks;
    uint64_t other = ffs_segment_start(c, first, !place);
    int err = ffs_chunk_copy(s->fs, first, ffs_segment_start(c, first, place), to, s->data);

    return (err == -EUCLEAN || err == -EIO) && other
               ? ffs_chunk_copy(s->fs, first, other, to, s->data)
               : err;
}

static int shrink_move_chunk_in(const struct shrink *s, struct ffs_tx *tx, uint64_t first,
                                unsigned place)
{
    struct ffs *fs = s->fs;
    uint64_t blocks = ffs_chunk_blocks(&fs->geo), to, len;
    uint64_t from = ffs_segment_start(&fs->chunks, first, place);

    ffs_tx_use_reserve(tx); /* the handle frees as much as it takes */
    int err = ffs_alloc(tx, 0, blocks, blocks, LAY_GPU_ALIGN, &to, &len);
    if (!err)
        err = shrink_copy_any(s, first, place, to);
    if (!err)
        err = ffs_chunk_set_place(tx, first, place, to);
    if (err)
        return err;
    err = ffs_free(tx, from, blocks);
    if (err)
        ffs_chunks_move(fs, first >> fs->geo.chunk_shift, place, from);
    return err;
}

/*
 * Moves a place of the chunk with this first segment in one handle (FORMAT.md
 * 5.8). All images are in place before the handle begins, so a checkpoint
 * writes none until the handle's transaction is committed. From then on only
 * the new place needs to be written.
 */
static int shrink_move_chunk(const struct shrink *s, uint64_t first, unsigned place)
{
    struct ffs_tx *tx;
    int err = ffs_commit(s->fs, ffs_running_tid(s->fs));

    if (!err)
        err = ffs_checkpoint_now(s->fs);
    if (!err)
        err = ffs_tx_begin(s->fs, FFS_CHUNK_CREDITS, &tx);
    return err ? err : ffs_tx_finish(tx, shrink_move_chunk_in(s, tx, first, place));
}

static int shrink_move_chunks(const struct shrink *s)
{
    const struct ffs_chunks *c = &s->fs->chunks;
    int err = 0;

    for (uint64_t i = 0; i < c->end && !err; i += lay_chunk_segments(&s->fs->geo)) {
        for (unsigned place = 0; place < FFS_PLACES && !err; place++) {
            uint64_t start = ffs_segment_start(c, i, place);
            bool past = start != 0 && start + ffs_chunk_blocks(&s->fs->geo) > s->limit;
            if (ffs_segment_mapped(c, i) && past)
                err = shrink_move_chunk(s, i, place);
        }
    }
    return err;
}

static int shrink_move_inode(const struct shrink *s, uint64_t ino)
{
    struct ffs_inode *inode;
    int err = ffs_iget(s->fs, ino, &inode);

    if (err)
        return err == -ESTALE ? 0 : err;
    if (S_ISREG(ffs_mode(inode)))
        err = shrink_move_file(s, inode);
    ffs_iput(inode, 1);
    return err;
}

/* Chunks move first, since they need longer free ranges than data. */
static int shrink_move_all(const struct shrink *s)
{
    uint64_t inodes = ffs_inode_file_blocks(s->fs) * LAY_INODES_PER_BLOCK;
    int err = shrink_move_chunks(s);

    for (uint64_t ino = LAY_INO_ROOT; ino < inodes && !err; ino++)
        err = shrink_move_inode(s, ino);
    return err;
}

/* --- The new shape ---------------------------------------------------------------------------- */

static uint64_t shrink_fixed_blocks(const struct lay_geometry *geo)
{
    struct lay_range areas[LAY_AREAS];
    unsigned n = lay_areas(geo, areas);
    uint64_t sum = 0;

    for (unsigned i = 0; i < n; i++)
        sum += areas[i].len;
    return sum;
}

/*
 * Returns the areas for a size. Areas that do not move keep their places. The
 * map keeps the slots of all chunks.
 */
static struct lay_geometry shrink_shape_of(const struct ffs *fs, uint64_t blocks)
{
    struct lay_geometry geo = fs->geo;
    uint64_t slots = max_u64(lay_map_slots(blocks, geo.chunk_shift), fs->chunks.end);

    geo.blocks = blocks;
    geo.reserve = lay_reserve(blocks);
    geo.map_blocks = min_u64(geo.map_blocks, lay_map_blocks(slots));
    lay_size_areas(&geo);
    return geo;
}

uint64_t ffs_shrink_least(struct ffs *fs)
{
    uint64_t blocks = LAY_MIN_BLOCKS;

    ffs_meta_read(fs);
    uint64_t owned =
        fs->geo.blocks - shrink_fixed_blocks(&fs->geo) - lay_get64(ffs_super(fs)->area.free_blocks);
    ffs_meta_done(fs);
    for (uint64_t need = 0; need != blocks;) {
        struct lay_geometry geo = shrink_shape_of(fs, blocks);
        /*
         * The new areas are written while the old ones still exist. These and a chunk need ranges
         * without gaps.
         */
        need = owned + shrink_fixed_blocks(&geo) + ffs_chunk_blocks(&geo) +
               (geo.bitmap_len + geo.map_len + geo.sums_len) * (lay_has_copies(&geo) ? 2 : 1);
        if (need <= blocks)
            break;
        blocks = need;
    }
    return blocks;
}

/* Adds the free blocks of a group. Returns true if the run is long enough. */
static bool shrink_find_in(const uint64_t *map, uint64_t group, uint32_t to, uint64_t want,
                           struct lay_range *run)
{
    for (uint32_t bit = 0; bit < to;) {
        uint32_t n = ffs_map_zeros(map, bit, to);
        uint64_t at = group * LAY_GROUP_BLOCKS + bit;
        if (n > 0 && run->start + run->len != at)
            *run = (struct lay_range){at, 0};
        run->len += n;
        if (run->len >= want)
            return true;
        bit += n + 1;
    }
    return false;
}

/* Finds contiguous free blocks before the limit, which may span groups. */
static int shrink_find_run(const struct shrink *s, uint64_t want, uint64_t *start)
{
    struct lay_range run = {0, 0};

    for (uint64_t group = 0; group * LAY_GROUP_BLOCKS < s->limit; group++) {
        struct lay_expect expect = {.magic = LAY_MAGIC_BITMAP};
        uint64_t left = s->limit - group * LAY_GROUP_BLOCKS;
        struct ffs_buf *buf;
        int err = ffs_section_check(s->fs, group);
        if (!err)
            err = ffs_buf_get(s->fs, LAY_ADDR(LAY_KIND_BITMAP, group), &expect, &buf);
        if (err)
            return err;
        const struct lay_bitmap *bm = buf->data;
        bool found = shrink_find_in((const uint64_t *)(const void *)bm->bits, group,
                                    (uint32_t)min_u64(left, LAY_GROUP_BLOCKS), want, &run);
        ffs_buf_put(buf);
        *start = run.start;
        if (found)
            return 0;
    }
    return -ENOSPC;
}

static void shrink_place_at(uint64_t *start, uint64_t *copy, uint64_t len, uint64_t *at)
{
    *start = *at;
    *at += len;
    if (*copy == 0)
        return;
    *copy = *at;
    *at += len;
}

/*
 * If the length of an area has changed, or the area or its copy reaches past
 * the limit, places the area and its copy (none if 0) from block *at on, and
 * advances *at.
 */
static void shrink_place_area(const struct shrink *s, uint64_t *start, uint64_t *copy, uint64_t len,
                              uint64_t old_len, uint64_t *at)
{
    if (len != old_len || *start + len > s->limit || *copy + len > s->limit)
        shrink_place_at(start, copy, len, at);
}

/* Places the bitmaps and all else that moves from block `at` on. Returns the end. */
static uint64_t shrink_place_from(const struct shrink *s, struct lay_geometry *geo, uint64_t at)
{
    const struct lay_geometry *old = &s->fs->geo;
    uint64_t none = 0;

    shrink_place_at(&geo->bitmap_start, &geo->bitmap_copy, geo->bitmap_len, &at);
    shrink_place_area(s, &geo->map_start, &geo->map_copy, geo->map_len, old->map_len, &at);
    shrink_place_area(s, &geo->sums_start, &geo->sums_copy, geo->sums_len, old->sums_len, &at);
    shrink_place_area(s, &geo->log_start, &none, geo->log_blocks, old->log_blocks, &at);
    if (geo->log_copy)
        shrink_place_area(s, &geo->log_copy, &none, geo->log_blocks, old->log_blocks, &at);
    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++) {
        if (geo->supers[i] >= s->limit)
            geo->supers[i] = at++;
    }
    return at;
}

/* Finds places for the areas. */
static int shrink_place(const struct shrink *s, struct lay_geometry *geo)
{
    struct lay_geometry trial = *geo;
    uint64_t at = 0;
    int err = shrink_find_run(s, shrink_place_from(s, &trial, 0), &at);

    if (!err)
        shrink_place_from(s, geo, at);
    return err;
}

/* Clears the entries past the end of the file system. */
static int shrink_cut_sums(struct ffs *fs, uint64_t blocks)
{
    uint64_t end = lay_sums_blocks(blocks) * LAY_SUMS_ENTRIES;
    struct ffs_tx *tx;

    if (!ffs_has_sums(&fs->geo) || end == blocks)
        return 0;
    int err = ffs_tx_begin(fs, 4, &tx);
    if (err)
        return err;
    end = min_u64(end, fs->geo.blocks);
    return ffs_tx_finish(tx, ffs_sums_put(tx, blocks, end - blocks, NULL));
}

static int shrink_change_shape(struct shrink *s, uint64_t blocks)
{
    struct ffs *fs = s->fs;
    struct lay_geometry geo = shrink_shape_of(fs, blocks);
    int err = shrink_cut_sums(fs, blocks);

    if (!err)
        err = ffs_freeze(fs);
    if (err)
        return err;
    shrink_unfence(s);
    err = fs->alloc.busy > 0 ? -EBUSY : shrink_place(s, &geo);
    if (!err)
        err = ffs_reshape(fs, &geo);
    ffs_thaw(fs);
    return err;
}

static int shrink_check_size(struct ffs *fs, uint64_t blocks)
{
    if (blocks > fs->geo.blocks)
        return -EINVAL;
    if (fs->geo.compat & ~LAY_FEATURE_COMPAT)
        return -ENOTSUP;
    return blocks < ffs_shrink_least(fs) ? -ENOSPC : 0;
}

int ffs_shrink(struct ffs *fs, uint64_t blocks)
{
    struct shrink s = {.fs = fs, .limit = blocks};
    int err = shrink_check_size(fs, blocks);

    if (err || blocks == fs->geo.blocks)
        return err;
    s.data = bd_dma_alloc(fs->dev, ffs_bytes(DATA_STEP));
    if (!s.data)
        return -ENOMEM;
    ffs_sums_settle(fs, true);
    err = ffs_commit(fs, ffs_running_tid(fs));
    if (!err)
        err = shrink_fence(&s);
    if (!err)
        err = shrink_move_all(&s);
    if (!err)
        err = shrink_change_shape(&s, blocks);
    shrink_unfence(&s);
    bd_dma_free(fs->dev, s.data, ffs_bytes(DATA_STEP));
    return err;
}
