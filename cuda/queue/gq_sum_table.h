/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Table for checksums of data (gq_data_sums.h), made by the host, in memory of
 * the executor. Plain data; C11 and CUDA.
 */
#ifndef CUDA_QUEUE_GQ_SUM_TABLE_H
#define CUDA_QUEUE_GQ_SUM_TABLE_H

#include <stdint.h>

#define GQ_SUM_POLYNOMIAL 0x82f63b78u /* CRC-32C, reflected */

/* A checksum of 32 bits is looked up by so many groups of five bits. */
#define GQ_SUM_FIVES 7u

/* A factor is a power of x, reflected as a checksum is: its product appends zeros. */
struct gq_sum_table {
    uint32_t byte[4][256];            /* [i][b]: of byte b with i zero bytes behind it */
    uint32_t ahead[GQ_SUM_FIVES][32]; /* [i][b]: of bits b << 5 * i with 128 zero bytes behind */
    uint32_t of_lane[32];             /* factor of a lane: 4 * (32 - lane) zero bytes */
    uint32_t of_part[32];             /* factor of a part: 128 * (31 - part) zero bytes */
};

#endif
