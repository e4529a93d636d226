/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef TESTS_SOME_BYTES_H
#define TESTS_SOME_BYTES_H

#include <random>
#include <vector>

// n bytes that the seed determines.
inline std::vector<char> some_bytes(size_t n, unsigned seed)
{
    std::vector<char> all(n);
    std::mt19937 rng(seed);
    for (char &c : all)
        c = static_cast<char>(rng());
    return all;
}

#endif
