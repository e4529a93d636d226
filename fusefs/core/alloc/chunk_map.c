/* SPDX-License-Identifier: BSD-2-Clause */
/* The chunk map in memory: read at mount, and changed with the size (FORMAT.md 5.6). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/core/alloc/chunks.h"
#include "fusefs/core/state.h"

/* Allocates the arrays. Pages of them that no mapped segment needs use no memory. */
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

/* Reads a block of the map, of which the log may have the newest version. */
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

/* Reads the map until all `segments` that are mapped have been found. */
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
 * Collects the first places of all chunks, or those of their copies, from
 * `starts`. Returns how many there are, or LAY_NONE if the segments of a chunk
 * are not adjacent.
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

/* Checks what the check of single blocks cannot see. */
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
        /* An image is written over the block anyway. */
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
