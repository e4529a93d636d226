/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Keeps the chunk map in memory (FORMAT.md 5.6), allocates metadata blocks in
 * chunks, and maps and unmaps chunks (FORMAT.md 5.7).
 *
 * A search begins in the segment of the goal. It continues in the segment that
 * served the previous search, and then in the segments after that one. A search
 * looks only at segments that may have a free block, so a full segment costs
 * nothing.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/core/alloc/chunks.h"
#include "fusefs/core/inode/tx.h"
#include "fusefs/core/state.h"
#include "support/array.h"

/* Allocates the arrays. A page of the arrays uses no memory until a mapped segment needs it. */
static int chunk_map_init(struct ffs_chunks *c, const struct lay_geometry *geo)
{
    *c = (struct ffs_chunks){.segments = lay_segments(geo)};
    c->starts = calloc(c->segments, sizeof(*c->starts));
    c->copies = calloc(c->segments, sizeof(*c->copies));
    c->states = calloc(c->segments, sizeof(*c->states));
    c->units = calloc(lay_groups(geo), sizeof(*c->units));
    return c->starts && c->copies && c->states && c->units ? 0 : -ENOMEM;
}

static void chunk_map_free(struct ffs_chunks *c)
{
    free(c->starts);
    free(c->copies);
    free(c->states);
    free(c->units);
}

void ffs_chunks_note_both(struct ffs_chunks *c, uint64_t segment, bool there)
{
    ffs_chunks_note(c, c->starts[segment], there);
    if (c->copies[segment] != 0)
        ffs_chunks_note(c, c->copies[segment], there);
}

void ffs_chunks_destroy(struct ffs *fs)
{
    struct ffs_chunks *c = &fs->chunks;

    chunk_map_free(c);
    free(c->gone);
    *c = (struct ffs_chunks){0};
}

/* Reads a block of the map. The log may have the newest version of the block. */
static int chunk_map_read(struct ffs *fs, uint64_t index, struct lay_map_block *mb,
                          const char **what)
{
    struct lay_expect expect = {.magic = LAY_MAGIC_MAP};
    uint64_t addr = LAY_ADDR(LAY_KIND_MAP, index);
    uint32_t age;

    if (ffs_home_read(&fs->home, addr, mb))
        return lay_check_block(&fs->geo, addr, mb, &expect, what);
    *what = "a block of ages";
    int err = ffs_age_of(fs, addr, &age);
    bool unknown = err == -EUCLEAN && fs->super_is_old;
    if (err && !unknown)
        return err;
    return ffs_checked_read(fs, addr, unknown ? NULL : &age, mb, &expect, what);
}

static void chunk_map_enter(struct ffs_chunks *c, uint64_t index, const struct lay_map_block *mb)
{
    for (unsigned i = 0; i < LAY_MAP_SLOTS; i++) {
        uint64_t segment = index * LAY_MAP_SLOTS + i, copy = lay_get64(mb->slots[i].places[1]);
        if (!lay_slot_mapped(&mb->slots[i]))
            continue;
        c->starts[segment] = lay_get64(mb->slots[i].places[0]);
        c->copies[segment] = copy == LAY_NONE ? 0 : copy;
        c->states[segment] = FFS_SEGMENT_UNREAD;
        ffs_chunks_note_both(c, segment, true);
        c->unread++;
        c->end = segment + 1;
    }
}

/* Reads the map until all mapped segments have been found. Their number is `segments`. */
static int chunk_map_read_all(struct ffs *fs, uint64_t segments, const char **what)
{
    struct ffs_chunks *c = &fs->chunks;
    struct lay_map_block *mb = aligned_alloc(LAY_BLOCK_SIZE, sizeof(*mb));
    int err = mb ? 0 : -ENOMEM;

    for (uint64_t i = 0; i < fs->geo.map_blocks && c->unread < segments && !err; i++) {
        err = chunk_map_read(fs, i, mb, what);
        if (!err)
            chunk_map_enter(c, i, mb);
    }
    free(mb);
    if (!err && c->unread != segments) {
        *what = "not as many chunks as the superblock says";
        err = -EUCLEAN;
    }
    return err;
}

/*
 * Collects the first place of each chunk, or of each copy, from `starts`.
 * Returns the number of places, or LAY_NONE if the segments of a chunk are not
 * adjacent.
 */
static uint64_t chunk_map_collect(const struct ffs *fs, const uint64_t *starts, uint64_t *out)
{
    uint32_t each = lay_chunk_segments(&fs->geo);
    uint64_t n = 0;

    for (uint64_t s = 0; s < fs->chunks.end; s++) {
        uint64_t before = s > 0 ? starts[s - 1] : 0;
        if (s % each == 0 && starts[s] != 0)
            out[n++] = starts[s];
        else if (s % each != 0 && starts[s] != (before ? before + LAY_SEGMENT_BLOCKS : 0))
            return LAY_NONE;
    }
    return fs->chunks.end % each == 0 ? n : LAY_NONE;
}

/* Checks conditions on the whole map, which the check of a single block cannot see. */
static int chunk_map_check(const struct ffs *fs, const char **what)
{
    const struct ffs_chunks *c = &fs->chunks;
    uint64_t *starts = malloc((2 * c->unread + 1) * sizeof(*starts));

    if (!starts)
        return -ENOMEM;
    uint64_t n = chunk_map_collect(fs, c->starts, starts);
    uint64_t copies = n == LAY_NONE ? n : chunk_map_collect(fs, c->copies, starts + n);
    *what = copies == LAY_NONE ? "a chunk is not in one piece" : NULL;
    n += copies;
    if (!*what)
        qsort(starts, n, sizeof(*starts), by_u64);
    for (uint64_t i = 1; !*what && i < n; i++) {
        if (starts[i] - starts[i - 1] < ffs_chunk_blocks(&fs->geo))
            *what = "two chunks overlap";
    }
    free(starts);
    return *what ? -EUCLEAN : 0;
}

int ffs_chunks_load(struct ffs *fs, const struct lay_super *sb, struct reason *why)
{
    struct ffs_chunks *c = &fs->chunks;
    const char *what = "";
    int err = chunk_map_init(c, &fs->geo);

    if (!err)
        err = chunk_map_read_all(fs, lay_get64(sb->chunks) << fs->geo.chunk_shift, &what);
    if (!err)
        err = chunk_map_check(fs, &what);
    c->look = c->end;
    switch (err) {
    case 0:
        return 0;
    case -EUCLEAN:
        return reason_set(why, err, "chunk map damaged: %s; run fsck.gpunvme", what);
    case -ENOMEM:
        return reason_set(why, err, "out of memory for the chunk map");
    default:
        return reason_set(why, err, "cannot read the chunk map: %s", strerror(-err));
    }
}

void ffs_chunks_heal(struct ffs *fs)
{
    uint64_t n = lay_map_blocks(fs->chunks.end);
    struct lay_map_block *mb = NULL;
    const char *what;

    if (atomic_load(&fs->checked.corrected) > 0 || atomic_load(&fs->checked.copy_used))
        mb = aligned_alloc(LAY_BLOCK_SIZE, sizeof(*mb));
    for (uint64_t i = 0; i < n && mb; i++) {
        struct lay_expect expect = {.magic = LAY_MAGIC_MAP};
        uint64_t addr = LAY_ADDR(LAY_KIND_MAP, i);
        /* A block with an image is not read, because a checkpoint overwrites it. */
        uint32_t age;
        if (!ffs_home_has(&fs->home, addr) && ffs_age_of(fs, addr, &age) == 0)
            ffs_checked_read(fs, addr, &age, mb, &expect, &what);
    }
    free(mb);
}

int ffs_chunks_resize(struct ffs *fs, const struct lay_geometry *geo)
{
    struct ffs_chunks *c = &fs->chunks, now;
    int err = chunk_map_init(&now, geo);

    if (err) {
        chunk_map_free(&now);
        return err;
    }
    memcpy(now.starts, c->starts, c->end * sizeof(*c->starts));
    memcpy(now.copies, c->copies, c->end * sizeof(*c->copies));
    memcpy(now.states, c->states, c->end * sizeof(*c->states));
    for (uint64_t s = 0; s < c->end; s++) {
        if (ffs_segment_mapped(c, s))
            ffs_chunks_note_both(&now, s, true);
    }
    chunk_map_free(c);
    c->starts = now.starts;
    c->copies = now.copies;
    c->states = now.states;
    c->units = now.units;
    c->segments = now.segments;
    c->refused = 0;
    return 0;
}

void ffs_chunks_move(struct ffs *fs, uint64_t chunk, unsigned place, uint64_t start)
{
    struct ffs_chunks *c = &fs->chunks;
    uint32_t each = lay_chunk_segments(&fs->geo);
    uint64_t *starts = (place == 0 ? c->starts : c->copies) + chunk * each;

    for (uint32_t i = 0; i < each && starts[0] != 0; i++)
        ffs_chunks_note(c, starts[i], false);
    for (uint32_t i = 0; i < each; i++) {
        starts[i] = start + (uint64_t)i * LAY_SEGMENT_BLOCKS;
        ffs_chunks_note(c, starts[i], true);
    }
}

/* So many free blocks are left for handles that finally free space. */
#define CHUNKS_KEEP 64u
/*
 * One allocation reads at most so many unread segments to find out whether enough
 * blocks are free. A handle excludes all other threads, so they are few.
 */
#define CHUNKS_LOOK 2u

/* --- States ----------------------------------------------------------------------------------- */

static uint32_t chunks_free_in(unsigned state)
{
    return state > FFS_SEGMENT_KNOWN ? state - FFS_SEGMENT_KNOWN : 0;
}

static void chunks_set_state(struct ffs_chunks *c, uint64_t segment, unsigned state)
{
    unsigned old = c->states[segment];

    c->unread -= old == FFS_SEGMENT_UNREAD;
    c->free -= chunks_free_in(old);
    c->states[segment] = (uint16_t)state;
    c->unread += state == FFS_SEGMENT_UNREAD;
    c->free += chunks_free_in(state);
}

static void chunks_set_free(struct ffs_chunks *c, uint64_t segment, uint32_t free_blocks)
{
    chunks_set_state(c, segment, FFS_SEGMENT_KNOWN + free_blocks);
}

/* Gets the entries of a mapped segment. Its state follows from them. The caller has a handle. */
static int chunks_get_entries(struct ffs *fs, uint64_t segment, struct ffs_buf **out)
{
    struct ffs_chunks *c = &fs->chunks;
    struct lay_expect expect = {.magic = LAY_MAGIC_ENTRIES};
    int err = ffs_buf_get(fs, LAY_ADDR_CHUNK(segment, 0), &expect, out);

    if (err == -EUCLEAN)
        chunks_set_state(c, segment, FFS_SEGMENT_DAMAGED);
    if (!err && c->states[segment] < FFS_SEGMENT_KNOWN)
        chunks_set_free(c, segment, lay_get32(((struct lay_entries *)(*out)->data)->free));
    return err;
}

static uint64_t *chunks_bits(struct lay_entries *entries)
{
    return (uint64_t *)(void *)entries->used;
}

/*
 * Reads unread segments until so many blocks are known to be free, but at most
 * `most` of them. It begins with the highest numbers: the chunks that were
 * mapped last have the most room.
 */
static int chunks_look(struct ffs *fs, uint64_t want, uint64_t most)
{
    struct ffs_chunks *c = &fs->chunks;

    for (uint64_t n = 0; n < most && c->unread > 0 && c->free < want; n++) {
        struct ffs_buf *buf;
        do {
            c->look = c->look > 0 ? c->look - 1 : c->end - 1;
        } while (c->states[c->look] != FFS_SEGMENT_UNREAD);
        int err = chunks_get_entries(fs, c->look, &buf);
        if (err && err != -EUCLEAN)
            return err;
        if (!err)
            ffs_buf_put(buf);
    }
    return 0;
}

/* --- Slots of the map ------------------------------------------------------------------------- */

/* Gets the block of the map that has the slot of a segment. The block is dirty. */
static int chunks_dirty_map(struct ffs_tx *tx, uint64_t segment, struct ffs_buf **out)
{
    struct lay_expect expect = {.magic = LAY_MAGIC_MAP};
    int err = ffs_buf_get(tx->fs, LAY_ADDR(LAY_KIND_MAP, segment / LAY_MAP_SLOTS), &expect, out);

    if (err)
        return err;
    err = ffs_tx_dirty(tx, *out);
    if (err)
        ffs_buf_put(*out);
    return err;
}

/* Makes the blocks of the map that have slots of the chunk dirty, before anything is changed. */
static int chunks_dirty_slots(struct ffs_tx *tx, uint64_t first)
{
    uint64_t last = first + lay_chunk_segments(&tx->fs->geo) - 1;
    struct ffs_buf *buf;
    int err = chunks_dirty_map(tx, first, &buf);

    if (err)
        return err;
    ffs_buf_put(buf);
    err = chunks_dirty_map(tx, last, &buf);
    if (!err)
        ffs_buf_put(buf);
    return err;
}

/*
 * Changes the slot of a segment from one place to another, and the place of its
 * copy to `copy`. LAY_NONE means no place.
 */
static int chunks_change_slot(struct ffs_tx *tx, uint64_t segment, uint64_t from, uint64_t to,
                              uint64_t copy)
{
    struct ffs_buf *buf;
    int err = chunks_dirty_map(tx, segment, &buf);

    if (err)
        return err;
    struct lay_map_block *mb = buf->data;
    struct lay_slot *slot = &mb->slots[segment % LAY_MAP_SLOTS];
    if (lay_get64(slot->places[0]) == from)
        lay_slot_set(slot, to, copy);
    else
        err = ffs_corrupt(tx->fs, buf->block, 0, "not the chunk map that was mounted");
    ffs_buf_put(buf);
    return err;
}

/* Enters a place of a segment in the map. The age of the segment does not change. */
static int chunks_set_slot(struct ffs_tx *tx, uint64_t segment, unsigned place, uint64_t block)
{
    struct ffs_buf *buf;
    int err = chunks_dirty_map(tx, segment, &buf);

    if (err)
        return err;
    struct lay_map_block *map = buf->data;
    map->slots[segment % LAY_MAP_SLOTS].places[place] = lay_put64(block);
    ffs_buf_put(buf);
    return 0;
}

int ffs_chunk_set_place(struct ffs_tx *tx, uint64_t first, unsigned place, uint64_t to)
{
    struct ffs *fs = tx->fs;
    int err = 0;

    for (uint64_t i = 0; i < lay_chunk_segments(&fs->geo) && !err; i++)
        err = chunks_set_slot(tx, first + i, place, to + i * LAY_SEGMENT_BLOCKS);
    if (!err)
        ffs_chunks_move(fs, first >> fs->geo.chunk_shift, place, to);
    return err;
}

/* The caller has made the superblock dirty. */
static void chunks_count(struct ffs *fs, int n)
{
    struct lay_super *sb = ffs_super(fs);

    sb->chunks = lay_put64(lay_get64(sb->chunks) + (uint64_t)n);
}

/* --- A chunk is mapped ------------------------------------------------------------------------ */

/* Makes numbers usable whose chunks no image in the log belongs to any more. */
static void chunks_reclaim_numbers(struct ffs *fs)
{
    struct ffs_chunks *c = &fs->chunks;
    uint64_t in_place = atomic_load(&fs->journal.in_place);
    size_t n = 0;

    for (; n < c->ngone && c->gone[n].tid <= in_place; n++) {
        for (uint32_t i = 0; i < lay_chunk_segments(&fs->geo); i++) {
            c->starts[c->gone[n].segment + i] = c->copies[c->gone[n].segment + i] = 0;
            chunks_set_state(c, c->gone[n].segment + i, FFS_SEGMENT_NONE);
        }
    }
    c->ngone -= n;
    if (n > 0)
        memmove(c->gone, c->gone + n, c->ngone * sizeof(*c->gone));
}

/* Returns the first segment of the chunk with the lowest unused number, or LAY_NONE. */
static uint64_t chunks_lowest_unused(struct ffs *fs)
{
    struct ffs_chunks *c = &fs->chunks;

    chunks_reclaim_numbers(fs);
    for (uint64_t s = 0; s < c->segments; s += lay_chunk_segments(&fs->geo)) {
        if (c->states[s] == FFS_SEGMENT_NONE)
            return s;
    }
    return LAY_NONE;
}

/*
 * Maps one segment, all of whose blocks except the entries are free. `copy` may
 * be 0.
 */
static int chunks_map_segment(struct ffs_tx *tx, uint64_t segment, uint64_t start, uint64_t copy)
{
    struct ffs_chunks *c = &tx->fs->chunks;
    struct ffs_buf *buf;
    int err = chunks_change_slot(tx, segment, LAY_NONE, start, copy ? copy : LAY_NONE);

    if (err)
        return err;
    c->starts[segment] = start;
    c->copies[segment] = copy;
    ffs_chunks_note_both(c, segment, true);
    chunks_set_free(c, segment, LAY_SEGMENT_BLOCKS - 1);
    if (c->end <= segment)
        c->end = segment + 1;
    err = ffs_tx_new(tx, LAY_ADDR_CHUNK(segment, 0), LAY_MAGIC_ENTRIES, 0, &buf);
    if (err)
        return err;
    struct lay_entries *entries = buf->data;
    entries->used[0] = 1;
    entries->free = lay_put32(LAY_SEGMENT_BLOCKS - 1);
    ffs_buf_put(buf);
    return 0;
}

/*
 * Maps another chunk: takes its space, sets its slots, and makes its entries.
 * All of it is in one transaction. Returns -ENOSPC or -EUCLEAN without a change
 * if there is no number or no space for it.
 */
static int chunks_map(struct ffs_tx *tx)
{
    struct ffs *fs = tx->fs;
    const uint64_t goals[FFS_PLACES] = {fs->chunks.starts[0], fs->chunks.copies[0]};
    uint64_t first = chunks_lowest_unused(fs), at[FFS_PLACES] = {0};
    int err = first == LAY_NONE ? -ENOSPC : chunks_dirty_slots(tx, first);

    if (!err)
        err = ffs_alloc_chunk(tx, goals, lay_has_copies(&fs->geo) ? 2 : 1, at);
    if (err)
        return err;
    tx->mapped = true;
    for (uint32_t i = 0; i < lay_chunk_segments(&fs->geo) && !err; i++) {
        uint64_t before = (uint64_t)i * LAY_SEGMENT_BLOCKS;
        err = chunks_map_segment(tx, first + i, at[0] + before, at[1] ? at[1] + before : 0);
    }
    if (!err)
        chunks_count(fs, 1);
    return err;
}

/* Returns how many blocks are to be free before another chunk is mapped. */
static uint64_t chunks_stock(struct ffs *fs)
{
    uint64_t stock = fs->geo.reserve * ffs_chunk_room(&fs->geo);

    return stock > CHUNKS_KEEP ? stock : CHUNKS_KEEP + 1;
}

/*
 * Maps another chunk if free blocks run low and there is space for it. If there
 * is none, the allocation takes what is left, and the search is not repeated
 * before more can be found.
 */
static int chunks_refill(struct ffs_tx *tx)
{
    struct ffs *fs = tx->fs;
    struct ffs_chunks *c = &fs->chunks;
    uint64_t stock = chunks_stock(fs), released;

    if (c->free >= stock)
        return 0;
    int err = chunks_look(fs, stock, CHUNKS_LOOK);
    /* Blocks that are known to be free suffice until all segments have been read. */
    if (err || c->free >= stock || (c->free > CHUNKS_KEEP && c->unread > 0) || tx->mapped)
        return err;
    released = ffs_alloc_released(fs);
    if (c->refused == released + 1)
        return 0;
    err = chunks_map(tx);
    if (!tx->mapped && (err == -ENOSPC || err == -EUCLEAN)) {
        c->refused = released + 1;
        err = 0;
    }
    return err;
}

/* --- Allocation ------------------------------------------------------------------------------- */

/* Describes a run of blocks that an allocation takes. */
struct chunks_run {
    uint64_t max;
    uint64_t segment;
    struct ffs_found found;
};

/* Marks the blocks that this handle has freed as used: their old contents are still cached. */
static void chunks_mask_freed(const struct ffs_tx *tx, uint64_t segment, uint64_t *map)
{
    uint64_t first = LAY_ADDR_CHUNK(segment, 0), end = first + LAY_SEGMENT_BLOCKS;

    for (size_t i = 0; i < tx->forgotten.n; i++) {
        const struct ffs_range *r = &tx->forgotten.v[i];
        uint64_t from = max_u64(r->block, first), to = min_u64(r->block + r->len, end);
        if (from < to)
            ffs_map_set(map, (uint32_t)(from - first), (uint32_t)(to - from));
    }
}

/* Finds a run at block `from`, after it, or else anywhere. Its length is 0 if there is none. */
static struct ffs_found chunks_search(const uint64_t *map, uint32_t from, uint64_t max)
{
    uint32_t want = (uint32_t)min_u64(max, LAY_SEGMENT_BLOCKS);
    uint32_t to = (uint32_t)min_u64(from + want, LAY_SEGMENT_BLOCKS);
    struct ffs_found at = {from, ffs_map_zeros(map, from, to)};

    if (at.len == 0)
        at = ffs_map_find(map, from, LAY_SEGMENT_BLOCKS, want, 1);
    return at.len > 0 ? at : ffs_map_find(map, 0, LAY_SEGMENT_BLOCKS, want, 1);
}

/* Takes a run of the segment near its block `from`. Returns -ENOSPC if it has none. */
static int chunks_take(struct ffs_tx *tx, uint64_t segment, uint32_t from, struct chunks_run *run)
{
    struct ffs_chunks *c = &tx->fs->chunks;
    uint64_t map[LAY_SEGMENT_BLOCKS / 64];
    struct ffs_buf *buf;
    int err = chunks_get_entries(tx->fs, segment, &buf);

    if (err)
        return err == -EUCLEAN ? -ENOSPC : err;
    struct lay_entries *entries = buf->data;
    memcpy(map, entries->used, sizeof(map));
    chunks_mask_freed(tx, segment, map);
    struct ffs_found found = chunks_search(map, from, run->max);
    err = found.len == 0 ? -ENOSPC : ffs_tx_dirty(tx, buf);
    if (!err) {
        uint32_t left = lay_get32(entries->free) - found.len;
        ffs_map_set(chunks_bits(entries), found.bit, found.len);
        entries->free = lay_put32(left);
        chunks_set_free(c, segment, left);
        run->segment = segment;
        run->found = found;
    }
    ffs_buf_put(buf);
    return err;
}

/* Returns true if the segment has a free block, as far as is known, or has not been read. */
static bool chunks_may_serve(const struct ffs_chunks *c, uint64_t segment, bool unread)
{
    if (segment >= c->end)
        return false;
    return unread ? c->states[segment] == FFS_SEGMENT_UNREAD
                  : c->states[segment] > FFS_SEGMENT_KNOWN;
}

/* Allocates a run from the segment at the cursor or from a later segment. */
static int chunks_take_behind(struct ffs_tx *tx, bool unread, struct chunks_run *run)
{
    struct ffs_chunks *c = &tx->fs->chunks;
    uint64_t segment = c->cursor;

    for (uint64_t n = 0; n < c->end; n++, segment = segment + 1 < c->end ? segment + 1 : 0) {
        if (!chunks_may_serve(c, segment, unread))
            continue;
        int err = chunks_take(tx, segment, 1, run);
        if (!err)
            c->cursor = segment;
        if (err != -ENOSPC)
            return err;
    }
    return -ENOSPC;
}

static int chunks_take_near(struct ffs_tx *tx, uint64_t goal, struct chunks_run *run)
{
    uint64_t segment = lay_addr_segment(goal);
    const struct ffs_chunks *c = &tx->fs->chunks;
    bool near = lay_chunk_addr_ok(&tx->fs->geo, goal) &&
                (chunks_may_serve(c, segment, false) || chunks_may_serve(c, segment, true));
    int err = near ? chunks_take(tx, segment, lay_addr_index(goal), run) : -ENOSPC;

    if (err == -ENOSPC)
        err = chunks_take_behind(tx, false, run);
    return err == -ENOSPC ? chunks_take_behind(tx, true, run) : err;
}

int ffs_alloc_meta_run(struct ffs_tx *tx, uint64_t goal, uint64_t max, uint64_t *addr,
                       uint64_t *len)
{
    struct ffs *fs = tx->fs;
    struct ffs_chunks *c = &fs->chunks;
    uint64_t keep = tx->use_reserve ? 0 : CHUNKS_KEEP;
    struct chunks_run run = {.max = max};
    int err = chunks_refill(tx);

    if (!err)
        err = chunks_look(fs, keep + 1, UINT64_MAX);
    if (!err)
        err = c->free <= keep ? -ENOSPC : chunks_take_near(tx, goal, &run);
    if (err)
        return err == -ENOSPC ? ffs_alloc_no_space(fs) : err;
    *addr = LAY_ADDR_CHUNK(run.segment, run.found.bit);
    *len = run.found.len;
    return 0;
}

int ffs_alloc_meta(struct ffs_tx *tx, uint64_t goal, uint64_t *addr)
{
    uint64_t len;

    return ffs_alloc_meta_run(tx, goal, 1, addr, &len);
}

/* --- Blocks and chunks are freed -------------------------------------------------------------- */

/* Returns true if no block of the chunk is in use. */
static bool chunks_is_empty(struct ffs *fs, uint64_t first)
{
    const struct ffs_chunks *c = &fs->chunks;

    for (uint64_t s = first; s < first + lay_chunk_segments(&fs->geo); s++) {
        struct ffs_buf *buf;
        if (c->states[s] == FFS_SEGMENT_UNREAD && chunks_get_entries(fs, s, &buf) == 0)
            ffs_buf_put(buf);
        if (chunks_free_in(c->states[s]) != LAY_SEGMENT_BLOCKS - 1)
            return false;
    }
    return true;
}

/*
 * Returns true if the chunk is empty and the other chunks have enough free
 * blocks without it, so that it can be unmapped. Chunk 0 stays mapped.
 */
static bool chunks_is_spare(struct ffs_tx *tx, uint64_t first)
{
    struct ffs *fs = tx->fs;
    uint64_t want = (fs->geo.reserve + 2) * ffs_chunk_room(&fs->geo);

    if (first == 0 || tx->mapped || !chunks_is_empty(fs, first))
        return false;
    return chunks_look(fs, want, CHUNKS_LOOK) == 0 && fs->chunks.free >= want;
}

/* Reserves the memory that the unmapping of a chunk needs until the end of the handle. */
static int chunks_reserve_unmap(struct ffs_tx *tx)
{
    struct ffs_chunks *c = &tx->fs->chunks;
    int err = ffs_ranges_reserve(&tx->unmapped, 1);

    if (!err)
        err = ffs_ranges_reserve(&tx->fs->journal.running.unmapped, tx->unmapped.n + 1);
    if (!err)
        err = ffs_ranges_reserve(&tx->forgotten, lay_chunk_segments(&tx->fs->geo));
    if (!err)
        err = array_reserve((void **)&c->gone, &c->gone_cap, c->ngone + tx->unmapped.n + 1,
                            sizeof(*c->gone));
    return err;
}

/* Checks the sections of the chunk's space, which are needed to free it. */
static int chunks_check_sections(struct ffs *fs, uint64_t first)
{
    int err = 0;

    for (unsigned i = 0; i < FFS_PLACES && !err; i++) {
        uint64_t start = ffs_segment_start(&fs->chunks, first, i);
        uint64_t last = start + ffs_chunk_blocks(&fs->geo) - 1;
        if (start != 0)
            err = ffs_section_check(fs, start / LAY_GROUP_BLOCKS);
        if (start != 0 && !err)
            err = ffs_section_check(fs, last / LAY_GROUP_BLOCKS);
    }
    return err;
}

/*
 * Unmaps a chunk without a block in use: clears its slots and frees its space,
 * in the transaction that freed its last block. Its place stays in memory while
 * a checkpoint may still write there.
 */
static int chunks_unmap(struct ffs_tx *tx, uint64_t first)
{
    struct ffs *fs = tx->fs;
    struct ffs_chunks *c = &fs->chunks;
    uint64_t blocks = ffs_chunk_blocks(&fs->geo);
    int err = chunks_reserve_unmap(tx);

    for (uint32_t i = 0; i < lay_chunk_segments(&fs->geo) && !err; i++) {
        err = chunks_change_slot(tx, first + i, c->starts[first + i], LAY_NONE, LAY_NONE);
        if (err)
            break;
        chunks_set_state(c, first + i, FFS_SEGMENT_GONE);
        ffs_chunks_note_both(c, first + i, false);
        ffs_ranges_add(&tx->forgotten, LAY_ADDR_CHUNK(first + i, 0), 1);
    }
    if (!err)
        err = ffs_free(tx, c->starts[first], blocks);
    if (!err && c->copies[first] != 0)
        err = ffs_free(tx, c->copies[first], blocks);
    if (err)
        return err;
    ffs_ranges_add(&tx->unmapped, LAY_ADDR_CHUNK(first, 0), blocks);
    chunks_count(fs, -1);
    return 0;
}

static int chunks_unmap_spare(struct ffs_tx *tx, uint64_t segment)
{
    uint64_t first = segment & ~(uint64_t)(lay_chunk_segments(&tx->fs->geo) - 1);
    uint32_t free_blocks = chunks_free_in(tx->fs->chunks.states[segment]);

    if (free_blocks != LAY_SEGMENT_BLOCKS - 1 || !chunks_is_spare(tx, first))
        return 0;
    int err = chunks_check_sections(tx->fs, first);
    if (!err)
        err = chunks_dirty_slots(tx, first);
    /* A chunk stays mapped, with all its blocks free, if damage prevents the change. */
    if (err)
        return err == -EUCLEAN ? 0 : err;
    return chunks_unmap(tx, first);
}

/* Clears the bit of a block in its entries. */
static int chunks_clear(struct ffs_tx *tx, uint64_t addr, struct ffs_buf *buf)
{
    struct lay_entries *entries = buf->data;
    uint32_t bit = lay_addr_index(addr), left = lay_get32(entries->free) + 1;

    if (!ffs_map_all(chunks_bits(entries), bit, 1, true))
        return ffs_corrupt(tx->fs, addr, 0, "freed, but free in the entries already");
    int err = ffs_tx_dirty(tx, buf);
    if (err)
        return err;
    ffs_map_clear(chunks_bits(entries), bit, 1);
    entries->ages[bit] = lay_put32(0);
    entries->free = lay_put32(left);
    chunks_set_free(&tx->fs->chunks, lay_addr_segment(addr), left);
    ffs_ranges_add(&tx->forgotten, addr, 1);
    return 0;
}

int ffs_free_meta(struct ffs_tx *tx, uint64_t addr)
{
    struct ffs *fs = tx->fs;
    uint64_t segment = lay_addr_segment(addr);
    struct ffs_buf *buf;

    if (!lay_chunk_addr_ok(&fs->geo, addr) || !ffs_segment_mapped(&fs->chunks, segment))
        return ffs_corrupt(fs, addr, 0, "freed, but not a block in a chunk");
    int err = ffs_ranges_reserve(&tx->forgotten, 1);
    if (!err)
        err = chunks_get_entries(fs, segment, &buf);
    if (err)
        return err;
    err = chunks_clear(tx, addr, buf);
    ffs_buf_put(buf);
    return err ? err : chunks_unmap_spare(tx, segment);
}

void ffs_chunks_leave(struct ffs *fs, const struct ffs_ranges *unmapped)
{
    struct ffs_chunks *c = &fs->chunks;
    uint64_t blocks = ffs_chunk_blocks(&fs->geo);

    for (size_t i = 0; i < unmapped->n; i++) {
        for (uint64_t b = 0; b < unmapped->v[i].len; b += blocks) {
            assert(c->ngone < c->gone_cap);
            c->gone[c->ngone++] = (struct ffs_gone){lay_addr_segment(unmapped->v[i].block + b),
                                                    fs->journal.running.tid};
        }
    }
}

/* --- A handle is undone ----------------------------------------------------------------------- */

static void chunks_undo_slot(struct ffs_chunks *c, uint64_t segment, bool mapped)
{
    if (segment >= c->segments)
        return;
    if (mapped && c->states[segment] == FFS_SEGMENT_GONE) {
        chunks_set_state(c, segment, FFS_SEGMENT_UNREAD);
        ffs_chunks_note_both(c, segment, true);
    }
    if (!mapped && ffs_segment_mapped(c, segment)) {
        chunks_set_state(c, segment, FFS_SEGMENT_NONE);
        ffs_chunks_note_both(c, segment, false);
        c->starts[segment] = c->copies[segment] = 0;
    }
}

void ffs_chunks_undo(struct ffs *fs, const struct ffs_buf *buf)
{
    struct ffs_chunks *c = &fs->chunks;
    const union lay_block *block = buf->data;
    uint64_t segment = lay_addr_segment(buf->block);

    if (lay_addr_kind(buf->block) == LAY_KIND_MAP) {
        segment = lay_addr_number(buf->block) * LAY_MAP_SLOTS;
        for (unsigned i = 0; i < LAY_MAP_SLOTS; i++)
            chunks_undo_slot(c, segment + i, lay_slot_mapped(&block->map.slots[i]));
    } else if (lay_get32(block->head.magic) == LAY_MAGIC_ENTRIES &&
               ffs_segment_mapped(c, segment)) {
        chunks_set_free(c, segment, lay_get32(block->entries.free));
    }
}
