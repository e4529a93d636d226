/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Collects what the transactions behind the gap of a damaged log would have
 * changed. A repair gives these changes up.
 */
#include <inttypes.h>
#include <string.h>

#include "mkfs/fsck/fsck.h"

#define GIVEN_LINES 100u

static int given_up_add(struct fsck *f, uint64_t ino)
{
    return fsck_append(&f->given_up, &ino, sizeof(ino));
}

/* Adds the inodes that the image has with other contents. */
static int given_up_inodes(struct fsck *f, uint64_t addr, const struct lay_inode_block *image)
{
    uint64_t first = lay_get64(image->head.owner);
    union lay_block present;
    int err = image_read(&f->img, addr, &present);

    for (unsigned slot = 0; slot < LAY_INODES_PER_BLOCK && !err; slot++) {
        if (memcmp(&image->inodes[slot], &present.inodes.inodes[slot],
                   sizeof(image->inodes[slot])) != 0)
            err = given_up_add(f, first + slot);
    }
    return err;
}

/* Adds a directory, and keeps the names of new inodes that it would have. */
static int given_up_directory(struct fsck *f, uint64_t addr, const struct lay_node *node)
{
    uint64_t dir = lay_get64(node->head.owner);
    const struct lay_dirent *d = NULL;
    int err = given_up_add(f, dir);

    if (lay_get16(node->level) != 0 ||
        lay_check_node(&f->img.geo, node, LAY_MAGIC_DIR, addr, dir, 0, 0, UINT64_MAX, NULL) != 0)
        return err;
    while (!err && (d = lay_dirent_next(node, d))) {
        const struct fsck_name name = fsck_name_of(dir, d);
        err = fsck_append(&f->given_names, &name, sizeof(name));
    }
    return err;
}

bool fsck_is_given_up(const struct fsck *f, uint64_t block)
{
    const struct lay_bitmap *bm = f->given_bitmaps.items;
    uint64_t bit = block % LAY_GROUP_BLOCKS;

    for (size_t i = 0; i < f->given_bitmaps.count; i++) {
        if (lay_get32(bm[i].group) == block / LAY_GROUP_BLOCKS &&
            bm[i].bits[bit / 8] >> bit % 8 & 1)
            return true;
    }
    return false;
}

/*
 * Keeps bitmaps and entries. The blocks that they have in use are avoided,
 * because a later run can apply the log after all.
 */
static int given_up_image(void *arg, uint64_t addr, const union lay_block *data)
{
    struct fsck *f = arg;

    if (!lay_home_ok(&f->img.geo, addr))
        return 0;
    switch (lay_get32(data->head.magic)) {
    case LAY_MAGIC_INODES:
        return given_up_inodes(f, addr, &data->inodes);
    case LAY_MAGIC_DIR:
        return given_up_directory(f, addr, &data->node);
    case LAY_MAGIC_BITMAP:
        return fsck_append(&f->given_bitmaps, &data->bitmap, sizeof(data->bitmap));
    case LAY_MAGIC_ENTRIES:
        return fsck_append(&f->given_entries, &data->entries, sizeof(data->entries));
    case LAY_MAGIC_EXTENTS:
    case LAY_MAGIC_XATTR:
    case LAY_MAGIC_SYMLINK:
        return given_up_add(f, lay_get64(data->head.owner));
    default:
        return 0;
    }
}

int fsck_find_given_up(struct fsck *f)
{
    return replay_rest(&f->img, &f->log, given_up_image, f);
}

/* --- Listing ---------------------------------------------------------------------------------- */

/* Sorts the list and removes what occurs twice, and inode 0. */
static void given_up_sort(struct fsck_list *list)
{
    uint64_t *ino = list->items, last = 0;
    size_t kept = 0;

    fsck_sort(list, sizeof(*ino));
    for (size_t i = 0; i < list->count; i++) {
        if (ino[i] != last)
            ino[kept++] = last = ino[i];
    }
    list->count = kept;
}

static void given_up_say(void *arg, uint64_t ino, const char *path)
{
    if (path)
        fsck_say(arg, "Given up: changes of inode %" PRIu64 " %s", ino, path);
    else
        fsck_say(arg, "Given up: changes of inode %" PRIu64, ino);
}

int fsck_list_given_up(struct fsck *f)
{
    given_up_sort(&f->given_up);
    size_t count = f->given_up.count;
    if (count > GIVEN_LINES)
        f->given_up.count = GIVEN_LINES;
    int err = count ? fsck_paths(f, &f->given_up, &f->given_names, given_up_say, f) : 0;
    if (count > GIVEN_LINES)
        fsck_say(f, "Given up: changes of %zu more inodes", count - GIVEN_LINES);
    return err;
}
