/* SPDX-License-Identifier: BSD-2-Clause */
/* Lists the inodes whose changes a repair gives up with a part of the log. */
#include <inttypes.h>
#include <stdlib.h>

#include "mkfs/fsck/fsck.h"

#define GIVEN_LINES 100u

static int given_by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* Sorts the list and removes what occurs twice, and inode 0. */
static void given_sort(struct fsck_list *list)
{
    uint64_t *ino = list->items, last = 0;
    size_t kept = 0;

    if (list->count > 1)
        qsort(ino, list->count, sizeof(*ino), given_by_number);
    for (size_t i = 0; i < list->count; i++) {
        if (ino[i] != last)
            ino[kept++] = last = ino[i];
    }
    list->count = kept;
}

static void given_say(void *arg, uint64_t ino, const char *path)
{
    if (path)
        fsck_say(arg, "Given up: changes of inode %" PRIu64 " %s", ino, path);
    else
        fsck_say(arg, "Given up: changes of inode %" PRIu64, ino);
}

int fsck_list_given_up(struct fsck *f)
{
    given_sort(&f->given_up);
    size_t count = f->given_up.count;
    if (count > GIVEN_LINES)
        f->given_up.count = GIVEN_LINES;
    int err = count ? fsck_paths(f, &f->given_up, &f->given_names, given_say, f) : 0;
    if (count > GIVEN_LINES)
        fsck_say(f, "Given up: changes of %zu more inodes", count - GIVEN_LINES);
    return err;
}
