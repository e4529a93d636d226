/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef TESTS_CUDA_CRC32C_H
#define TESTS_CUDA_CRC32C_H

#include <cstddef>
#include <cstdint>

// CRC-32C (RFC 3720, B.4), bit by bit: what the tables and the lanes are compared with.
inline uint32_t crc32c(const uint8_t *data, size_t len)
{
    uint32_t crc = ~0u;

    for (size_t i = 0; i < len; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

#endif
