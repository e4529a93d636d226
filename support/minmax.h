/* SPDX-License-Identifier: BSD-2-Clause */
/* Compares 64-bit numbers. */
#ifndef SUPPORT_MINMAX_H
#define SUPPORT_MINMAX_H

#include <stdint.h>

static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Compares two items by the uint64_t that they begin with, for qsort() and bsearch(). */
static inline int by_u64(const void *a, const void *b)
{
    const uint64_t *x = (const uint64_t *)a, *y = (const uint64_t *)b;

    return *x < *y ? -1 : *x > *y;
}

#endif
