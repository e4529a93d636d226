/* SPDX-License-Identifier: BSD-2-Clause */
// File contents that can be computed for any byte: no copy of the written data is needed.
#ifndef TESTS_E2E_CONTENT_H
#define TESTS_E2E_CONTENT_H

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

// Eight bytes at a multiple of 8.
inline uint64_t content_word(uint64_t seed, uint64_t index)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + index;

    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

inline void content_fill(uint64_t seed, uint64_t offset, uint8_t *out, size_t len)
{
    for (size_t i = 0; i < len;) {
        uint64_t word = content_word(seed, (offset + i) / 8);
        size_t at = (offset + i) % 8, n = std::min<size_t>(8 - at, len - i);
        memcpy(out + i, reinterpret_cast<uint8_t *>(&word) + at, n);
        i += n;
    }
}

// A file that does not change after its creation.
struct StaticFile {
    std::string name;
    uint64_t seed = 0;
    uint64_t size = 0;
    // Data everywhere, or only in these ranges (offset, length), sorted; the rest are holes.
    bool sparse = false;
    std::vector<std::pair<uint64_t, uint64_t>> data;

    void expect(uint64_t offset, uint8_t *out, size_t len) const
    {
        if (!sparse) {
            content_fill(seed, offset, out, len);
            return;
        }
        memset(out, 0, len);
        for (const auto &[start, n] : data) {
            uint64_t from = std::max(start, offset), to = std::min(start + n, offset + len);
            if (from < to)
                content_fill(seed, from, out + (from - offset), to - from);
        }
    }
};

#endif
