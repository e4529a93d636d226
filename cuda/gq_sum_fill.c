/* SPDX-License-Identifier: BSD-2-Clause */
/* Fills the table with which groups of lanes compute CRC-32C. */
#include "cuda/gq_sum_fill.h"

#define ONE        0x80000000u /* the polynomial 1, reflected */
#define LANE_BYTES 4u          /* neighbouring lanes have neighbouring words (gq_data_sums.h) */
#define PART_BYTES 128u        /* neighbouring lanes may instead have neighbouring parts */

/* Multiplies the polynomial by x for each bit of `bytes` appended zero bytes. */
static uint32_t sum_fill_append(uint32_t crc, unsigned bytes)
{
    for (unsigned bit = 0; bit < 8 * bytes; bit++)
        crc = crc >> 1 ^ (crc & 1u ? GQ_SUM_POLYNOMIAL : 0);
    return crc;
}

void gq_sum_fill(struct gq_sum_table *t)
{
    for (unsigned i = 0; i < 4; i++) {
        for (uint32_t b = 0; b < 256; b++)
            t->byte[i][b] = sum_fill_append(b, 1 + i);
    }
    /* The last group of five bits has only two. */
    for (unsigned i = 0; i < GQ_SUM_FIVES; i++) {
        for (uint32_t b = 0; b < 32; b++)
            t->ahead[i][b] = sum_fill_append(b << 5 * i, PART_BYTES);
    }
    for (unsigned i = 0; i < 32; i++) {
        t->of_lane[i] = sum_fill_append(ONE, LANE_BYTES * (32 - i));
        t->of_part[i] = sum_fill_append(ONE, PART_BYTES * (31 - i));
    }
}
