// SPDX-License-Identifier: BSD-2-Clause
// A check: data that one kernel has read is compared by another, and read again by a third.
#include <errno.h>

#include <vector>

#include <gtest/gtest.h>

#include "tests/client/lib/direct_stack.h"

namespace
{

using direct_stack::address, direct_stack::kPage, direct_stack::kPages, direct_stack::Stack;

constexpr size_t kAt = 8 * kPage;

class DirectCheck : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        s_.add_sums();
        memset(s_.pages[0].bytes, 0x5a, kPages * kPage);
    }
    compare_rig of_read(uint64_t len, uint64_t offset)
    {
        return {&s_.file, address(s_, kAt), {offset, 0, len}, nullptr, 1, &check_};
    }
    compare_rig of_list()
    {
        return {&s_.file, address(s_, kAt), {}, list_.data(), static_cast<uint32_t>(list_.size()),
                &check_};
    }
    // Data of block `i` that lies in memory, as a kernel has read it.
    uint8_t &in_memory(uint64_t i) { return s_.pages[kAt / kPage + i].bytes[9]; }
    void expect_ended(uint32_t runs)
    {
        EXPECT_EQ(check_.runs, runs);
        EXPECT_EQ(check_.refused | check_.left, 0u) << "the words are not ready for the next one";
    }

    Stack s_{4, 16, 60};
    gd_check check_ = {};
    std::vector<gq_read_desc> list_;
};

TEST_F(DirectCheck, OnlyBlocksThatDifferAreReadAgain)
{
    const compare_rig r = of_read(100 * kPage, 0);
    for (uint32_t groups : {1u, 4u, 40u}) {
        compare_rig_read(&r);
        in_memory(1) ^= 1;
        in_memory(9) ^= 1;
        in_memory(90) ^= 1;
        compare_rig_compare(&r, groups);
        EXPECT_EQ(check_.refused, 3u);
        unsigned before = s_.commands;
        EXPECT_EQ(compare_rig_conclude(&r, 1), static_cast<int64_t>(100 * kPage));
        EXPECT_EQ(s_.commands - before, 3u);
        EXPECT_TRUE(s_.holds(kAt, 100 * kPage, 0));
    }
    EXPECT_EQ(s_.bad_block, 0u);
    expect_ended(3);
}

TEST_F(DirectCheck, MoreBlocksThanThereIsRoomForAreReadAgainToo)
{
    const compare_rig r = of_read(150 * kPage, 0);
    compare_rig_read(&r);
    for (uint64_t i = 0; i < 150; i++)
        in_memory(i) ^= 1;
    compare_rig_compare(&r, 5);
    EXPECT_GT(check_.refused, GD_REFUSED);
    EXPECT_EQ(compare_rig_conclude(&r, 1), static_cast<int64_t>(150 * kPage));
    EXPECT_TRUE(s_.holds(kAt, 150 * kPage, 0)) << "but for holes, which the read has zeroed";
    expect_ended(1);
}

TEST_F(DirectCheck, ABlockThatIsWrongOnTheDriveIsReadOnceMoreAndNamed)
{
    const compare_rig r = of_read(20 * kPage, 0);
    s_.on_media(10 * kPage) ^= 1;
    compare_rig_read(&r);
    compare_rig_compare(&r, 2);
    unsigned before = s_.commands;
    EXPECT_EQ(compare_rig_conclude(&r, 1), -EIO);
    EXPECT_EQ(s_.commands - before, 1u);
    EXPECT_EQ(s_.bad_block, 10 * kPage + 1);
    expect_ended(1);
}

// Copy warps compare nothing: the copied bytes are compared where they are.
TEST_F(DirectCheck, StagedBlocksAreComparedInTheirPlace)
{
    s_.stage_all();
    const compare_rig r = of_read(100 * kPage, 0);
    const direct_staged_rig staged = {&s_.file, r.dst,   r.read.len, 0,
                                      nullptr,  nullptr, 1,          GD_STAGED_ALL};
    int err;
    for (uint32_t run : {1u, 2u}) {
        EXPECT_TRUE(direct_staged_rig_read(&staged, 0, &err));
        check_.bytes = err ? err : static_cast<int64_t>(r.read.len);
        if (run == 2)
            s_.on_media(10 * kPage) ^= 1;
        in_memory(10) ^= 1;
        compare_rig_compare(&r, 4);
        EXPECT_EQ(check_.refused, 1u);
        unsigned before = s_.commands;
        EXPECT_EQ(compare_rig_conclude(&r, 1), run == 1 ? check_.bytes : -EIO);
        EXPECT_EQ(s_.commands - before, 1u);
        expect_ended(run);
    }
    EXPECT_EQ(s_.bad_block, 10 * kPage + 1);
}

TEST_F(DirectCheck, ARevokedLeaseIsStale)
{
    const compare_rig r = of_read(20 * kPage, 0);
    compare_rig_read(&r);
    in_memory(3) ^= 1;
    compare_rig_compare(&r, 2);
    s_.lease = GD_LEASE_REVOKED;
    s_.forget_check();
    EXPECT_EQ(compare_rig_conclude(&r, 1), -ESTALE);
    expect_ended(1);
}

TEST_F(DirectCheck, AReadThatFailedIsNotCompared)
{
    const compare_rig r = of_read(4 * kPage, 0);
    s_.status_of_next = NVME_ERR_UNRECOVERED_READ;
    compare_rig_read(&r);
    compare_rig_compare(&r, 2);
    EXPECT_EQ(check_.refused, 0u);
    EXPECT_EQ(compare_rig_conclude(&r, 1), -EIO);
    EXPECT_EQ(s_.bad_block, 0u);
    expect_ended(1);
}

TEST_F(DirectCheck, PiecesThatDifferAreReadAgain)
{
    for (uint64_t i = 0; i < 100; i++)
        list_.push_back({i % 50 * kPage, i * kPage, kPage, -1});
    list_.push_back({100, 120 * kPage, 100, -1}); // a part of a block
    s_.on_media(kPage) ^= 1;                      // of two pieces
    for (uint32_t groups : {1u, 8u, 1000u}) {
        const compare_rig r = of_list();
        s_.bad_block = 0;
        compare_rig_read(&r);
        in_memory(10) ^= 1;
        in_memory(70) ^= 1;
        compare_rig_compare(&r, groups);
        EXPECT_EQ(list_[70].result, GQ_MISMATCH);
        compare_rig_conclude(&r, 3);
        for (size_t i = 0; i < list_.size(); i++) {
            bool bad = list_[i].file_offset == kPage;
            EXPECT_EQ(list_[i].result, bad ? -EIO : static_cast<int32_t>(list_[i].len)) << i;
            EXPECT_TRUE(bad || s_.holds(kAt + list_[i].at, list_[i].len, list_[i].file_offset));
        }
        EXPECT_EQ(s_.bad_block, kPage + 1);
    }
    expect_ended(3);
}

TEST_F(DirectCheck, PiecesAreStaleWithTheLease)
{
    for (uint64_t i = 0; i < 40; i++)
        list_.push_back({i * kPage, i * kPage, kPage, -1});
    const compare_rig r = of_list();
    compare_rig_read(&r);
    in_memory(10) ^= 1;
    compare_rig_compare(&r, 3);
    s_.lease = GD_LEASE_REVOKED;
    s_.forget_check();
    compare_rig_conclude(&r, 2);
    for (uint64_t i = 0; i < 40; i++)
        EXPECT_EQ(list_[i].result, i == 10 ? -ESTALE : static_cast<int32_t>(kPage)) << i;
    expect_ended(1);
}

// As the daemon does it: the word becomes 0 before the first byte changes.
TEST_F(DirectCheck, ABlockThatIsOverwrittenIsNotCompared)
{
    const compare_rig r = of_read(20 * kPage, 0);
    compare_rig_read(&r);
    in_memory(3) ^= 1;
    s_.sums[3] = 0;
    compare_rig_compare(&r, 2);
    EXPECT_EQ(compare_rig_conclude(&r, 1), static_cast<int64_t>(20 * kPage));
    EXPECT_FALSE(s_.holds(kAt, 20 * kPage, 0));
    expect_ended(1);
}

} // namespace
