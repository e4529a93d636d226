/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Finds objects in memory by a number. Only the storage half uses it. Each object contains its
 * item. The caller owns the objects and locks the table.
 *
 * The table grows and shrinks by one bucket at a time, so that no call takes long. The hash
 * function is multiply-shift. With a random factor it is 2-universal, which bounds the expected
 * length of a chain for every set of numbers.
 */
#ifndef FUSEFS_CORE_BASE_ITEM_TABLE_H
#define FUSEFS_CORE_BASE_ITEM_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ffs_item {
    struct ffs_item *next; /* in its bucket */
    uint64_t number;
    bool in_table;
};

struct ffs_table {
    struct ffs_item **buckets; /* room for the maximum; pages without a bucket use no memory */
    size_t count, min, max;    /* number of buckets */
    size_t n;                  /* number of objects */
    uint64_t factor;
    unsigned shift;
};

/*
 * Initialises an empty table. The numbers of buckets are powers of two, and the
 * factor is odd. Returns 0 or -ENOMEM.
 */
int ffs_table_init(struct ffs_table *table, size_t min, size_t max, uint64_t factor);
/* Frees the buckets. Does nothing if `buckets` is NULL. */
void ffs_table_destroy(struct ffs_table *table);
/* Returns the item with this number, or NULL. */
struct ffs_item *ffs_table_find(const struct ffs_table *table, uint64_t number);
/* Adds an item. No other one in the table has this number. */
void ffs_table_add(struct ffs_table *table, struct ffs_item *item, uint64_t number);
/* Removes an item. Does nothing unless it is in the table. */
void ffs_table_remove(struct ffs_table *table, struct ffs_item *item);
/*
 * Returns the item after `item`, or the first one if `item` is NULL. Returns NULL at the end. The
 * order lasts until an item is added or removed. In a table of a constant size a removal keeps the
 * order.
 */
struct ffs_item *ffs_table_next(const struct ffs_table *table, const struct ffs_item *item);

#endif
