/* SPDX-License-Identifier: BSD-2-Clause */
// How much a test that draws at random does.
#ifndef TESTS_ROUNDS_H
#define TESTS_ROUNDS_H

#include <cstdlib>

// Is true in a build with a sanitizer, whose code takes five times as long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// few in every run; many with GPUNVME_TEST_LONG in the environment, as in scripts/nightly.sh.
inline int test_rounds(int few, int many)
{
    return std::getenv("GPUNVME_TEST_LONG") ? many : few;
}

#endif
