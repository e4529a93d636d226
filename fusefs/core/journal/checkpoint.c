/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Writes committed blocks to their homes, so that the log can use their space
 * again.
 *
 *     commit with naming blocks -> images in place -> flush -> read back
 *     -> commit with the later tail -> read back
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "fusefs/core/state.h"

/* A block of the device that an image belongs to. */
struct home_place {
    uint64_t block;
    const struct ffs_image *image;
};

static int checkpoint_by_block(const void *a, const void *b)
{
    const struct home_place *x = a, *y = b;

    return x->block < y->block ? -1 : x->block > y->block;
}

/* Adds the places of an image and returns their number. */
static size_t checkpoint_add_places(const struct ffs *fs, const struct ffs_image *image,
                                    struct home_place *list)
{
    uint64_t places[FFS_PLACES];
    unsigned n = ffs_homes_of(fs, image->block, places);

    assert(n > 0);

    for (unsigned i = 0; i < n; i++)
        list[i] = (struct home_place){places[i], image};
    return n;
}

/*
 * Returns the places of all images, sorted, or NULL if memory is short. The
 * list stays valid because only commits and checkpoints change the set.
 */
static struct home_place *checkpoint_sorted(struct ffs *fs, size_t *n)
{
    struct ffs_home *home = &fs->home;

    pthread_mutex_lock(&home->lock);
    size_t count = 0;
    struct home_place *list = malloc((FFS_PLACES * home->n + 1) * sizeof(*list));
    for (size_t i = 0; list && i < home->bucket_count; i++) {
        for (const struct ffs_image *image = home->buckets[i]; image; image = image->next)
            count += checkpoint_add_places(fs, image, list + count);
    }
    pthread_mutex_unlock(&home->lock);
    if (list)
        qsort(list, count, sizeof(*list), checkpoint_by_block);
    *n = count;
    return list;
}

/*
 * Stores the transfers between staging memory and the places of a batch.
 * Adjacent blocks share a transfer.
 */
static size_t checkpoint_gather(struct ffs *fs, enum bd_op op, const struct home_place *list,
                                size_t n, struct bd_io *ios)
{
    size_t nios = 0;
    uint8_t *at = fs->journal.staging;

    for (size_t i = 0; i < n; i++, at += LAY_BLOCK_SIZE) {
        if (i > 0 && list[i].block == list[i - 1].block + 1) {
            ios[nios - 1].len += LAY_BLOCK_SIZE;
            continue;
        }
        ios[nios++] = (struct bd_io){
            .op = op, .offset = ffs_bytes(list[i].block), .len = LAY_BLOCK_SIZE, .buf = at};
    }
    return nios;
}

static int checkpoint_write_batch(struct ffs *fs, const struct home_place *list, size_t n)
{
    struct bd_io ios[FFS_STAGING_BLOCKS];
    uint8_t *at = fs->journal.staging;

    for (size_t i = 0; i < n; i++, at += LAY_BLOCK_SIZE)
        memcpy(at, list[i].image->data, LAY_BLOCK_SIZE);
    return bd_submit(fs->dev, ios, checkpoint_gather(fs, BD_WRITE, list, n, ios));
}

/* Returns -EUCLEAN if a block does not read back as it was written. */
static int checkpoint_verify_batch(struct ffs *fs, const struct home_place *list, size_t n)
{
    struct bd_io ios[FFS_STAGING_BLOCKS];
    const uint8_t *at = fs->journal.staging;
    int err = bd_submit(fs->dev, ios, checkpoint_gather(fs, BD_READ, list, n, ios));

    for (size_t i = 0; i < n && !err; i++, at += LAY_BLOCK_SIZE) {
        if (memcmp(at, list[i].image->data, LAY_BLOCK_SIZE) == 0)
            continue;
        ffs_log(fs, LOG_ERR, "%s: block %llu does not read back as it was written",
                fs->dev->info.name, (unsigned long long)list[i].block);
        err = -EUCLEAN;
    }
    return err;
}

typedef int (*batch_fn)(struct ffs *fs, const struct home_place *list, size_t n);

static int checkpoint_in_batches(struct ffs *fs, const struct home_place *list, size_t n,
                                 batch_fn body)
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
 * Writes the images in place, makes them durable and reads them back before the
 * log forgets them. A write that the device has acknowledged and lost is
 * repeated once.
 */
static int checkpoint_put_in_place(struct ffs *fs)
{
    size_t n;
    struct home_place *list = checkpoint_sorted(fs, &n);

    if (!list)
        return -ENOMEM;
    int err = n > 0 ? -EUCLEAN : 0;
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

/* The commit with the later tail names the superblock that is in place now. */
static int checkpoint_commit_tail(struct ffs *fs)
{
    const struct ffs_log_tx tx = {.begins = true, .verify = true};
    uint32_t age = ffs_home_age(&fs->home, LAY_ADDR_SUPER);

    if (age != 0)
        fs->journal.super_age = age;
    return ffs_log_write(fs, &tx);
}

static int checkpoint_run(struct ffs *fs, enum ffs_commit_how how)
{
    int err = ffs_running_commit(fs, how);

    if (err == -EAGAIN)
        return ffs_fail(fs, "checkpoint: the log has no room", -ENOSPC);
    if (!err || err == -ENODATA)
        err = checkpoint_put_in_place(fs);

    /* The log still has all images, and a later checkpoint writes them. */
    if (err == -EINTR || err == -ENOMEM)
        return err;
    if (!err)
        err = checkpoint_commit_tail(fs);
    if (err)
        return ffs_fail(fs, "checkpoint", err);
    ffs_home_clear(&fs->home);
    atomic_store(&fs->journal.in_place, atomic_load(&fs->journal.committed));
    return 0;
}

int ffs_checkpoint(struct ffs *fs)
{
    return checkpoint_run(fs, FFS_COMMIT_NAMES);
}

int ffs_checkpoint_frozen(struct ffs *fs)
{
    return checkpoint_run(fs, FFS_COMMIT_FROZEN);
}
