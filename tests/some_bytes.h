/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef TESTS_SOME_BYTES_H
#define TESTS_SOME_BYTES_H

#include <cstdint>
#include <vector>

#include "tests/e2e/content.h"

// n bytes that the seed determines.
inline std::vector<char> some_bytes(size_t n, unsigned seed)
{
    std::vector<char> all(n);
    content_fill(seed, 0, reinterpret_cast<uint8_t *>(all.data()), n);
    return all;
}

#endif
