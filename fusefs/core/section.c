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

/* Adds the ages of n bitmaps from group `first` on, as they are in place. */
static int add_ages(struct ffs *fs, uint64_t first, uint64_t n, struct lay_bitmap *buf,
                    uint64_t *sum)
{
    uint64_t at = fs->geo.bitmap_start + first;
    const char *why = "";
    int err = bd_read(fs->dev, ffs_bytes(at), buf, ffs_bytes(n));

    for (uint64_t i = 0; i < n && !err; i++) {
        if (lay_check_bitmap(&fs->geo, &buf[i], first + i, &why))
            return ffs_corrupt(fs, at + i, 0, why);
        *sum += lay_get64(buf[i].head.tid);
    }
    return err;
}

int ffs_section_check(struct ffs *fs, uint64_t group)
{
    uint64_t each = lay_section_groups(&fs->geo);
    uint64_t section = group / each, first = section * each, sum = 0;
    uint64_t end = first + each < lay_groups(&fs->geo) ? first + each : lay_groups(&fs->geo);

    if (fs->alloc.section_checked[section])
        return 0;
    /* Until then no handle has changed a bitmap of the section: all of them are in place. */
    struct lay_bitmap *buf = aligned_alloc(LAY_BLOCK_SIZE, CHUNK * sizeof(*buf));
    int err = buf ? 0 : -ENOMEM;
    for (uint64_t g = first; g < end && !err; g += CHUNK)
        err = add_ages(fs, g, end - g < CHUNK ? end - g : CHUNK, buf, &sum);
    free(buf);
    if (err)
        return err;
    if (sum != lay_get64(ffs_super(fs)->bitmap_tids[section]))
        return ffs_corrupt(fs, fs->geo.bitmap_start + first, 0,
                           "a bitmap of this section is not the one last written");
    fs->alloc.section_checked[section] = true;
    return 0;
}

void ffs_section_changed(struct ffs *fs, struct lay_bitmap *bm, uint64_t group)
{
    le64 *sum = &ffs_super(fs)->bitmap_tids[group / lay_section_groups(&fs->geo)];
    uint64_t tid = fs->journal.running.tid;

    *sum = lay_put64(lay_get64(*sum) + tid - lay_get64(bm->head.tid));
    bm->head.tid = lay_put64(tid); /* as the commit will seal it */
}
