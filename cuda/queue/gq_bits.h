/* SPDX-License-Identifier: BSD-2-Clause */
/* Declares functions on masks with one bit per lane. */
#ifndef CUDA_QUEUE_GQ_BITS_H
#define CUDA_QUEUE_GQ_BITS_H

#include <stdint.h>

#include "cuda/queue/gq_fence.h"

/* Returns the number of consecutive lanes from lane 0 on whose bit is set. */
GQ_FN uint32_t gq_prefix_ones(uint32_t mask)
{
#ifdef __CUDACC__
    return mask == 0xffffffffu ? 32u : (uint32_t)__ffs((int)~mask) - 1u;
#else
    return mask == 0xffffffffu ? 32u : (uint32_t)__builtin_ctz(~mask);
#endif
}

/* Returns the mask of all bits that occur in numbers from 0 to n; n is not 0. */
GQ_FN uint32_t gq_bits_of(uint32_t n)
{
#ifdef __CUDACC__
    return 0xffffffffu >> __clz((int)n);
#else
    return 0xffffffffu >> __builtin_clz(n);
#endif
}

/* Returns the number of lanes whose bit is set. */
GQ_FN uint32_t gq_count_ones(uint32_t mask)
{
#ifdef __CUDACC__
    return (uint32_t)__popc(mask);
#else
    return (uint32_t)__builtin_popcount(mask);
#endif
}

/* Returns the rank of this lane among the lanes whose bit is set. */
GQ_FN uint32_t gq_ones_before(uint32_t mask, uint32_t lane)
{
    return gq_count_ones(mask & ((1u << lane) - 1u));
}

/* Clears the lowest bit of the mask, which must not be 0, and returns its lane. */
GQ_FN uint32_t gq_take_one(uint32_t *mask)
{
    uint32_t lane = gq_prefix_ones(~*mask);

    *mask &= *mask - 1u;
    return lane;
}

#endif
