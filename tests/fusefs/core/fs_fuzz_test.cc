/* SPDX-License-Identifier: BSD-2-Clause */
// The fuzz entry with seeded random inputs, for builds without libFuzzer. FUZZ_RUNS inputs from
// FUZZ_SEED on, for long runs; a crash names the seed that replays it with FUZZ_RUNS=1.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <random>
#include <string>
#include <vector>

#include "tests/rounds.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
extern "C" unsigned long fuzz_image_mounted(void);
extern "C" unsigned long fuzz_image_repaired(void);

namespace
{

constexpr int RUNS = kSanitized ? 2000 : 6000; // in every run

char line[64]; // what a crash prints

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

uint64_t number_from(const char *variable, int standard)
{
    const char *text = getenv(variable);
    return text ? strtoull(text, nullptr, 10) : static_cast<uint64_t>(standard);
}

TEST(FsFuzz, CraftedImagesAreSurvived)
{
    uint64_t first = number_from("FUZZ_SEED", 1);
    uint64_t runs = number_from("FUZZ_RUNS", test_rounds(RUNS, 400000));
    signal(SIGABRT, on_crash);
    for (uint64_t seed = first; seed < first + runs; seed++) {
        std::mt19937_64 random(seed);
        std::vector<uint8_t> input(8 + random() % 56);
        for (uint8_t &byte : input)
            byte = static_cast<uint8_t>(random());
        snprintf(line, sizeof(line), "FUZZ_SEED=%llu\n", static_cast<unsigned long long>(seed));
        ASSERT_EQ(LLVMFuzzerTestOneInput(input.data(), input.size()), 0) << line;
    }
    printf("%lu of %llu images were mounted for writing, %lu were repaired\n", fuzz_image_mounted(),
           static_cast<unsigned long long>(runs), fuzz_image_repaired());
    EXPECT_GT(fuzz_image_mounted(), runs / 8) << "mutations that only break the mount find little";
    EXPECT_GT(fuzz_image_repaired(), runs / 4) << "half of the damaged images are repaired";
}

} // namespace

// Called by AddressSanitizer before it ends the process.
extern "C" void __asan_on_error();
extern "C" void __asan_on_error()
{
    print_line();
}
