/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Table for checksums of data (gq_data_sums.h), made by the host, in memory of
 * the executor. Plain data; C11 and CUDA.
 */
#ifndef CUDA_QUEUE_GQ_SUM_TABLE_H
#define CUDA_QUEUE_GQ_SUM_TABLE_H

#include <stdint.h>

#define GQ_SUM_STEPS 5u

struct gq_sum_table {
    uint32_t byte[4][256];             /* [i][b]: of byte b with i zero bytes behind it */
    uint32_t append[GQ_SUM_STEPS][32]; /* matrices, by column: [i] appends 128 << i zero bytes */
};

#endif
