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
    bool lost; /* it cannot be written or read, and the image has another place */
};

/* The places of all images, sorted by block. */
struct homes {
    struct home_place *places;
    size_t n;
};

/* Adds the places of an image and returns their number. */
static size_t checkpoint_add_places(const struct ffs *fs, const struct ffs_image *image,
                                    struct home_place *list)
{
    uint64_t places[FFS_PLACES];
    unsigned n = ffs_homes_of(fs, image->item.number, places);

    assert(n > 0);

    for (unsigned i = 0; i < n; i++)
        list[i] = (struct home_place){places[i], image, false};
    return n;
}

/*
 * Collects the places of all images. Returns 0 or -ENOMEM. The list stays valid
 * because only commits and checkpoints change the set.
 */
static int checkpoint_sort(struct ffs *fs, struct homes *h)
{
    struct ffs_home *home = &fs->home;
    const struct ffs_image *image = NULL;

    pthread_mutex_lock(&home->lock);
    h->n = 0;
    h->places = malloc((FFS_PLACES * home->table.n + 1) * sizeof(*h->places));
    while (h->places && (image = ffs_home_next(home, image)))
        h->n += checkpoint_add_places(fs, image, h->places + h->n);
    pthread_mutex_unlock(&home->lock);
    if (!h->places)
        return -ENOMEM;
    qsort(h->places, h->n, sizeof(*h->places), by_u64);
    return 0;
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

/*
 * Goes on without a place that has failed, if the image has another one that has
 * not. Returns `err` otherwise.
 */
static int checkpoint_lose(struct ffs *fs, const struct homes *h, struct home_place *place, int err)
{
    uint64_t places[FFS_PLACES];
    unsigned n = ffs_homes_of(fs, place->image->item.number, places);

    for (unsigned i = 0; i < n && err == -EIO && !place->lost; i++) {
        const struct home_place *other =
            bsearch(&places[i], h->places, h->n, sizeof(*other), by_u64);
        place->lost = other && other != place && !other->lost;
    }
    if (!place->lost)
        return err;
    ffs_checked_lose_place(fs, place->block);
    return 0;
}

/* Transfers one block of a batch, of which the staging memory is at `at`. */
static int checkpoint_one(struct ffs *fs, enum bd_op op, const struct home_place *place, void *at)
{
    return op == BD_READ ? bd_read(fs->dev, ffs_bytes(place->block), at, LAY_BLOCK_SIZE)
                         : bd_write(fs->dev, ffs_bytes(place->block), at, LAY_BLOCK_SIZE, 0);
}

/* Transfers a batch, block by block if the device refuses one of them. */
static int checkpoint_transfer(struct ffs *fs, enum bd_op op, const struct homes *h,
                               struct home_place *list, size_t n)
{
    struct bd_io ios[FFS_STAGING_BLOCKS];
    uint8_t *at = fs->journal.staging;
    bool all = true;

    for (size_t i = 0; i < n; i++)
        all &= !list[i].lost;
    int err = all ? bd_submit(fs->dev, ios, checkpoint_gather(fs, op, list, n, ios)) : -EIO;
    if (err != -EIO)
        return err;
    err = 0;
    for (size_t i = 0; i < n && !err; i++, at += LAY_BLOCK_SIZE) {
        if (!list[i].lost)
            err = checkpoint_one(fs, op, &list[i], at);
        if (err)
            err = checkpoint_lose(fs, h, &list[i], err);
    }
    return err;
}

static int checkpoint_write_batch(struct ffs *fs, const struct homes *h, struct home_place *list,
                                  size_t n)
{
    uint8_t *at = fs->journal.staging;

    for (size_t i = 0; i < n; i++, at += LAY_BLOCK_SIZE)
        memcpy(at, list[i].image->data, LAY_BLOCK_SIZE);
    return checkpoint_transfer(fs, BD_WRITE, h, list, n);
}

/* Returns -EUCLEAN if a block does not read back as it was written. */
static int checkpoint_verify_batch(struct ffs *fs, const struct homes *h, struct home_place *list,
                                   size_t n)
{
    const uint8_t *at = fs->journal.staging;
    int err = checkpoint_transfer(fs, BD_READ, h, list, n);

    for (size_t i = 0; i < n && !err; i++, at += LAY_BLOCK_SIZE) {
        if (list[i].lost || memcmp(at, list[i].image->data, LAY_BLOCK_SIZE) == 0)
            continue;
        ffs_log(fs, LOG_ERR, "block %llu does not read back as it was written",
                (unsigned long long)list[i].block);
        err = -EUCLEAN;
    }
    return err;
}

typedef int (*batch_fn)(struct ffs *fs, const struct homes *h, struct home_place *list, size_t n);

static int checkpoint_in_batches(struct ffs *fs, const struct homes *h, batch_fn body)
{
    int err = 0;

    for (size_t i = 0; i < h->n && !err; i += FFS_STAGING_BLOCKS) {
        size_t left = h->n - i;
        err = body(fs, h, h->places + i, min_u64(left, FFS_STAGING_BLOCKS));
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
    struct homes h;
    int err = checkpoint_sort(fs, &h);

    if (err)
        return err;
    err = h.n > 0 ? -EUCLEAN : 0;
    for (unsigned attempt = 0; attempt < 2 && err == -EUCLEAN; attempt++) {
        err = checkpoint_in_batches(fs, &h, checkpoint_write_batch);
        if (!err)
            err = ffs_flush(fs);
        if (!err)
            err = checkpoint_in_batches(fs, &h, checkpoint_verify_batch);
    }
    free(h.places);
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
    if (err == -ENOMEM)
        return err;
    if (!err)
        err = checkpoint_commit_tail(fs);
    if (err)
        return ffs_fail(fs, "checkpoint", err);
    ffs_home_filter(&fs->home, NULL, NULL);
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
