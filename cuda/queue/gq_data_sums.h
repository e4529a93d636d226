/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checksums of data that has been read, computed and compared by the group that
 * has read it: CRC-32C of blocks of 4096 bytes.
 *
 * The checksum is linear. A block has 32 parts of 128 bytes, which the lanes
 * share. The checksum of a part is multiplied by a power of x, as if the parts
 * behind it were zeros: five steps at most, each a 32 by 32 matrix over GF(2).
 * The sum of all is that of the block. A single lane goes through the block
 * without matrices.
 *
 * Functions with a struct gq_summer are called by all lanes of its group
 * together.
 */
#ifndef CUDA_QUEUE_GQ_DATA_SUMS_H
#define CUDA_QUEUE_GQ_DATA_SUMS_H

#include "cuda/queue/gq_fence.h"
#include "cuda/queue/gq_lanes.h"
#include "cuda/queue/gq_reads.h"

#ifndef __CUDACC__
#include <string.h>
#endif

/*
 * Called instead of inlined, with values only: a file without checksums then costs the kernels of
 * applications hardly a register.
 */
#ifdef __CUDACC__
#define GQ_CALLED_FN static __device__ __noinline__
#else
#define GQ_CALLED_FN static inline
#endif

#define GQ_SUM_PARTS    32u
#define GQ_SUM_PART     (GQ_SUM_BLOCK / GQ_SUM_PARTS)
#define GQ_NO_BAD_BLOCK UINT64_MAX

struct gq_summer {
    struct gq_group group;
    struct gq_file_sums sums;
};

/* Words of data, which the drive or another lane has stored: not from a cache of its own. */
GQ_FN uint32_t gq_load_data(uint64_t at)
{
#ifdef __CUDACC__
    if (at % sizeof(uint32_t) == 0)
        return __ldcv((const unsigned int *)at);
    return __ldcv((const unsigned char *)at) | __ldcv((const unsigned char *)at + 1) << 8 |
           __ldcv((const unsigned char *)at + 2) << 16 |
           (uint32_t)__ldcv((const unsigned char *)at + 3) << 24;
#else
    uint32_t word;

    memcpy(&word, (const void *)(uintptr_t)at, sizeof(word));
    return word;
#endif
}

GQ_FN uint32_t gq_sum_word(const struct gq_sum_table *t, uint32_t crc, uint32_t word)
{
    crc ^= word;
    return t->byte[3][crc & 255u] ^ t->byte[2][crc >> 8 & 255u] ^ t->byte[1][crc >> 16 & 255u] ^
           t->byte[0][crc >> 24];
}

#ifdef __CUDACC__
/* By one lane: 64 bytes at a multiple of 16 bytes. Their loads are in flight together. */
GQ_FN uint32_t gq_sum_64(const struct gq_sum_table *t, uint32_t crc, uint64_t at)
{
    uint4 data[4];

#pragma unroll
    for (int i = 0; i < 4; i++)
        data[i] = __ldcv((const uint4 *)at + i);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        crc = gq_sum_word(t, gq_sum_word(t, crc, data[i].x), data[i].y);
        crc = gq_sum_word(t, gq_sum_word(t, crc, data[i].z), data[i].w);
    }
    return crc;
}
#endif

/* By one lane: len bytes, a multiple of 64, added to a checksum. */
GQ_FN uint32_t gq_sum_bytes(const struct gq_sum_table *t, uint32_t crc, uint64_t at, uint32_t len)
{
#ifdef __CUDACC__
    if (at % sizeof(uint4) == 0) {
        for (uint32_t i = 0; i < len; i += 64)
            crc = gq_sum_64(t, crc, at + i);
        return crc;
    }
#endif
    for (uint32_t i = 0; i < len; i += 16) {
        uint32_t a = gq_load_data(at + i), b = gq_load_data(at + i + 4);
        uint32_t c = gq_load_data(at + i + 8), d = gq_load_data(at + i + 12);

        crc = gq_sum_word(t, gq_sum_word(t, crc, a), b);
        crc = gq_sum_word(t, gq_sum_word(t, crc, c), d);
    }
    return crc;
}

/* By one lane: the checksum with `parts` parts of zeros behind it. */
GQ_FN uint32_t gq_append_parts(const struct gq_sum_table *t, uint32_t crc, uint32_t parts)
{
    for (uint32_t step = 0; step < GQ_SUM_STEPS; step++) {
        uint32_t product = 0;

        for (uint32_t i = 0; i < 32; i++)
            product ^= crc >> i & 1u ? t->append[step][i] : 0;
        crc = parts >> step & 1u ? product : crc;
    }
    return crc;
}

/* The checksum of the block at this address, as entries have it. */
GQ_FN uint32_t gq_block_sum(const struct gq_summer *w, uint64_t at)
{
    GQ_LANE_VAR(uint32_t, part);
    uint32_t lanes = w->group.lanes, crc = 0;

    GQ_FOR_LANES(lane)
    {
        for (uint32_t first = 0; first < GQ_SUM_PARTS && lanes > 1; first += lanes) {
            uint32_t i = first + lane;

            if (i < GQ_SUM_PARTS)
                GQ_AT(part) ^= gq_append_parts(w->sums.table,
                                               gq_sum_bytes(w->sums.table, i == 0 ? ~0u : 0,
                                                            at + i * GQ_SUM_PART, GQ_SUM_PART),
                                               GQ_SUM_PARTS - 1 - i);
        }
        if (lanes == 1)
            GQ_AT(part) = gq_sum_bytes(w->sums.table, ~0u, at, GQ_SUM_BLOCK);
    }
    for (uint32_t i = 0; i < lanes; i++)
        crc ^= GQ_FROM32(part, i);
    return ~crc ? ~crc : ~0u;
}

/*
 * Compares the whole blocks of [offset, offset + len) of the file, whose data is at `at`. Returns
 * the offset of the first that differs, or GQ_NO_BAD_BLOCK. The checksums are loaded here: the data
 * has arrived before.
 */
GQ_CALLED_FN uint64_t gq_find_bad_block(struct gq_summer summer, uint64_t offset, uint64_t len,
                                        uint64_t at)
{
    const struct gq_summer *w = &summer;
    uint64_t first = (offset + GQ_SUM_BLOCK - 1) / GQ_SUM_BLOCK;
    uint64_t end = (offset + len) / GQ_SUM_BLOCK;

    for (; first < end; first += w->group.lanes) {
        GQ_LANE_VAR(uint32_t, sum);
        uint32_t mask;

        GQ_FOR_LANES(lane)
        {
            if (first + lane < end)
                GQ_AT(sum) = gq_load_flag(&w->sums.words[first + lane]);
        }
        mask = GQ_BALLOT(sum);
        while (mask) {
            uint32_t i = gq_take_one(&mask);
            uint64_t block = (first + i) * GQ_SUM_BLOCK;

            if (gq_block_sum(w, at + (block - offset)) != GQ_FROM32(sum, i))
                return block;
        }
    }
    return GQ_NO_BAD_BLOCK;
}

/* The same of all blocks that [offset, offset + len) touches; `at`: of the first one's start. */
GQ_FN uint64_t gq_find_bad_around(struct gq_summer summer, uint64_t offset, uint64_t len,
                                  uint64_t at)
{
    uint64_t first = offset & ~(uint64_t)(GQ_SUM_BLOCK - 1);
    uint64_t end = (offset + len + GQ_SUM_BLOCK - 1) & ~(uint64_t)(GQ_SUM_BLOCK - 1);

    return gq_find_bad_block(summer, first, end - first, at);
}

#endif
