/* SPDX-License-Identifier: BSD-2-Clause */
/* The table by which groups of lanes compute CRC-32C. */
#include "client/lib/sum_table.h"

#include <string.h>

#define POLYNOMIAL 0x82f63b78u /* CRC-32C, reflected */
#define PART_BITS  (8u * 128u) /* a lane's part of a block: gq_data_sums.h */

/* The product of a matrix, by column, and a vector over GF(2). */
static uint32_t times(const uint32_t *matrix, uint32_t v)
{
    uint32_t product = 0;

    for (unsigned i = 0; i < 32; i++)
        product ^= v >> i & 1u ? matrix[i] : 0;
    return product;
}

static void square(uint32_t *matrix)
{
    uint32_t from[32];

    memcpy(from, matrix, sizeof(from));
    for (unsigned i = 0; i < 32; i++)
        matrix[i] = times(from, from[i]);
}

static void fill_bytes(struct gq_sum_table *t)
{
    for (unsigned b = 0; b < 256; b++) {
        uint32_t crc = b;

        for (unsigned i = 0; i < 4; i++) {
            for (unsigned bit = 0; bit < 8; bit++)
                crc = crc >> 1 ^ (crc & 1u ? POLYNOMIAL : 0);
            t->byte[i][b] = crc;
        }
    }
}

static void fill_append(struct gq_sum_table *t)
{
    uint32_t append[32]; /* a zero bit, then two of them, then four... */

    for (unsigned i = 0; i < 32; i++)
        append[i] = i ? 1u << (i - 1) : POLYNOMIAL;
    for (unsigned bits = 1; bits < PART_BITS; bits *= 2)
        square(append);
    for (unsigned step = 0; step < GQ_SUM_STEPS; step++) {
        memcpy(t->append[step], append, sizeof(append));
        square(append);
    }
}

void sum_table_fill(struct gq_sum_table *t)
{
    fill_bytes(t);
    fill_append(t);
}
