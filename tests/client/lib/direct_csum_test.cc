// SPDX-License-Identifier: BSD-2-Clause
// The direct path on a file system with checksums of data, over a drive and an image that go wrong.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "tests/client/lib/image_bit.h"
#include "tests/client/lib/mount_rig.h"

namespace
{

using namespace mount_rig;

constexpr uint64_t kBad = 5 * kPage; // a block of the file that is no hole

class DirectCsum : public MountRig, public ::testing::WithParamInterface<Way>
{
  protected:
    void SetUp() override
    {
        format_ = {"-O", "data_csum"};
        start(GetParam(), GPUNVME_PUPPET);
    }
    int64_t read(size_t at, size_t n, uint64_t offset)
    {
        int64_t bytes = -1;
        int err = direct_read_async(f_, memory_ + at, n, offset, nullptr, &bytes);
        return err ? err : bytes;
    }
    int64_t read_piece(size_t at, size_t n, uint64_t offset)
    {
        struct gpunvme_piece p = {offset, at, static_cast<uint32_t>(n), -1};
        int err = direct_readv_async(f_, memory_, &p, 1, nullptr);
        return err ? err : p.result;
    }
    int64_t read_waiting(size_t at, size_t n, uint64_t offset)
    {
        return direct_read_wait(f_, memory_ + at, n, offset);
    }
    // By every call.
    void expect_result(size_t n, uint64_t offset, int64_t result)
    {
        using Call = int64_t (DirectCsum::*)(size_t, size_t, uint64_t);
        for (Call call : {&DirectCsum::read, &DirectCsum::read_piece, &DirectCsum::read_waiting}) {
            poison();
            EXPECT_EQ((this->*call)(0, n, offset), result) << n << " at " << offset;
            EXPECT_TRUE(result < 0 || holds(0, static_cast<size_t>(result), offset));
        }
    }
    void flip(uint64_t offset) { flip_in_image(mount_->image(), fd_, offset); }
    void write_file(uint64_t offset, size_t n, char c)
    {
        std::fill_n(file_.begin() + static_cast<ptrdiff_t>(offset), n, c);
        ASSERT_EQ(pwrite(fd_, &file_[offset], n, static_cast<off_t>(offset)),
                  static_cast<ssize_t>(n));
    }
};

TEST_P(DirectCsum, ReadsAnythingAnywhereAndTouchesNothingElse)
{
    const std::vector<size_t> most = {kFile, 3 * kPage, 100, 100000, 3 * kPage};
    expect_reads(60, most,
                 [this](size_t at, size_t n, uint64_t offset) { return read(at, n, offset); });
    expect_reads(60, most, [this](size_t at, size_t n, uint64_t offset) {
        return read_piece(at, n, offset);
    });
}

TEST_P(DirectCsum, ABlockThatIsWrongInTheImageIsAnErrorThatNamesIt)
{
    uint64_t bad;
    EXPECT_EQ(direct_bad_block(f_, &bad), 0);
    flip(kBad + 99);
    for (size_t n : {size_t{10}, kPage, 3 * kPage})
        expect_result(n, kBad, -EIO);
    expect_result(10, kBad + 4000, -EIO);
    expect_result(kPage + 1, kBad - kPage, -EIO);
    expect_result(kPage, kBad - kPage, kPage);
    expect_result(kPage, kBad + kPage, kPage);
    EXPECT_EQ(read_waiting(0, 10, kBad), -EIO);
    std::string block = "block " + std::to_string(kBad / kPage) + " of the file";
    EXPECT_NE(std::string(gpunvme_error()).find(block), std::string::npos) << gpunvme_error();
    EXPECT_EQ(direct_bad_block(f_, &bad), 1);
    EXPECT_EQ(bad, kBad);
    EXPECT_EQ(direct_bad_block(f_, &bad), 0);
    flip(kBad + 99);
    expect_result(3 * kPage, kBad, 3 * kPage);
}

TEST_P(DirectCsum, ACommandThatBringsAWrongBitIsSentAgain)
{
    for (size_t n : {size_t{10}, kPage, 3 * kPage}) {
        fault("corrupt", kRead, 1);
        EXPECT_EQ(read(0, n, kBad), static_cast<int64_t>(n));
        EXPECT_TRUE(holds(0, n, kBad));
        fault("corrupt", kRead, 1);
        EXPECT_EQ(read_piece(0, n, kBad), static_cast<int64_t>(n));
        EXPECT_TRUE(holds(0, n, kBad));
    }
}

TEST_P(DirectCsum, WhatIsOverwrittenIsReadAndComparedAgainAfterARefresh)
{
    EXPECT_EQ(leased_file_refresh(f_), 0);
    write_file(kBad, kPage, 'n');
    expect_result(3 * kPage, kBad - kPage, 3 * kPage);
    write_file(kBad + 100, 50, 'p'); // a part of a block
    expect_result(3 * kPage, kBad - kPage, 3 * kPage);
    EXPECT_EQ(leased_file_refresh(f_), 1) << "the lease has lost a checksum";
    expect_result(3 * kPage, kBad - kPage, 3 * kPage);
    flip(kBad + 7);
    expect_result(kPage, kBad, -EIO);
    flip(kBad + 7);
    EXPECT_EQ(leased_file_refresh(f_), 0);
}

TEST_P(DirectCsum, ZerosInPlaceTakeTheChecksumAwayToo)
{
    ASSERT_EQ(fallocate(fd_, FALLOC_FL_ZERO_RANGE, kBad + 100, 3 * kPage), 0);
    std::fill_n(file_.begin() + kBad + 100, 3 * kPage, 0);
    int64_t got = read(0, kPage, kBad);
    EXPECT_EQ(got, static_cast<int64_t>(kPage));
    EXPECT_TRUE(holds(0, kPage, kBad));
    write_file(kBad + kPage, 2 * kPage, 'z'); // unwritten now, in the place that the lease knows
    EXPECT_EQ(read(0, 3 * kPage, kBad), static_cast<int64_t>(3 * kPage));
    EXPECT_EQ(leased_file_refresh(f_), 1);
    expect_result(4 * kPage, kBad, 4 * kPage);
}

// Blocks that the file has lost stay as they were, and so do their checksums.
TEST_P(DirectCsum, ATruncatedFileIsReadAsItWas)
{
    ASSERT_EQ(ftruncate(fd_, kBad + 10), 0);
    EXPECT_EQ(read(0, kPage, kBad + kPage), static_cast<int64_t>(kPage));
    EXPECT_TRUE(holds(0, kPage, kBad + kPage));
    EXPECT_EQ(read(0, 10, kBad), 10);
    EXPECT_EQ(leased_file_refresh(f_), 1);
    EXPECT_EQ(read(0, kPage, kBad), 10);
    EXPECT_TRUE(holds(0, 10, kBad));
}

// Each block is the old one or the new one, or of both: no read fails.
TEST_P(DirectCsum, AWriterBesideReadersMakesNoErrors)
{
    std::atomic<bool> done{false};
    std::thread writer([this, &done] {
        std::vector<char> block(2 * kPage);
        for (int i = 0; i < 150; i++) {
            memset(block.data(), 'a' + i % 26, block.size());
            EXPECT_EQ(pwrite(fd_, block.data(), block.size(), kBad + i % 5 * kPage),
                      static_cast<ssize_t>(block.size()));
        }
        done = true;
    });
    for (int i = 0; !done; i++) {
        if (i % 8 == 0) {
            EXPECT_GE(leased_file_refresh(f_), 0) << gpunvme_error();
        }
        EXPECT_EQ(read(0, 8 * kPage, kBad), static_cast<int64_t>(8 * kPage)) << gpunvme_error();
        EXPECT_EQ(read_piece(0, 1000, kBad + 500), 1000) << gpunvme_error();
    }
    writer.join();
}

const Way kWays[] = {
    {"defaults", "executor=cpu,direct=root,deadline=60000", 0, 0},
    {"staged", "executor=cpu_staged,direct=root,deadline=60000", 2, 4},
    {"blocks_of_4_KiB", "executor=cpu,direct=root,deadline=60000,sim=lba:4096", 1, 4}};

INSTANTIATE_TEST_SUITE_P(Ways, DirectCsum, ::testing::ValuesIn(kWays),
                         [](const auto &info) { return info.param.name; });

class Unverified : public DirectCsum
{
    void SetUp() override
    {
        flags_ = GPUNVME_UNVERIFIED;
        DirectCsum::SetUp();
    }
};

TEST_P(Unverified, ReadsTakeWhatTheDriveHas)
{
    expect_result(3 * kPage, kBad, 3 * kPage);
    flip(kBad);
    EXPECT_EQ(read(0, kPage, kBad), static_cast<int64_t>(kPage));
    EXPECT_FALSE(holds(0, kPage, kBad));
}

INSTANTIATE_TEST_SUITE_P(Ways, Unverified, ::testing::Values(kWays[0]),
                         [](const auto &info) { return info.param.name; });

} // namespace
