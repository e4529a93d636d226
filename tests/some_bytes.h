/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef TESTS_SOME_BYTES_H
#define TESTS_SOME_BYTES_H

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

// The next n bytes of a generator, which makes four at a time.
inline void some_bytes(std::mt19937 &rng, char *to, size_t n)
{
    for (size_t at = 0; at < n; at += sizeof(uint32_t)) {
        uint32_t word = static_cast<uint32_t>(rng());
        memcpy(to + at, &word, std::min(n - at, sizeof(word)));
    }
}

// n bytes that the seed determines.
inline std::vector<char> some_bytes(size_t n, unsigned seed)
{
    std::vector<char> all(n);
    std::mt19937 rng(seed);
    some_bytes(rng, all.data(), n);
    return all;
}

#endif
