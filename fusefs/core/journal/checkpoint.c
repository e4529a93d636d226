/* SPDX-License-Identifier: BSD-2-Clause */
/* Checkpoints. A checkpoint writes all committed images in place and empties the log. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "fusefs/core/state.h"

static int checkpoint_by_block(const void *a, const void *b)
{
    const struct ffs_image *x = *(struct ffs_image *const *)a;
    const struct ffs_image *y = *(struct ffs_image *const *)b;

    return x->block < y->block ? -1 : x->block > y->block;
}

/*
 * Returns all images, sorted by address, or NULL if memory is short. The list stays valid because
 * only commits and checkpoints change the set.
 */
static struct ffs_image **checkpoint_sorted(struct ffs_home *home, size_t *n)
{
    pthread_mutex_lock(&home->lock);
    size_t count = 0;
    struct ffs_image **list = malloc((home->n + 1) * sizeof(struct ffs_image *));
    for (size_t i = 0; list && i < home->bucket_count; i++) {
        for (struct ffs_image *image = home->buckets[i]; image; image = image->next)
            list[count++] = image;
    }
    pthread_mutex_unlock(&home->lock);
    if (list)
        qsort(list, count, sizeof(struct ffs_image *), checkpoint_by_block);
    *n = count;
    return list;
}

/*
 * Stores the transfers between staging memory and the places of a batch. Adjacent blocks share a
 * transfer.
 */
static size_t checkpoint_gather(struct ffs *fs, enum bd_op op, struct ffs_image **list, size_t n,
                                struct bd_io *ios)
{
    size_t nios = 0;
    uint8_t *at = fs->journal.staging;

    for (size_t i = 0; i < n; i++, at += LAY_BLOCK_SIZE) {
        if (i > 0 && list[i]->block == list[i - 1]->block + 1) {
            ios[nios - 1].len += LAY_BLOCK_SIZE;
            continue;
        }
        ios[nios++] = (struct bd_io){
            .op = op, .offset = ffs_bytes(list[i]->block), .len = LAY_BLOCK_SIZE, .buf = at};
    }
    return nios;
}

static int checkpoint_write_batch(struct ffs *fs, struct ffs_image **list, size_t n)
{
    struct bd_io ios[FFS_STAGING_BLOCKS];
    uint8_t *at = fs->journal.staging;

    for (size_t i = 0; i < n; i++, at += LAY_BLOCK_SIZE)
        memcpy(at, list[i]->data, LAY_BLOCK_SIZE);
    return bd_submit(fs->dev, ios, checkpoint_gather(fs, BD_WRITE, list, n, ios));
}

/* Returns -EUCLEAN if a block does not read back as it was written. */
static int checkpoint_verify_batch(struct ffs *fs, struct ffs_image **list, size_t n)
{
    struct bd_io ios[FFS_STAGING_BLOCKS];
    const uint8_t *at = fs->journal.staging;
    int err = bd_submit(fs->dev, ios, checkpoint_gather(fs, BD_READ, list, n, ios));

    for (size_t i = 0; i < n && !err; i++, at += LAY_BLOCK_SIZE) {
        if (memcmp(at, list[i]->data, LAY_BLOCK_SIZE) == 0)
            continue;
        ffs_log(fs, LOG_ERR, "%s: block %llu does not read back as it was written",
                fs->dev->info.name, (unsigned long long)list[i]->block);
        err = -EUCLEAN;
    }
    return err;
}

typedef int (*batch_fn)(struct ffs *fs, struct ffs_image **list, size_t n);

static int checkpoint_in_batches(struct ffs *fs, struct ffs_image **list, size_t n, batch_fn body)
{
    int err = 0;

    for (size_t i = 0; i < n && !err; i += FFS_STAGING_BLOCKS) {
        size_t left = n - i;
        err = ffs_interrupted(fs);
        if (!err)
            err = body(fs, list + i, left < FFS_STAGING_BLOCKS ? left : FFS_STAGING_BLOCKS);
    }
    return err;
}

/*
 * Writes the images in place, makes them durable and reads them back before the log is emptied. A
 * write that the device has acknowledged and lost is repeated once.
 */
static int checkpoint_put_in_place(struct ffs *fs)
{
    size_t n;
    struct ffs_image **list = checkpoint_sorted(&fs->home, &n);

    if (!list)
        return -ENOMEM;
    int err = -EUCLEAN;
    for (unsigned attempt = 0; attempt < 2 && err == -EUCLEAN; attempt++) {
        err = checkpoint_in_batches(fs, list, n, checkpoint_write_batch);
        if (!err)
            err = ffs_flush(fs);
        if (!err)
            err = checkpoint_in_batches(fs, list, n, checkpoint_verify_batch);
    }
    free(list);
    return err == -EUCLEAN ? -EIO : err;
}

/*
 * Writes the superblock copies before the log loses its image of block 0, so that a copy and the
 * log can replace block 0 at any time.
 */
static int checkpoint_write_copies(struct ffs *fs)
{
    struct bd_io ios[LAY_SUPER_COPIES];
    struct lay_super *copy = fs->journal.staging;

    if (!ffs_home_read(&fs->home, 0, copy))
        return 0;
    uint64_t tid = lay_get64(copy->head.tid);
    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++) {
        if (i > 0)
            copy[i] = copy[0];
        lay_head_init(&copy[i].head, LAY_MAGIC_SUPER, fs->geo.uuid, fs->geo.copies[i], 0);
        lay_seal(&copy[i], tid);
        ios[i] = (struct bd_io){.op = BD_WRITE,
                                .flags = BD_FUA,
                                .offset = ffs_bytes(fs->geo.copies[i]),
                                .len = LAY_BLOCK_SIZE,
                                .buf = &copy[i]};
    }
    int err = bd_submit(fs->dev, ios, LAY_SUPER_COPIES);
    if (!err)
        fs->journal.super_tid = tid;
    return err;
}

int ffs_checkpoint(struct ffs *fs, uint64_t next_tid)
{
    int err = checkpoint_put_in_place(fs);

    if (!err)
        err = checkpoint_write_copies(fs);
    if (!err)
        err = ffs_log_reset(fs, next_tid);
    if (err == -EINTR)
        return err;
    if (err)
        return ffs_fail(fs, "checkpoint", err);
    ffs_home_clear(&fs->home);
    return 0;
}

int ffs_checkpoint_above(struct ffs *fs, uint64_t log_blocks)
{
    struct ffs_journal *j = &fs->journal;
    int err = 0;

    pthread_mutex_lock(&j->commit_lock);
    if (ffs_health(fs) & (FFS_FAILED | FFS_DOWN))
        err = -EIO;
    else if (j->used > log_blocks)
        err = ffs_checkpoint(fs, atomic_load(&j->committed) + 1);
    pthread_mutex_unlock(&j->commit_lock);
    return err;
}

int ffs_checkpoint_now(struct ffs *fs)
{
    return ffs_checkpoint_above(fs, 0);
}
