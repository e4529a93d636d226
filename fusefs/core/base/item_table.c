/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements hash tables that grow and shrink by linear hashing. */
#include "fusefs/core/base/item_table.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "support/page.h"

/* A table of a constant size is in the heap, where LeakSanitizer finds pointers to its items. */
static struct ffs_item **table_alloc(size_t min, size_t max)
{
    void *room;

    if (min == max)
        return calloc(max, sizeof(struct ffs_item *));
    room = mmap(NULL, max * sizeof(struct ffs_item *), PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return room == MAP_FAILED ? NULL : room;
}

int ffs_table_init(struct ffs_table *table, size_t min, size_t max, uint64_t factor)
{
    struct ffs_item **room = table_alloc(min, max);

    if (!room)
        return -ENOMEM;
    *table = (struct ffs_table){.buckets = room,
                                .count = min,
                                .min = min,
                                .max = max,
                                .factor = factor,
                                .shift = 64 - (unsigned)__builtin_ctzll(max)};
    return 0;
}

void ffs_table_destroy(struct ffs_table *table)
{
    if (table->buckets && table->min < table->max)
        munmap(table->buckets, table->max * sizeof(struct ffs_item *));
    else
        free(table->buckets);
    table->buckets = NULL;
}

/* Returns the bucket from which b was, or would be, split off. */
static size_t table_origin(size_t b)
{
    return b - ((size_t)1 << (63 - __builtin_clzll(b)));
}

static size_t table_bucket(const struct ffs_table *table, uint64_t number)
{
    uint64_t mask = ~0ull >> __builtin_clzll(table->count); /* 2^(k+1) - 1 */
    size_t b = (number * table->factor >> table->shift) & mask;

    return b < table->count ? b : table_origin(b);
}

static void table_insert(struct ffs_table *table, struct ffs_item *item)
{
    struct ffs_item **p = &table->buckets[table_bucket(table, item->number)];

    item->next = *p;
    *p = item;
}

/* Distributes the chain of a bucket to the buckets that its items now have. */
static void table_redistribute(struct ffs_table *table, size_t b)
{
    struct ffs_item *next, *item = table->buckets[b];

    table->buckets[b] = NULL;
    for (; item; item = next) {
        next = item->next;
        table_insert(table, item);
    }
}

static void table_shrink(struct ffs_table *table)
{
    size_t last = --table->count;

    table_redistribute(table, last);
    /* The page contains no bucket any more; it will be zero when it is used again. */
    if (last * sizeof(table->buckets[0]) % PAGE_BYTES == 0)
        madvise(&table->buckets[last], PAGE_BYTES, MADV_DONTNEED);
}

struct ffs_item *ffs_table_find(const struct ffs_table *table, uint64_t number)
{
    struct ffs_item *item = table->buckets[table_bucket(table, number)];

    while (item && item->number != number)
        item = item->next;
    return item;
}

void ffs_table_add(struct ffs_table *table, struct ffs_item *item, uint64_t number)
{
    item->number = number;
    item->in_table = true;
    if (++table->n > table->count && table->count < table->max)
        table_redistribute(table, table_origin(table->count++));
    table_insert(table, item);
}

void ffs_table_remove(struct ffs_table *table, struct ffs_item *item)
{
    struct ffs_item **p = &table->buckets[table_bucket(table, item->number)];

    if (!item->in_table)
        return;
    while (*p != item)
        p = &(*p)->next;
    *p = item->next;
    item->in_table = false;
    table->n--;
    /*
     * Up to two buckets are removed for one object, so that their number keeps up with that of the
     * objects.
     */
    for (unsigned i = 0; i < 2; i++) {
        if (table->n < table->count / 2 && table->count > table->min)
            table_shrink(table);
    }
}

struct ffs_item *ffs_table_next(const struct ffs_table *table, const struct ffs_item *item)
{
    size_t b = item ? table_bucket(table, item->number) + 1 : 0;

    if (item && item->next)
        return item->next;
    while (b < table->count && !table->buckets[b])
        b++;
    return b < table->count ? table->buckets[b] : NULL;
}
