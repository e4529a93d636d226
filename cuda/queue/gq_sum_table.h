/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Lays out the table for checksums of data (gq_data_sums.h), as plain data in
 * C11 and CUDA. The host fills in the table in the executor's memory.
 */
#ifndef CUDA_QUEUE_GQ_SUM_TABLE_H
#define CUDA_QUEUE_GQ_SUM_TABLE_H

#include <stdint.h>

#define GQ_SUM_POLYNOMIAL 0x82f63b78u /* CRC-32C, reflected */

/* Number of groups of five bits by which a checksum of 32 bits is looked up. */
#define GQ_SUM_FIVES 7u

/*
 * A factor is a power of x, reflected like a checksum; multiplying by it
 * appends zeros.
 */
struct gq_sum_table {
    uint32_t byte[4][256]; /* [i][b]: checksum of byte b followed by i zero bytes */
    /* [i][b]: checksum of bits b << 5 * i followed by 128 zero bytes */
    uint32_t ahead[GQ_SUM_FIVES][32];
    uint32_t of_lane[32]; /* factor of a lane: 4 * (32 - lane) zero bytes */
    uint32_t of_part[32]; /* factor of a part: 128 * (31 - part) zero bytes */
};

#endif
