/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The fuzz entry with a fixed number of seeded mutations, for builds without libFuzzer: whatever a
 * server answers, the client neither reads past it, nor hangs, nor keeps a descriptor.
 */
#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
extern "C" unsigned fuzz_vfio_user_maps;

namespace
{

size_t open_fds()
{
    size_t n = 0;
    for (auto &entry : std::filesystem::directory_iterator("/proc/self/fd"))
        n += !entry.path().empty();
    return n;
}

class VfioUserMutation : public ::testing::Test
{
  protected:
    void TearDown() override { EXPECT_EQ(open_fds(), before); }

    uint8_t odd_value()
    {
        static const uint8_t values[] = {0, 1, 2, 0x10, 0x7f, 0x80, 0xfe, 0xff};
        return rng() % 4 ? values[rng() % 8] : static_cast<uint8_t>(rng());
    }

    /* One to four changes, most of them in what the messages have. */
    std::vector<uint8_t> input()
    {
        std::vector<uint8_t> in;
        for (unsigned n = 1 + rng() % 4; n; n--) {
            size_t offset = rng() % (rng() % 16 ? 100 : 6144), len = 1 + rng() % 8;
            in.push_back(static_cast<uint8_t>(rng() % 13 | (rng() % 16 ? 0 : 0x80)));
            in.push_back(static_cast<uint8_t>(offset));
            in.push_back(static_cast<uint8_t>(offset >> 8));
            in.push_back(static_cast<uint8_t>(len));
            while (len--)
                in.push_back(odd_value());
        }
        return in;
    }

    std::mt19937 rng{7};
    size_t before = open_fds();
};

TEST_F(VfioUserMutation, TheUnchangedConversationSucceeds)
{
    fuzz_vfio_user_maps = 0;
    EXPECT_EQ(LLVMFuzzerTestOneInput(nullptr, 0), 0);
    EXPECT_EQ(fuzz_vfio_user_maps, 1u);
}

TEST_F(VfioUserMutation, ChangedRepliesAreSurvived)
{
    fuzz_vfio_user_maps = 0;
    for (int i = 0; i < 4000; i++) {
        std::vector<uint8_t> in = input();
        ASSERT_EQ(LLVMFuzzerTestOneInput(in.data(), in.size()), 0);
    }
    EXPECT_GT(fuzz_vfio_user_maps, 200u);
    EXPECT_LT(fuzz_vfio_user_maps, 3800u);
}

} // namespace
