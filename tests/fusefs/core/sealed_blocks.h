/* SPDX-License-Identifier: BSD-2-Clause */
// Finds metadata blocks by their seals, wherever the format places them.
#ifndef TESTS_FUSEFS_SEALED_BLOCKS_H
#define TESTS_FUSEFS_SEALED_BLOCKS_H

#include <stdint.h>

#include <vector>

#include "layout/layout.h"

// True if the block has the checksum of the address and the UUID that it bears itself.
inline bool is_sealed(const uint8_t *block)
{
    const auto *head = reinterpret_cast<const lay_head *>(block);

    return lay_block_crc(head->uuid, lay_get64(head->block), block) == lay_get32(head->crc);
}

inline uint32_t magic_of(const uint8_t *block)
{
    return lay_get32(reinterpret_cast<const lay_head *>(block)->magic);
}

// True if the block of the device is in a log.
inline bool is_in_log(const lay_geometry &geo, uint64_t block)
{
    return block - geo.log_start < geo.log_blocks ||
           (geo.log_copy && block - geo.log_copy < geo.log_blocks);
}

// The blocks of one kind, in order, but for images in the log; freed ones are among them.
inline std::vector<uint64_t> sealed_blocks(const uint8_t *device, const lay_geometry &geo,
                                           uint32_t magic)
{
    std::vector<uint64_t> found;
    for (uint64_t block = 0; block < geo.blocks; block++) {
        const uint8_t *at = device + block * LAY_BLOCK_SIZE;
        if (!is_in_log(geo, block) && magic_of(at) == magic && is_sealed(at))
            found.push_back(block);
    }
    return found;
}

#endif
