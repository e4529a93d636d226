/* SPDX-License-Identifier: BSD-2-Clause */
// The limit of bytes of a READV list.
#include <errno.h>

#include <atomic>
#include <thread>

#include "tests/fusefs/daemon/transfer/readv_rig.h"

namespace
{

constexpr uint64_t kMost = 4ull << 30; // bytes of all pieces, for a buffer that is shorter

constexpr uint64_t kZeros = 1u << 30;

using ReadvLength = ReadvWays;

TEST_P(ReadvLength, AListOfMaximumLengthIsReadCompletely)
{
    open(config_of(GetParam()));
    ASSERT_EQ(rig_write_file(rig_, kZeros + kBytes, content_.data(), 1), 0);
    constexpr uint64_t kCount = kMost / kBytes;
    std::fill_n(pieces(), kCount, gpunvme_piece{kZeros, 0, kBytes, -1});
    std::fill_n(pieces() + kCount, kCount, gpunvme_piece{1ull << 40, 0, kBytes, -1});
    gpunvme_ioc_readv v = request(2 * kCount);
    ASSERT_EQ(rig_readv(rig_, 0, &v), 0) << "what is past the end is no byte";
    EXPECT_EQ(v.bytes, kMost);
    for (uint64_t i = 0; i < 2 * kCount; i++)
        ASSERT_EQ(pieces()[i].result, i < kCount ? static_cast<int32_t>(kBytes) : 0) << i;
}

// One queue: it stops soon after the bytes exceed the limit.
TEST_P(ReadvLength, ALongerListIsReadUpToTheLimit)
{
    open(config_of(GetParam()));
    ASSERT_EQ(rig_write_file(rig_, kZeros + kBytes, content_.data(), 1), 0);
    constexpr uint64_t kCount = 3 * kMost / kBytes;
    std::fill_n(pieces(), kCount, gpunvme_piece{kZeros, 0, kBytes, -1});
    gpunvme_ioc_readv v = request(kCount);
    EXPECT_EQ(rig_readv(rig_, 0, &v), -E2BIG);
    EXPECT_EQ(v.path, path());
    EXPECT_GE(v.bytes, kMost - kBytes);
    EXPECT_LE(v.bytes, 2 * kMost);
    EXPECT_EQ(v.bytes, bytes_of(kCount));
    for (uint64_t i = 0; i < kCount; i++)
        ASSERT_TRUE(pieces()[i].result == static_cast<int32_t>(kBytes) ||
                    pieces()[i].result == -E2BIG)
            << i << ": " << pieces()[i].result;
}

INSTANTIATE_TEST_SUITE_P(Paths, ReadvLength, ways_of_one_queue(), name_of);

// The second part of the map exhausts the limit; pieces of the first part that
// follow are left out.
TEST_F(Readv, ATooLongListKeepsTheResultsOfItsParts)
{
    open(with(&rig_config::image_bytes, 512u << 20));
    ASSERT_EQ(rig_fragment(rig_, 8u << 20, (8u << 20) + 36000 * 8192ull), 0);
    ASSERT_EQ(rig_write_file(rig_, kZeros + kBytes, content_.data(), 1), 0);
    constexpr uint32_t kLength = kBytes - 65536;
    constexpr uint64_t kLong = 3 * kMost / kLength, kCount = kLong + 1000;
    spread(kCount, 64);
    std::fill_n(pieces(), kLong, gpunvme_piece{kZeros, 0, kLength, -1});
    for (uint64_t i = kLong; i < kCount; i++)
        pieces()[i].buffer_offset = kLength + (i - kLong) * 64;
    gpunvme_ioc_readv v = request(kCount);
    EXPECT_EQ(rig_readv(rig_, 0, &v), -E2BIG);
    EXPECT_GE(v.bytes, kMost - kBytes);
    EXPECT_LE(v.bytes, kMost + kMost / 2) << "nor is the rest read piece by piece";
    EXPECT_EQ(v.bytes, bytes_of(kCount));
    EXPECT_EQ(pieces()[kLong - 1].result, -E2BIG);
    expect_pieces(kCount, kLong);
}

// A slow batch whose last pieces are empty until it has begun.
class ReadvGrowing : public ReadvWays
{
  protected:
    static constexpr uint64_t kGrown = kPieces - 3000;

    void SetUp() override
    {
        rig_config config = config_of(GetParam());
        config.bytes_per_sec = 8u << 20;
        open(config);
        ASSERT_EQ(rig_write_file(rig_, kZeros + kBytes, content_.data(), 1), 0);
    }
    void read_and_grow(gpunvme_ioc_readv *v)
    {
        std::fill_n(pieces(), kPieces, gpunvme_piece{kZeros, 0, 0, -1});
        spread(2000, 512);
        sim_stats before = {}, now = {};
        sim_get_stats(rig_sim(rig_), &before);
        std::atomic<int> err{1};
        std::thread reader([&] { err = rig_readv(rig_, 0, v); });
        while (err == 1 && now.reads <= before.reads + 10) {
            std::this_thread::yield();
            sim_get_stats(rig_sim(rig_), &now);
        }
        for (uint64_t i = kGrown; i < kPieces; i++)
            pieces()[i].len = kBytes;
        reader.join();
        EXPECT_TRUE(err == -E2BIG || (err == 0 && pieces()[kGrown].result == 0)) << err;
    }
};

TEST_P(ReadvGrowing, IsNotReadToItsEnd)
{
    gpunvme_ioc_readv v;
    do {
        v = request(kPieces);
        read_and_grow(&v);
    } while (pieces()[kGrown].result == 0); // too late
    EXPECT_EQ(pieces()[0].result, expected(pieces()[0]));
    EXPECT_EQ(pieces()[kGrown].result, static_cast<int32_t>(kBytes));
    EXPECT_EQ(pieces()[kPieces - 1].result, -E2BIG);
    EXPECT_LE(v.bytes, 2 * kMost);
}

INSTANTIATE_TEST_SUITE_P(Paths, ReadvGrowing, ways_of_one_queue(), name_of);

} // namespace
