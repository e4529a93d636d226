/* SPDX-License-Identifier: BSD-2-Clause */
/* Checksums of blocks by groups of 1, of 7 and of 32 lanes, played by a host thread. */
#ifndef TESTS_CUDA_QUEUE_GQ_DATA_SUMS_RIG_H
#define TESTS_CUDA_QUEUE_GQ_DATA_SUMS_RIG_H

#include "cuda/queue/gq_reads.h"

/* As gq_block_crc() and gq_find_bad_block(). */
struct data_sums_group {
    uint32_t (*crc)(const struct gq_file_sums *sums, const void *block);
    uint64_t (*find_bad)(const struct gq_file_sums *sums, uint64_t offset, uint64_t len,
                         const void *at);
};

extern const struct data_sums_group data_sums_1, data_sums_7, data_sums_32;

#endif
