/* SPDX-License-Identifier: BSD-2-Clause */
/* Growing arrays, and lists of extents in them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mkfs/fsck/fsck.h"

void *fsck_grow(struct fsck_list *list, size_t size)
{
    if (list->count == list->room) {
        size_t room = list->room ? list->room * 2 : 64;
        void *items = realloc(list->items, room * size);
        if (!items)
            return NULL;
        list->items = items;
        list->room = room;
    }
    return memset((uint8_t *)list->items + list->count++ * size, 0, size);
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
    struct lay_extent *e = len ? fsck_grow(list, sizeof(*e)) : NULL;

    if (!e)
        return len ? -ENOMEM : 0;
    e->file_block = lay_put64(file_block);
    e->block = lay_put64(block);
    e->len = lay_put32((uint32_t)len);
    e->flags = flags;
    return 0;
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
