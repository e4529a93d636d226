/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Grows arrays by doubling, and searches sorted ones. The address of the pointer to the elements,
 * which have any type, stands for an array. Pointers to its elements become invalid when it grows.
 */
#ifndef SUPPORT_ARRAY_H
#define SUPPORT_ARRAY_H

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

/* Gives access to a pointer to elements of any type. */
typedef void *array_at __attribute__((__may_alias__));

/* Resizes the memory of the array. Returns 0 or -ENOMEM. */
static inline int array_resize(void **array, size_t bytes)
{
    array_at *at = (array_at *)array;
    void *resized = realloc(*at, bytes);

    if (!resized)
        return -ENOMEM;
    *at = resized;
    return 0;
}

/*
 * Makes room for one more element of `size` bytes in an array of `count` elements, all of which
 * this function has made room for. The memory may shrink if the array has had more elements
 * before. Returns 0 or -ENOMEM.
 */
static inline int array_grow(void **array, size_t count, size_t size)
{
    /* The array is full only if its length is 0 or a power of two. */
    if (count & (count - 1))
        return 0;
    return array_resize(array, (count ? 2 * count : 1) * size);
}

/*
 * Makes room for `need` elements of `size` bytes in all in an array that has room for *room.
 * Returns 0 or -ENOMEM.
 */
static inline int array_reserve(void **array, size_t *room, size_t need, size_t size)
{
    if (need <= *room)
        return 0;
    size_t more = need > 8 ? 2 * need : 16;
    int err = array_resize(array, more * size);
    if (!err)
        *room = more;
    return err;
}

/*
 * Returns the index of the first of n sorted items of `size` bytes, which begin with a uint64_t,
 * that is not below `key`, or n.
 */
static inline size_t array_lower(const void *items, size_t n, size_t size, uint64_t key)
{
    size_t lo = 0, hi = n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (*(const uint64_t *)(const void *)((const char *)items + mid * size) < key)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

#endif
