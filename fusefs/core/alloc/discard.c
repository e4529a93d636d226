/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Discards: blocks that no file owns any more are given back to the device.
 */
#include <string.h>
#include <syslog.h>

#include "fusefs/core/alloc/discard.h"

void ffs_set_discard(struct ffs *fs, bool discard)
{
    atomic_store(&fs->discard, discard && fs->dev->info.discards);
}

void ffs_discard_submit(struct ffs_discards *b)
{
    int err = b->n ? bd_submit(b->fs->dev, b->ios, b->n) : 0;

    if (err)
        ffs_log(b->fs, LOG_WARNING, "%s: discard: %s", b->fs->dev->info.name, strerror(-err));
    b->n = 0;
}

void ffs_discard_add(struct ffs_discards *b, uint64_t block, uint64_t len)
{
    if (b->n == FFS_DISCARDS)
        ffs_discard_submit(b);
    b->ios[b->n++] =
        (struct bd_io){.op = BD_DISCARD, .offset = ffs_bytes(block), .len = ffs_bytes(len)};
}

/* The parts of a range that no pin covers; pins of freed blocks go, and none is added. */
static void pin_add_unpinned(struct ffs_discards *b, const struct ffs_range *r)
{
    struct ffs_alloc *a = &b->fs->alloc;
    uint64_t end = r->block + r->len;

    for (uint64_t block = r->block, len; block < end; block += len) {
        pthread_mutex_lock(&a->lock);
        bool keep = ffs_alloc_pinned(a, block, end, &len);
        pthread_mutex_unlock(&a->lock);
        if (!keep)
            ffs_discard_add(b, block, len);
    }
}

void ffs_discard_freed(struct ffs *fs, const struct ffs_ranges *freed)
{
    struct ffs_discards b = {.fs = fs};

    if (!atomic_load(&fs->discard))
        return;
    for (size_t i = 0; i < freed->n; i++)
        pin_add_unpinned(&b, &freed->v[i]);
    ffs_discard_submit(&b);
}
