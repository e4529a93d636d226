/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Ages in naming blocks (FORMAT.md 2.4). A naming block holds the ages that the
 * blocks below it have in place: those of the last checkpoint. A checkpoint
 * enters the ages of all blocks that it is about to write in place, from the
 * bottom up to the superblock, and commits the changed naming blocks first.
 */
#include <errno.h>
#include <stdlib.h>

#include "fusefs/core/state.h"

/* --- Gathering -------------------------------------------------------------------------------- */

/*
 * Gets the block that names `addr`. *name is NULL if there is none: for the
 * superblock, for a chunk that is not mapped, and above damage, where nothing is
 * named.
 */
static int naming_get(struct ffs *fs, uint64_t addr, struct ffs_buf **name, unsigned *index)
{
    uint64_t places[FFS_PLACES];
    int err = 0;

    *name = NULL;
    if (ffs_places_of(fs, addr, places) != 0)
        err = ffs_cache_get_name(fs, addr, name, index);
    return err == -EUCLEAN ? 0 : err;
}

/* Adds a naming block to the running transaction. Takes over the reference. */
static int naming_enter(struct ffs *fs, struct ffs_buf *name)
{
    int err = ffs_running_reserve(fs, 1);

    if (err)
        ffs_buf_put(name);
    else
        ffs_running_add(fs, ffs_cbuf(name));
    return err;
}

/* Enters the age of a committed image, unless the running transaction has a newer one. */
static int naming_enter_image(struct ffs *fs, const struct ffs_aged *image)
{
    struct ffs_cbuf *cb = ffs_cache_find(fs, image->block);
    bool newer = cb && cb->running_at;
    struct ffs_buf *name;
    unsigned index;

    if (cb)
        ffs_buf_put(&cb->pub);
    int err = newer ? 0 : naming_get(fs, image->block, &name, &index);
    if (newer || err || !name)
        return err;
    if (lay_is_unnamed(name->data, image->block) ||
        lay_named_age(name->data, image->block, index) == image->age) {
        ffs_buf_put(name);
        return 0;
    }
    lay_set_named_age(name->data, image->block, index, image->age);
    return naming_enter(fs, name);
}

int ffs_naming_gather(struct ffs *fs)
{
    struct ffs_running *r = &fs->journal.running;
    size_t n;
    struct ffs_aged *images = ffs_home_ages(&fs->home, &n);
    int err = images ? 0 : -ENOMEM;

    for (size_t i = 0; i < n && !err; i++)
        err = naming_enter_image(fs, &images[i]);
    free(images);
    /* The loop reaches the naming blocks that it adds. */
    for (size_t i = 0; i < r->n && !err; i++) {
        struct ffs_buf *name;
        unsigned index;
        err = naming_get(fs, r->bufs[i]->pub.block, &name, &index);
        if (!err && name)
            err = naming_enter(fs, name);
    }
    return err;
}

/* --- Sealing ---------------------------------------------------------------------------------- */

static void naming_seal(struct ffs *fs, struct ffs_buf *buf)
{
    struct ffs_buf *name;
    unsigned index;

    lay_seal(buf->data, fs->journal.tid);
    /* The name is in the transaction, so that it is cached. */
    if (naming_get(fs, buf->block, &name, &index) || !name)
        return;
    lay_set_named_age(name->data, buf->block, index, lay_age(buf->data));
    ffs_buf_put(name);
}

void ffs_naming_seal(struct ffs *fs)
{
    struct ffs_running *r = &fs->journal.running;

    for (unsigned rank = 0; rank <= LAY_RANK_SUPER; rank++) {
        for (size_t i = 0; i < r->n; i++) {
            if (lay_rank(r->bufs[i]->pub.block) == rank)
                naming_seal(fs, &r->bufs[i]->pub);
        }
    }
}
