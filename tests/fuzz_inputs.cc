/* SPDX-License-Identifier: BSD-2-Clause */
// Runs a fuzz entry with random inputs from seeds for some seconds, or for FUZZ_RUNS inputs.
#include <chrono>
#include <random>

#include "tests/fuzz_seed.h"
#include "tests/rounds.h"

namespace
{

constexpr int SECONDS = 2, LONG_SECONDS = 60;
constexpr size_t MAX_INPUT = 400;

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
    uint64_t begin = fuzz_number("FUZZ_SEED", 1), runs = fuzz_number("FUZZ_RUNS", 0), seed = begin;
    auto until =
        std::chrono::steady_clock::now() + std::chrono::seconds(test_rounds(SECONDS, LONG_SECONDS));
    signal(SIGABRT, fuzz_on_crash);
    signal(SIGSEGV, fuzz_on_crash);
    while (runs ? seed < begin + runs : std::chrono::steady_clock::now() < until) {
        ASSERT_NO_FATAL_FAILURE(fuzz_input(seed, input(seed)));
        seed++;
    }
    printf("%llu inputs\n", static_cast<unsigned long long>(seed - begin));
}

} // namespace
