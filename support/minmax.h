/* SPDX-License-Identifier: BSD-2-Clause */
/* Minimum and maximum of two sizes. */
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

#endif
