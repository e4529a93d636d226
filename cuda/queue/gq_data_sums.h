/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checksums of data that has been read: a group of lanes computes and compares
 * CRC-32C of blocks of 4096 bytes.
 *
 * The checksum is linear. Lanes compute the checksums of their words and
 * multiply them by a power of x, as if zeros followed; the sum of all is the
 * checksum of the block. A whole warp processes the block 32 words at a time.
 * Before a lane adds its next word, 128 bytes are appended to its value. This
 * is a linear map of 32 bits, looked up five bits at a time in tables of 32
 * entries, of which each lane holds one. Shuffles look up these tables without
 * access to memory. Smaller groups share parts of 128 bytes and look bytes up
 * in memory; a single lane processes the whole block in this way.
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

/* Returns the value of lane `from` % 32 in a whole warp. */
#ifdef __CUDACC__
#define GQ_LOOK_UP(name, part, from) __shfl_sync(GQ_LANE_ALL, (name).part, (int)(from))
#define GQ_UNROLL                    _Pragma("unroll")
#else
#define GQ_LOOK_UP(name, part, from) ((name)[(from)&31u].part)
#define GQ_UNROLL
#endif

#define GQ_SUM_PARTS    32u
#define GQ_SUM_PART     (GQ_SUM_BLOCK / GQ_SUM_PARTS)
#define GQ_SUM_BATCH    16u /* words per lane that are loaded together */
#define GQ_NO_BAD_BLOCK UINT64_MAX

struct gq_summer {
    struct gq_group group;
    struct gq_file_sums sums;
};

/*
 * Loads a word that the drive or another lane has stored, bypassing the cache
 * of this SM.
 */
GQ_FN uint32_t gq_load_data(uint64_t at)
{
#ifdef __CUDACC__
    return __ldcv((const unsigned int *)at);
#else
    return *(const uint32_t *)(uintptr_t)at;
#endif
}

/* Like gq_load_data(), at any address. */
GQ_FN uint32_t gq_load_odd_data(uint64_t at)
{
#ifdef __CUDACC__
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
/*
 * Called by one lane. Adds 64 bytes at a multiple of 16 bytes; their loads are
 * in flight together.
 */
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

/* Called by one lane. Adds len bytes, a multiple of 64, to a checksum. */
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
        uint32_t a = gq_load_odd_data(at + i), b = gq_load_odd_data(at + i + 4);
        uint32_t c = gq_load_odd_data(at + i + 8), d = gq_load_odd_data(at + i + 12);

        crc = gq_sum_word(t, gq_sum_word(t, crc, a), b);
        crc = gq_sum_word(t, gq_sum_word(t, crc, c), d);
    }
    return crc;
}

/* Called by one lane. Returns the product with a factor of the table. */
GQ_FN uint32_t gq_sum_times(uint32_t crc, uint32_t factor)
{
    uint32_t product = 0;

    GQ_UNROLL
    for (uint32_t i = 0; i < 32; i++) {
        product ^= factor & 0x80000000u >> i ? crc : 0;
        crc = crc >> 1 ^ (crc & 1u ? GQ_SUM_POLYNOMIAL : 0);
    }
    return product;
}

/* Words of a lane of a whole warp: every 32nd word of the block. */
struct gq_sum_words {
    uint32_t word[GQ_SUM_BATCH];
};

/* Loads the words; the first one is at `at`. The loads are in flight together. */
GQ_FN struct gq_sum_words gq_load_sum_words(uint64_t at)
{
    struct gq_sum_words words;

    if (at % sizeof(uint32_t) == 0) {
        GQ_UNROLL
        for (uint32_t i = 0; i < GQ_SUM_BATCH; i++)
            words.word[i] = gq_load_data(at + i * GQ_SUM_PART);
    } else {
        GQ_UNROLL
        for (uint32_t i = 0; i < GQ_SUM_BATCH; i++)
            words.word[i] = gq_load_odd_data(at + i * GQ_SUM_PART);
    }
    return words;
}

/* The lane's entry of each table. */
struct gq_sum_fives {
    uint32_t entry[GQ_SUM_FIVES];
};

GQ_FN struct gq_sum_fives gq_load_fives(const struct gq_sum_table *t, uint32_t lane)
{
    struct gq_sum_fives fives;

    GQ_UNROLL
    for (uint32_t i = 0; i < GQ_SUM_FIVES; i++)
        fives.entry[i] = t->ahead[i][lane];
    return fives;
}

/* Returns the checksum of the block at this address, computed by a whole warp. */
GQ_FN uint32_t gq_block_sum_by_warp(const struct gq_summer *w, uint64_t at)
{
    GQ_LANE_VAR(struct gq_sum_fives, ahead);
    GQ_LANE_VAR(struct gq_sum_words, words);
    GQ_LANE_VAR(uint32_t, crc);

    GQ_FOR_LANES(lane)
    {
        GQ_AT(ahead) = gq_load_fives(w->sums.table, lane);
    }
    GQ_UNROLL
    for (uint32_t n = 0; n < GQ_SUM_PARTS; n += GQ_SUM_BATCH) {
        GQ_FOR_LANES(lane)
        {
            GQ_AT(words) = gq_load_sum_words(at + n * GQ_SUM_PART + lane * sizeof(uint32_t));
            GQ_AT(words).word[0] ^= n + lane == 0 ? ~0u : 0;
            GQ_UNROLL
            for (uint32_t k = 0; k < GQ_SUM_BATCH; k++) {
                uint32_t sum = GQ_AT(words).word[k];

                GQ_UNROLL
                for (uint32_t i = 0; i < GQ_SUM_FIVES; i++)
                    sum ^= GQ_LOOK_UP(ahead, entry[i], GQ_AT(crc) >> 5 * i);
                GQ_AT(crc) = sum;
            }
        }
    }
    GQ_FOR_LANES(lane)
    {
        GQ_AT(crc) = gq_sum_times(GQ_AT(crc), w->sums.table->of_lane[lane]);
    }
    return ~GQ_XOR32(crc);
}

/* Like gq_block_sum_by_warp(), for any group. */
GQ_FN uint32_t gq_block_sum_in_parts(const struct gq_summer *w, uint64_t at)
{
    const struct gq_sum_table *t = w->sums.table;
    GQ_LANE_VAR(uint32_t, crc);

    GQ_FOR_LANES(lane)
    {
        for (uint32_t first = 0; first < GQ_SUM_PARTS; first += w->group.lanes) {
            uint32_t i = first + lane;

            if (i < GQ_SUM_PARTS)
                GQ_AT(crc) ^= gq_sum_times(
                    gq_sum_bytes(t, i == 0 ? ~0u : 0, at + i * GQ_SUM_PART, GQ_SUM_PART),
                    t->of_part[i]);
        }
    }
    return ~GQ_XOR32(crc);
}

/* Returns the CRC-32C of the block at this address. */
GQ_FN uint32_t gq_block_crc(const struct gq_summer *w, uint64_t at)
{
    if (w->group.lanes == GQ_SUM_PARTS)
        return gq_block_sum_by_warp(w, at);
    if (w->group.lanes == 1)
        return ~gq_sum_bytes(w->sums.table, ~0u, at, GQ_SUM_BLOCK);
    return gq_block_sum_in_parts(w, at);
}

/*
 * Returns the checksum as it is stored in a word of the file, where 0 means
 * none: 0 becomes ~0.
 */
GQ_CALLED_FN uint32_t gq_block_word(struct gq_summer summer, uint64_t at)
{
    uint32_t crc = gq_block_crc(&summer, at);

    return crc ? crc : ~0u;
}

/*
 * Compares n blocks from number `block` on, at most one per lane, whose data is
 * at `at`. Bit i of the result means that block i differs. The words of the
 * checksums are loaded here, after the data has arrived; their loads are in
 * flight while the lanes compute.
 */
GQ_FN uint32_t gq_differing(const struct gq_summer *w, uint64_t block, uint32_t n, uint64_t at)
{
    GQ_LANE_VAR(uint32_t, want);
    GQ_LANE_VAR(uint32_t, have);
    GQ_LANE_VAR(uint32_t, differs);

    GQ_FOR_LANES(lane)
    {
        if (lane < n)
            GQ_AT(want) = gq_load_flag(&w->sums.words[block + lane]);
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t crc = gq_block_crc(w, at + i * GQ_SUM_BLOCK);

        GQ_FOR_LANES(lane)
        {
            if (lane == i)
                GQ_AT(have) = crc ? crc : ~0u; /* as stored in words */
        }
    }
    GQ_FOR_LANES(lane)
    {
        GQ_AT(differs) = GQ_AT(want) && GQ_AT(want) != GQ_AT(have);
    }
    return GQ_BALLOT(differs);
}

/*
 * Compares the whole blocks of [offset, offset + len) of the file, whose data
 * is at `at`. Returns the offset of the first one that differs, or
 * GQ_NO_BAD_BLOCK.
 */
GQ_CALLED_FN uint64_t gq_find_bad_block(struct gq_summer summer, uint64_t offset, uint64_t len,
                                        uint64_t at)
{
    const struct gq_summer *w = &summer;
    uint64_t block = (offset + GQ_SUM_BLOCK - 1) / GQ_SUM_BLOCK;
    uint64_t end = (offset + len) / GQ_SUM_BLOCK;

    for (; block < end; block += w->group.lanes) {
        uint32_t n = end - block < w->group.lanes ? (uint32_t)(end - block) : w->group.lanes;
        uint32_t differing = gq_differing(w, block, n, at + (block * GQ_SUM_BLOCK - offset));

        if (differing)
            return (block + gq_take_one(&differing)) * GQ_SUM_BLOCK;
    }
    return GQ_NO_BAD_BLOCK;
}

/*
 * Like gq_find_bad_block(), for every block with a byte of [offset, offset +
 * len). `at` is the data of the first block.
 */
GQ_FN uint64_t gq_find_bad_around(struct gq_summer summer, uint64_t offset, uint64_t len,
                                  uint64_t at)
{
    uint64_t first = offset & ~(uint64_t)(GQ_SUM_BLOCK - 1);
    uint64_t end = (offset + len + GQ_SUM_BLOCK - 1) & ~(uint64_t)(GQ_SUM_BLOCK - 1);

    return gq_find_bad_block(summer, first, end - first, at);
}

#endif
