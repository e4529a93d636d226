/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Ages of bitmaps (FORMAT.md 5.1): the superblock holds a sum of the transactions that last wrote
 * the bitmaps of each section. A stale bitmap makes the sum of its section smaller.
 */
#include <errno.h>
#include <stdlib.h>

#include "fusefs/core/alloc.h"
#include "fusefs/core/state.h"

/* Bitmaps read at a time. */
#define CHUNK 64u

/* A group whose map is not loaded is not searched in vain. */
static void note_free(struct ffs *fs, uint64_t group, uint32_t free_bits)
{
    struct ffs_group *g = &fs->alloc.groups[group];

    pthread_mutex_lock(&fs->alloc.lock);
    if (!g->map)
        g->free = g->longest = free_bits;
    pthread_mutex_unlock(&fs->alloc.lock);
}

/* Adds ages and free blocks of n bitmaps from group `first` on, as they are in place. */
static int add_ages(struct ffs *fs, uint64_t first, uint64_t n, struct lay_bitmap *buf,
                    uint64_t *sum, uint64_t *free_blocks)
{
    uint64_t at = fs->geo.bitmap_start + first;
    const char *why = "";
    int err = bd_read(fs->dev, ffs_bytes(at), buf, ffs_bytes(n));

    for (uint64_t i = 0; i < n && !err; i++) {
        if (lay_check_bitmap(&fs->geo, &buf[i], first + i, &why))
            return ffs_corrupt(fs, at + i, 0, why);
        *sum += lay_get64(buf[i].head.tid);
        *free_blocks += lay_get32(buf[i].free);
        note_free(fs, first + i, lay_get32(buf[i].free));
    }
    return err;
}

/* FORMAT.md 5.2 */
static uint8_t hint_of(uint64_t free_blocks)
{
    return (uint8_t)(free_blocks == 0 ? 1 : 65 - __builtin_clzll(free_blocks));
}

int ffs_section_check(struct ffs *fs, uint64_t group)
{
    uint64_t each = lay_section_groups(&fs->geo);
    uint64_t section = group / each, first = section * each, sum = 0, free_blocks = 0;
    uint64_t end = first + each < lay_groups(&fs->geo) ? first + each : lay_groups(&fs->geo);

    if (fs->alloc.section_checked[section])
        return 0;
    /* Until then no handle has changed a bitmap of the section: all of them are in place. */
    struct lay_bitmap *buf = aligned_alloc(LAY_BLOCK_SIZE, CHUNK * sizeof(*buf));
    int err = buf ? 0 : -ENOMEM;
    for (uint64_t g = first; g < end && !err; g += CHUNK)
        err = add_ages(fs, g, end - g < CHUNK ? end - g : CHUNK, buf, &sum, &free_blocks);
    free(buf);
    if (err)
        return err;
    if (sum != lay_get64(ffs_super(fs)->bitmap_tids[section]))
        return ffs_corrupt(fs, fs->geo.bitmap_start + first, 0,
                           "a bitmap of this section is not the one last written");
    fs->alloc.section_checked[section] = true;
    fs->alloc.section_free[section] = free_blocks;
    if (ffs_super(fs)->section_free[section] != hint_of(free_blocks))
        fs->alloc.hints_behind = true;
    return 0;
}

void ffs_section_changed(struct ffs *fs, struct lay_bitmap *bm, uint64_t group)
{
    le64 *sum = &ffs_super(fs)->bitmap_tids[group / lay_section_groups(&fs->geo)];
    uint64_t tid = fs->journal.running.tid;

    *sum = lay_put64(lay_get64(*sum) + tid - lay_get64(bm->head.tid));
    bm->head.tid = lay_put64(tid); /* as the commit will seal it */
}

void ffs_section_count(struct ffs *fs, uint64_t group, int64_t more)
{
    fs->alloc.section_free[group / lay_section_groups(&fs->geo)] += (uint64_t)more;
}

/* Sections that were checked for nothing are not read again by the next mount. */
static void catch_up(struct ffs *fs)
{
    for (size_t i = 0; i < LAY_BITMAP_SECTIONS; i++) {
        if (fs->alloc.section_checked[i])
            ffs_super(fs)->section_free[i] = hint_of(fs->alloc.section_free[i]);
    }
    fs->alloc.hints_behind = false;
}

void ffs_section_hint(struct ffs *fs, uint64_t group)
{
    size_t i = group / lay_section_groups(&fs->geo);
    struct lay_super *sb = ffs_super(fs);

    sb->compat = lay_put64(lay_get64(sb->compat) | LAY_COMPAT_SECTION_FREE);
    sb->section_free[i] = hint_of(fs->alloc.section_free[i]);
    if (fs->alloc.hints_behind)
        catch_up(fs);
}

bool ffs_section_is_full(struct ffs *fs, uint64_t group, uint64_t min)
{
    size_t i = group / lay_section_groups(&fs->geo);
    uint8_t hint = ffs_super(fs)->section_free[i];

    if (fs->alloc.section_checked[i])
        return fs->alloc.section_free[i] < min;
    return hint == 1 || (hint > 1 && hint < 65 && (uint64_t)1 << (hint - 1) <= min);
}
