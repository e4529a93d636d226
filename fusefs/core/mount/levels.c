/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Builds the levels of ages of an area from below: when all ages of a block are
 * known, the block is written, and its own age goes one level up.
 */
#include "fusefs/core/mount/levels.h"

#include <stdlib.h>
#include <string.h>

#include "fusefs/core/state.h"

void ffs_levels_begin(struct ffs_levels *l, struct ffs *fs, const struct lay_geometry *geo,
                      enum lay_kind kind, uint64_t blocks, uint64_t tid)
{
    *l = (struct ffs_levels){.fs = fs, .geo = geo, .kind = kind, .tid = tid, .blocks = blocks};
}

void ffs_levels_end(struct ffs_levels *l)
{
    for (unsigned level = 0; level < LAY_MAX_LEVELS; level++)
        free(l->open[level]);
}

/* Writes a block durably and reads it back. */
static int levels_write(struct ffs *fs, uint64_t place, const struct lay_ages *ages)
{
    struct lay_ages *back = aligned_alloc(LAY_BLOCK_SIZE, sizeof(*back));
    int err = back ? bd_write(fs->dev, ffs_bytes(place), ages, sizeof(*ages), 0) : -ENOMEM;

    if (!err)
        err = ffs_flush(fs);
    if (!err)
        err = bd_read(fs->dev, ffs_bytes(place), back, sizeof(*back));
    if (!err && memcmp(ages, back, sizeof(*back)) != 0)
        err = -EUCLEAN;
    free(back);
    return err;
}

/*
 * Completes the open block of a level. *age is its age, or 0 if all of its ages
 * are: then it is not written.
 */
static int levels_close(struct ffs_levels *l, unsigned level, uint32_t *age)
{
    struct lay_ages *ages = l->open[level];
    uint64_t addr = LAY_ADDR_LEVEL(l->kind, level, l->added[level]), places[2];
    unsigned n = lay_places(l->geo, addr, places);
    int err = 0;

    *age = 0;
    if (!ages)
        return 0;
    lay_head_init(&ages->head, LAY_MAGIC_AGES, l->geo->uuid, addr, 0);
    lay_seal(ages, l->tid);
    *age = lay_age(ages);
    for (unsigned i = 0; i < n && !err; i++)
        err = levels_write(l->fs, places[i], ages);
    free(ages);
    l->open[level] = NULL;
    return err;
}

/* Enters the age of block `at` of a level in the block above, which had no ages before. */
static int levels_enter(struct ffs_levels *l, unsigned level, uint64_t at, uint32_t age)
{
    struct lay_ages **above = &l->open[level + 1];

    if (age == 0)
        return 0;
    if (!*above)
        *above = calloc(1, sizeof(**above));
    if (!*above)
        return -ENOMEM;
    (*above)->ages[at % LAY_AGES] = lay_put32(age);
    return 0;
}

int ffs_levels_add(struct ffs_levels *l, uint32_t age)
{
    int err = 0;

    for (unsigned level = 0; !err; level++) {
        uint64_t blocks = lay_level_blocks(l->blocks, level), at = l->added[level]++;
        if (blocks == 1) {
            l->top = age;
            break;
        }
        err = levels_enter(l, level, at, age);
        if (at % LAY_AGES != LAY_AGES - 1 && at + 1 != blocks)
            break;
        if (!err)
            err = levels_close(l, level + 1, &age);
    }
    return err;
}
