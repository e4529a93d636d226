/* SPDX-License-Identifier: BSD-2-Clause */
/* Growing arrays. */
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
