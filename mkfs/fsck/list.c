/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements growing arrays, and lists of extents in such arrays. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mkfs/fsck/fsck.h"
#include "support/array.h"
#include "support/minmax.h"

void *fsck_grow(struct fsck_list *list, size_t size)
{
    if (array_grow(&list->items, list->count, size) != 0)
        return NULL;
    return memset((uint8_t *)list->items + list->count++ * size, 0, size);
}

int fsck_append(struct fsck_list *list, const void *item, size_t size)
{
    void *to = fsck_grow(list, size);

    if (to)
        memcpy(to, item, size);
    return to ? 0 : -ENOMEM;
}

bool fsck_has(const struct fsck_list *list, uint64_t value)
{
    const uint64_t *values = list->items;
    size_t i = 0;

    while (i < list->count && values[i] != value)
        i++;
    return i < list->count;
}

void fsck_sort(struct fsck_list *list, size_t size)
{
    if (list->count > 1)
        qsort(list->items, list->count, size, by_u64);
}

void *fsck_find(const struct fsck_list *list, uint64_t key, size_t size)
{
    return list->count > 0 ? bsearch(&key, list->items, list->count, size, by_u64) : NULL;
}

static int list_by_file_block(const void *a, const void *b)
{
    uint64_t x = lay_get64(((const struct lay_extent *)a)->file_block);
    uint64_t y = lay_get64(((const struct lay_extent *)b)->file_block);

    return x < y ? -1 : x > y;
}

void fsck_sort_extents(struct fsck_list *list)
{
    if (list->count > 1)
        qsort(list->items, list->count, sizeof(struct lay_extent), list_by_file_block);
}

int fsck_add_extent(struct fsck_list *list, uint64_t file_block, uint64_t block, uint64_t len,
                    le16 flags)
{
    const struct lay_extent e = {.file_block = lay_put64(file_block),
                                 .block = lay_put64(block),
                                 .len = lay_put32((uint32_t)len),
                                 .flags = flags};

    return len ? fsck_append(list, &e, sizeof(e)) : 0;
}

int fsck_add_damage(struct fsck_list *list, uint64_t file_block, uint64_t len)
{
    int err = 0;

    for (uint64_t n; len > 0 && !err; file_block += n, len -= n) {
        n = len < LAY_DAMAGED_MAX ? len : LAY_DAMAGED_MAX;
        err = fsck_add_extent(list, file_block, LAY_NONE, n, lay_put16(LAY_EXTENT_DAMAGED));
    }
    return err;
}
