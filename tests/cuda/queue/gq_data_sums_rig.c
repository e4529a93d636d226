/* SPDX-License-Identifier: BSD-2-Clause */
/* Compiled once for each number of lanes: GQ_LANES, and the name of the group, are given. */
#include "cuda/queue/gq_data_sums.h"

#include "tests/cuda/queue/gq_data_sums_rig.h"

static uint32_t crc(const struct gq_file_sums *sums, const void *block)
{
    const struct gq_summer summer = {.group = gq_whole_group(), .sums = *sums};

    return gq_block_crc(&summer, (uintptr_t)block);
}

static uint64_t find_bad(const struct gq_file_sums *sums, uint64_t offset, uint64_t len,
                         const void *at)
{
    const struct gq_summer summer = {.group = gq_whole_group(), .sums = *sums};

    return gq_find_bad_block(summer, offset, len, (uintptr_t)at);
}

const struct data_sums_group DATA_SUMS_GROUP = {crc, find_bad};
