/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds the superblock of an image, and reads blocks as they are after recovery. */
#include "mkfs/image.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int image_read_raw(struct image *img, uint64_t block, union lay_block *out)
{
    assert(block < img->device_blocks);
    return bd_read(img->dev, block << LAY_BLOCK_SHIFT, out, LAY_BLOCK_SIZE);
}

static int compare_patch(const void *key, const void *element)
{
    uint64_t block = *(const uint64_t *)key;
    const struct image_patch *p = element;

    return block < p->block ? -1 : block > p->block;
}

struct image_patch *image_find_patch(const struct image *img, uint64_t block)
{
    if (img->patch_count == 0)
        return NULL;
    return bsearch(&block, img->patches, img->patch_count, sizeof(*img->patches), compare_patch);
}

bool image_is_newer(const struct image *img, uint64_t block)
{
    union lay_block b;

    return image_find_patch(img, block) ||
           (img->changed && img->changed(img->changed_arg, block, &b));
}

int image_read(struct image *img, uint64_t block, union lay_block *out)
{
    if (img->changed && img->changed(img->changed_arg, block, out))
        return 0;
    const struct image_patch *p = image_find_patch(img, block);
    int err = image_read_raw(img, p ? p->log_block : block, out);
    img->unreadable = err == -EIO && img->tolerant;
    if (img->unreadable) {
        memset(out, 0, sizeof(*out));
        return 0;
    }
    return err;
}

/* State of the search for the newest superblock (FORMAT.md 4.1). */
struct search {
    struct image *img;
    struct image_super *super;
    struct lay_super primary; /* block 0 as it was read */
    struct lay_super copy;
    bool reclaim; /* block 0 may be anything */
    bool any;
};

/* Takes the superblock at addr if it is valid and newer than the best one so far. */
static int image_consider(struct search *s, uint64_t addr)
{
    struct image *img = s->img;
    struct lay_geometry geo;

    if (addr == 0 || addr >= img->device_blocks)
        return 0;
    int err = image_read_raw(img, addr, (union lay_block *)&s->copy);
    if (err || lay_check_super(&s->copy, addr, img->device_blocks, &geo, NULL, NULL) != 0)
        return err == -EIO ? 0 : err;
    if (s->any && (!lay_same_shape(&geo, &img->geo) ||
                   lay_get64(s->copy.head.tid) <= lay_get64(s->super->sb.head.tid)))
        return 0;
    s->super->sb = s->copy;
    s->super->addr = addr;
    img->geo = geo;
    s->any = true;
    return 0;
}

/* Searches groups: the first copy of a smaller file system starts one. */
static int image_search_groups(struct search *s)
{
    int err = 0;

    for (uint64_t at = LAY_GROUP_BLOCKS; at < s->img->device_blocks && !s->any && !err;
         at += LAY_GROUP_BLOCKS)
        err = image_consider(s, at);
    return err || !s->any ? err : image_consider(s, s->img->geo.copies[1]);
}

static int image_consider_copies(struct search *s)
{
    uint64_t places[2 * LAY_SUPER_COPIES];
    size_t n = s->super->error ? 2 * LAY_SUPER_COPIES : LAY_SUPER_COPIES;
    int err = 0;

    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++)
        places[i] = lay_get64(s->primary.copies[i]);
    lay_super_places(s->img->device_blocks, places + LAY_SUPER_COPIES);
    for (size_t i = 0; i < n && !err; i++)
        err = image_consider(s, places[i]);
    return err || s->any ? err : image_search_groups(s);
}

static int find_super(struct search *s)
{
    struct image *img = s->img;
    struct image_super *super = s->super;
    int err = image_read_raw(img, 0, (union lay_block *)&s->primary);

    if (err && err != -EIO)
        return err;
    /* A truncated image keeps a valid superblock. */
    super->error =
        err ? err : lay_check_super(&s->primary, 0, 0, &img->geo, &super->features, &super->why);
    if (err)
        super->why = "cannot be read";
    if (!super->error && img->geo.blocks > img->device_blocks) {
        super->why = "the device is smaller than the file system";
        return super->error = -EUCLEAN;
    }
    bool foreign = super->error == -EINVAL && !lay_super_magic(&s->primary) && !s->reclaim;
    if (super->error == -ENOTSUP || foreign)
        return super->error;
    s->any = !super->error;
    super->sb = s->primary;
    super->addr = 0;
    err = image_consider_copies(s);
    return err || s->any ? err : super->error;
}

int image_start(struct image *img, struct bd_dev *dev, bool reclaim, struct image_super *super)
{
    memset(img, 0, sizeof(*img));
    memset(super, 0, sizeof(*super));
    img->dev = dev;
    img->device_blocks = dev->info.bytes >> LAY_BLOCK_SHIFT;
    if (img->device_blocks == 0)
        return super->error = -EINVAL;
    struct search *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->img = img;
    s->super = super;
    s->reclaim = reclaim;
    int err = find_super(s);
    free(s);
    return err;
}

void image_end(struct image *img)
{
    free(img->patches);
    img->patches = NULL;
    img->patch_count = 0;
}
