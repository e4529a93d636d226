/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads the labels of an image, and blocks as they are after recovery. */
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
    uint64_t addr = *(const uint64_t *)key;
    const struct image_patch *p = element;

    return addr < p->addr ? -1 : addr > p->addr;
}

struct image_patch *image_find_patch(const struct image *img, uint64_t addr)
{
    if (img->patch_count == 0)
        return NULL;
    return bsearch(&addr, img->patches, img->patch_count, sizeof(*img->patches), compare_patch);
}

bool image_is_newer(const struct image *img, uint64_t addr)
{
    union lay_block b;

    return image_find_patch(img, addr) ||
           (img->changed && img->changed(img->changed_arg, addr, &b));
}

int image_read_patch(struct image *img, const struct image_patch *p, union lay_block *out)
{
    if (!p->corrected)
        return image_read_raw(img, img->log_at + p->pos, out);
    *out = *p->corrected;
    return 0;
}

/* Reads the first place of a block. Without a place it is zero, which no check accepts. */
static int image_read_home(struct image *img, uint64_t addr, union lay_block *out)
{
    uint64_t places[2];

    if (lay_places(&img->geo, addr, places) > 0)
        return image_read_raw(img, places[0], out);
    memset(out, 0, sizeof(*out));
    return 0;
}

int image_read(struct image *img, uint64_t addr, union lay_block *out)
{
    if (img->changed && img->changed(img->changed_arg, addr, out))
        return 0;
    const struct image_patch *p = image_find_patch(img, addr);
    int err = p ? image_read_patch(img, p, out) : image_read_home(img, addr, out);
    img->unreadable = err == -EIO && img->tolerant;
    if (img->unreadable) {
        memset(out, 0, sizeof(*out));
        return 0;
    }
    return err;
}

static int image_io_read(void *arg, uint64_t block, void *data)
{
    struct image *img = arg;

    return bd_read(img->dev, block << LAY_BLOCK_SHIFT, data, LAY_BLOCK_SIZE);
}

static int image_io_write(void *arg, uint64_t block, const void *data)
{
    struct image *img = arg;

    return bd_write(img->dev, block << LAY_BLOCK_SHIFT, data, LAY_BLOCK_SIZE, 0);
}

static int image_io_flush(void *arg)
{
    struct image *img = arg;

    return bd_flush(img->dev);
}

struct lay_io image_io(struct image *img)
{
    return (struct lay_io){image_io_read, image_io_write, image_io_flush, img};
}

int image_start(struct image *img, struct bd_dev *dev, bool reclaim, struct lay_labels *labels)
{
    memset(img, 0, sizeof(*img));
    img->dev = dev;
    img->device_blocks = dev->info.bytes >> LAY_BLOCK_SHIFT;
    struct lay_io io = image_io(img);
    if (img->device_blocks == 0)
        return -EINVAL;
    int err = lay_labels_read(&io, img->device_blocks, reclaim, labels);
    if (!err)
        lay_label_geometry(lay_labels_newest(labels), &img->geo);
    img->log_at = img->geo.log_start;
    return err;
}

void image_drop_patches(struct image *img)
{
    for (size_t i = 0; i < img->patch_count; i++)
        free(img->patches[i].corrected);
    free(img->patches);
    img->patches = NULL;
    img->patch_count = 0;
}

void image_end(struct image *img)
{
    image_drop_patches(img);
}
