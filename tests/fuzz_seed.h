/* SPDX-License-Identifier: BSD-2-Clause */
// Runs a fuzz entry with inputs of a seeded generator, in builds without libFuzzer. A crash prints
// the seed of its input. One source file of a program includes this.
#ifndef TESTS_FUZZ_SEED_H
#define TESTS_FUZZ_SEED_H

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

inline char fuzz_line[64]; // what a crash prints

// Called by AddressSanitizer before it ends the process.
extern "C" void __asan_on_error();
extern "C" void __asan_on_error()
{
    ssize_t ignored = write(STDERR_FILENO, fuzz_line, strlen(fuzz_line));

    (void)ignored;
}

inline void fuzz_on_crash(int number)
{
    __asan_on_error();
    signal(number, SIG_DFL);
    raise(number);
}

// Returns the number in a variable: FUZZ_SEED is the first seed, FUZZ_RUNS the number of inputs.
inline uint64_t fuzz_number(const char *variable, uint64_t standard)
{
    const char *text = getenv(variable);

    return text ? strtoull(text, nullptr, 10) : standard;
}

inline void fuzz_input(uint64_t seed, const std::vector<uint8_t> &bytes)
{
    snprintf(fuzz_line, sizeof(fuzz_line), "FUZZ_SEED=%llu\n",
             static_cast<unsigned long long>(seed));
    ASSERT_EQ(LLVMFuzzerTestOneInput(bytes.data(), bytes.size()), 0) << fuzz_line;
}

#endif
