/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The fuzz entry with a fixed number of seeded mutations, for builds without libFuzzer: no check
 * may read outside its block or loop, whatever the block holds.
 */
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/layout/objects.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

namespace
{

const size_t HEAD = sizeof(lay_head);
const size_t CHOICE = 3; // bytes for kind and bit before the object

class Mutation : public ::testing::TestWithParam<int>
{
  protected:
    void SetUp() override
    {
        lay_block o;
        object_make(static_cast<object_kind>(GetParam()), &o);
        sound = {static_cast<uint8_t>(GetParam()), 0, 0};
        sound.insert(sound.end(), o.bytes + HEAD, o.bytes + LAY_BLOCK_SIZE);
    }

    uint8_t odd_value()
    {
        static const uint8_t values[] = {0, 1, 7, 8, 0x7f, 0x80, 0xfe, 0xff};
        return rng() % 4 ? values[rng() % 8] : static_cast<uint8_t>(rng());
    }

    std::mt19937 rng{static_cast<unsigned>(GetParam()) + 1};
    std::vector<uint8_t> sound;
};

TEST_P(Mutation, OfSingleBytesIsSurvived)
{
    for (int round = 0; round < 2000; round++) {
        std::vector<uint8_t> data = sound;
        data[1] = static_cast<uint8_t>(rng());
        data[2] = static_cast<uint8_t>(rng());
        /* Most fields are near the start. */
        size_t reach = rng() % 2 ? 200 : data.size() - CHOICE;
        for (unsigned n = 1 + rng() % 4; n > 0; n--)
            data[CHOICE + rng() % reach] = odd_value();
        ASSERT_EQ(LLVMFuzzerTestOneInput(data.data(), data.size()), 0);
    }
}

TEST_P(Mutation, ToNoiseIsSurvived)
{
    for (int round = 0; round < 200; round++) {
        std::vector<uint8_t> data = sound;
        std::generate(data.begin() + CHOICE, data.end(), [this] { return odd_value(); });
        ASSERT_EQ(LLVMFuzzerTestOneInput(data.data(), data.size()), 0);
    }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Mutation, ::testing::Range(0, static_cast<int>(OBJECT_KINDS)));

} // namespace
