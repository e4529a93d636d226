/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checksums of data that follow a file: they are stored for a watch (watch.c), which takes them
 * away when data is overwritten.
 */
#include <string.h>

#include "fusefs/core/data/verify.h"
#include "fusefs/core/state.h"

/* Blocks whose checksums are stored under one hold of the data lock. */
#define FILL 512u

static int verify_fill_some(struct ffs_inode *inode, struct ffs_watch *w, uint64_t first,
                            uint64_t block, uint64_t n)
{
    uint32_t sums[FILL];

    pthread_rwlock_rdlock(&inode->data);
    int err = ffs_mapped_sums(inode, first, n, block, sums);
    for (uint64_t i = 0; i < n && !err; i++)
        __atomic_store_n(&w->sums[first + i], sums[i], __ATOMIC_RELAXED);
    pthread_rwlock_unlock(&inode->data);
    return err;
}

static int verify_fill_segment(struct ffs_inode *inode, struct ffs_watch *w,
                               const struct ffs_segment *s)
{
    uint64_t first = ffs_block_of(s->offset), block = ffs_block_of(s->device);
    uint64_t n = first < w->n_sums ? ffs_min(ffs_block_of(s->len), w->n_sums - first) : 0;
    int err = 0;

    for (uint64_t done = 0, part; done < n && !err; done += part) {
        part = ffs_min(n - done, FILL);
        err = verify_fill_some(inode, w, first + done, block + done, part);
    }
    return err;
}

int ffs_watch_sums(struct ffs_inode *inode, struct ffs_watch *w, const struct ffs_map *map,
                   uint32_t *sums, uint64_t n)
{
    bool useless = !ffs_has_sums(ffs_geometry(inode->fs)) || inode->fs->sums.stale;
    int err = 0;

    memset(sums, 0, n * sizeof(*sums));
    if (useless)
        return 0;
    pthread_rwlock_wrlock(&inode->fs->meta);
    w->sums = sums;
    w->n_sums = n;
    pthread_rwlock_unlock(&inode->fs->meta);
    for (size_t i = 0; i < map->count && !err; i++) {
        const struct ffs_segment *s = &map->segments[i];
        if (s->device != FFS_HOLE && !s->unwritten)
            err = verify_fill_segment(inode, w, s);
    }
    return err;
}
