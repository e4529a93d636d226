/* SPDX-License-Identifier: BSD-2-Clause */
// The fuzz entry with seeded random inputs, for builds without libFuzzer. FUZZ_RUNS inputs from
// FUZZ_SEED on, for long runs; a crash names the seed that replays it with FUZZ_RUNS=1.
#include <random>

#include "tests/fuzz_seed.h"
#include "tests/rounds.h"

extern "C" unsigned long fuzz_image_mounted(void);
extern "C" unsigned long fuzz_image_repaired(void);

namespace
{

constexpr int RUNS = kSanitized ? 2000 : 6000; // in every run

TEST(FsFuzz, CraftedImagesAreSurvived)
{
    uint64_t first = fuzz_number("FUZZ_SEED", 1);
    uint64_t runs = fuzz_number("FUZZ_RUNS", test_rounds(RUNS, 400000));
    signal(SIGABRT, fuzz_on_crash);
    for (uint64_t seed = first; seed < first + runs; seed++) {
        std::mt19937_64 random(seed);
        std::vector<uint8_t> input(8 + random() % 56);
        for (uint8_t &byte : input)
            byte = static_cast<uint8_t>(random());
        ASSERT_NO_FATAL_FAILURE(fuzz_input(seed, input));
    }
    printf("%lu of %llu images were mounted for writing, %lu were repaired\n", fuzz_image_mounted(),
           static_cast<unsigned long long>(runs), fuzz_image_repaired());
    EXPECT_GT(fuzz_image_mounted(), runs / 8) << "mutations that only break the mount find little";
    EXPECT_GT(fuzz_image_repaired(), runs / 4) << "half of the damaged images are repaired";
}

} // namespace
