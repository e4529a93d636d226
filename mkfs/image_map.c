/* SPDX-License-Identifier: BSD-2-Clause */
/* Keeps the chunk map of an image (FORMAT.md 5.6) and translates addresses with it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mkfs/image.h"

int image_grow(void **array, size_t count, size_t size)
{
    /* The array can only be full when the count is zero or a power of two. */
    if (count & (count - 1))
        return 0;
    void *bigger = realloc(*array, (count ? count * 2 : 1) * size);
    if (!bigger)
        return -ENOMEM;
    *array = bigger;
    return 0;
}

/* Returns the index of the first mapped segment that is not below this one. */
static size_t image_map_lower(const struct image *img, uint64_t segment)
{
    size_t lo = 0, hi = img->segment_count;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (img->segments[mid].segment < segment)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

size_t image_segment_index(const struct image *img, uint64_t segment)
{
    return image_map_lower(img, segment);
}

struct image_segment image_find_segment(const struct image *img, uint64_t segment)
{
    const struct image_segment none = {segment, LAY_NONE, LAY_NONE};
    size_t i = image_map_lower(img, segment);

    return i < img->segment_count && img->segments[i].segment == segment ? img->segments[i] : none;
}

uint64_t image_segment_block(const struct image *img, uint64_t segment)
{
    return image_find_segment(img, segment).block;
}

int image_set_segment(struct image *img, uint64_t segment, uint64_t block, uint64_t copy)
{
    size_t i = image_map_lower(img, segment);
    bool found = i < img->segment_count && img->segments[i].segment == segment;
    size_t behind = img->segment_count - i - found;
    int err = 0;

    if (block == LAY_NONE && found) {
        memmove(&img->segments[i], &img->segments[i + 1], behind * sizeof(*img->segments));
        img->segment_count--;
    } else if (found) {
        img->segments[i] = (struct image_segment){segment, block, copy};
    } else if (block != LAY_NONE) {
        err = image_grow((void **)&img->segments, img->segment_count, sizeof(*img->segments));
        if (err)
            return err;
        memmove(&img->segments[i + 1], &img->segments[i], behind * sizeof(*img->segments));
        img->segments[i] = (struct image_segment){segment, block, copy};
        img->segment_count++;
    }
    return err;
}

unsigned image_places(const struct image *img, uint64_t addr, uint64_t places[2])
{
    struct image_segment s;
    struct lay_slot slot;

    if (lay_addr_kind(addr) != LAY_KIND_CHUNK)
        return lay_places(&img->geo, addr, places);
    s = image_find_segment(img, lay_addr_segment(addr));
    lay_slot_set(&slot, s.block, s.copy);
    return lay_slot_places(&slot, addr, places);
}

bool image_map_is_bad(const struct image *img, uint64_t segment)
{
    for (size_t i = 0; i < img->bad_map_count; i++) {
        if (img->bad_maps[i].index == segment / LAY_MAP_SLOTS)
            return true;
    }
    return false;
}

void image_drop_map(struct image *img)
{
    free(img->segments);
    free(img->bad_maps);
    img->segments = NULL;
    img->bad_maps = NULL;
    img->segment_count = img->bad_map_count = 0;
}
