/* SPDX-License-Identifier: BSD-2-Clause */
// Runs a fuzz entry with random inputs from seeds for some seconds, in builds
// without libFuzzer. A crash prints the seed of its input. FUZZ_SEED sets the
// first seed, and FUZZ_RUNS the number of inputs.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <vector>

#include "tests/rounds.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

namespace
{

constexpr int SECONDS = 2, LONG_SECONDS = 60;
constexpr size_t MAX_INPUT = 400;

char line[64]; // the line that a crash prints

void print_line()
{
    ssize_t ignored = write(STDERR_FILENO, line, strlen(line));
    (void)ignored;
}

void on_crash(int number)
{
    print_line();
    signal(number, SIG_DFL);
    raise(number);
}

// Half of the bytes are small, like most valid fields and choices.
std::vector<uint8_t> input(uint64_t seed)
{
    std::mt19937_64 random(seed);
    std::vector<uint8_t> bytes(random() % MAX_INPUT);
    for (uint8_t &byte : bytes)
        byte = static_cast<uint8_t>(random() % 2 ? random() : random() % 8);
    return bytes;
}

TEST(Fuzz, RandomInputsAreSurvived)
{
    const char *first = getenv("FUZZ_SEED"), *runs = getenv("FUZZ_RUNS");
    uint64_t begin = first ? strtoull(first, nullptr, 10) : 1, seed = begin;
    uint64_t end = runs ? begin + strtoull(runs, nullptr, 10) : UINT64_MAX;
    auto until =
        std::chrono::steady_clock::now() + std::chrono::seconds(test_rounds(SECONDS, LONG_SECONDS));
    signal(SIGABRT, on_crash);
    signal(SIGSEGV, on_crash);
    while (seed < end && (runs || std::chrono::steady_clock::now() < until)) {
        snprintf(line, sizeof(line), "FUZZ_SEED=%llu\n", static_cast<unsigned long long>(seed));
        std::vector<uint8_t> bytes = input(seed++);
        ASSERT_EQ(LLVMFuzzerTestOneInput(bytes.data(), bytes.size()), 0) << line;
    }
    printf("%llu inputs\n", static_cast<unsigned long long>(seed - begin));
}

} // namespace

// AddressSanitizer calls this function before it ends the process.
extern "C" void __asan_on_error();
extern "C" void __asan_on_error()
{
    print_line();
}
