/* SPDX-License-Identifier: BSD-2-Clause */
// Tests long reads into memory that the controller does not reach, by several groups of 32 lanes.
#include <errno.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/client/lib/direct_stack.h"
#include "tests/threads.h"

namespace
{

using direct_stack::address, direct_stack::kPage, direct_stack::kPages, direct_stack::Stack;

constexpr uint64_t kMs = 1000000;
constexpr unsigned char kPoison = 0x5a;

// A file of many extents, and memory that the controller does not reach.
class DirectStaged : public ::testing::Test
{
  protected:
    DirectStaged()
    {
        s.stage_all();
        whole = s.file.map.end;
    }
    void expect_read(uint32_t groups, size_t at, uint64_t len, uint64_t offset)
    {
        ASSERT_EQ(read(groups, at, len, offset), static_cast<int64_t>(len));
        ASSERT_TRUE(s.holds_alone(at, len, offset, kPoison))
            << len << " at " << offset << " by " << groups;
    }

    // Loses the first command, of group 0, which alone has a deadline that passes: on a busy
    // machine, others could miss it, too.
    void lose_the_first()
    {
        hasty = s.file;
        hasty.set.command_ns = 300 * kMs;
        s.on_command = [&] { return ++seen != 1; };
    }
    // Returns the file of a group. With lose_the_first(), group 0 has sent its command before.
    const gpunvme_device_file *file_of(Stack &stack, uint32_t rank)
    {
        if (hasty.set.command_ns == 0)
            return &stack.file;
        while (rank > 0 && seen == 0)
            std::this_thread::yield();
        return rank == 0 ? &hasty : &stack.file;
    }

    direct_staged_rig rig_of(Stack &stack, uint32_t groups, size_t at, uint64_t len,
                             uint64_t offset)
    {
        return {&stack.file,
                reinterpret_cast<uint64_t>(stack.pages.data()) + at,
                len,
                offset,
                groups == 1 ? nullptr : &parts,
                cancel_,
                groups,
                unit_};
    }
    // The result is that of the group that ends last.
    int64_t read(Stack &stack, uint32_t groups, size_t at, uint64_t len, uint64_t offset)
    {
        const direct_staged_rig rig = rig_of(stack, groups, at, len, offset);
        std::atomic<unsigned> last{0};
        std::atomic<int> result{0};
        memset(stack.pages[0].bytes, kPoison, kPages * kPage);
        in_threads(groups, [&](uint32_t rank) {
            direct_staged_rig own = rig;
            int err;
            own.file = file_of(stack, rank);
            if (direct_staged_rig_read(&own, rank, &err)) {
                last++;
                result = err;
            }
        });
        EXPECT_EQ(last, 1u);
        if (groups > 1)
            expect_ended();
        return result ? result.load() : static_cast<int64_t>(len);
    }
    int64_t read(uint32_t groups, size_t at, uint64_t len, uint64_t offset)
    {
        return read(s, groups, at, len, offset);
    }

    // The words are ready for the next read.
    void expect_ended()
    {
        EXPECT_EQ(parts.dealing.next, 0u);
        EXPECT_EQ(parts.dealing.left, 0u);
        EXPECT_EQ(parts.left, 0u);
        EXPECT_EQ(parts.errnum, 0u);
        EXPECT_EQ(parts.dealing.runs, ++runs);
    }

    Stack s{4, 64, 60};
    gpunvme_device_file hasty = {};
    uint64_t whole;
    std::atomic<unsigned> seen{0};
    struct gd_parts parts = {};
    uint32_t runs = 0;
    uint32_t unit_ = GD_STAGED_ALL;
    const uint32_t *cancel_ = nullptr;
};

TEST_F(DirectStaged, ARefusedCommandIsTheReadsError)
{
    for (uint32_t groups : {1u, 3u}) {
        s.on_command = [&] {
            if (++seen == 20)
                s.status_of_next = NVME_ERR_UNRECOVERED_READ;
            return true;
        };
        seen = 0;
        EXPECT_EQ(read(groups, kPage, whole, 0), -EIO) << groups;
        EXPECT_EQ(s.lost_queues(), 0u);
        ASSERT_NO_FATAL_FAILURE(expect_read(groups, kPage, whole, 0)) << groups;
    }
}

// Its group waits for it; the remaining ones read the rest, and the next reads.
TEST_F(DirectStaged, ALostCommandTakesItsQueueAlone)
{
    lose_the_first();
    EXPECT_EQ(read(4, kPage, whole, 0), -ETIMEDOUT);
    EXPECT_EQ(s.lost_queues(), 1u);
    hasty = {};
    ASSERT_NO_FATAL_FAILURE(expect_read(3, kPage, whole, 0));
}

TEST_F(DirectStaged, WithoutAQueueLeftUnitsThatNobodyHasTakenAreAnError)
{
    s.file.set.command_ns = 100 * kMs;
    s.on_command = [] { return false; };
    while (s.lost_queues() < 4)
        EXPECT_EQ(read(4, kPage, whole, 0), -ETIMEDOUT);
    EXPECT_EQ(read(4, kPage, whole, 0), -ETIMEDOUT) << "no group has a queue";
}

TEST_F(DirectStaged, GroupsReadAnythingAnywhereAndTouchNothingElse)
{
    std::mt19937 rng(5);
    s.out_of_order = true;
    for (int i = 0; i < 120; i++) {
        size_t at = kPage + rng() % kPage;
        uint64_t offset = i % 4 ? rng() % (whole - 1) : 0;
        uint64_t len = i % 4 ? 1 + rng() % (whole - offset) : whole;
        unit_ = GD_STAGED_ALL << rng() % 4;
        ASSERT_NO_FATAL_FAILURE(expect_read(1 + rng() % GD_STAGED_QUEUES, at, len, offset));
    }
    EXPECT_EQ(s.odd_commands, 0u);
    EXPECT_EQ(s.lost_queues(), 0u);
}

TEST_F(DirectStaged, LongCommandsCarryWhatTheirListsName)
{
    s.make_one_extent(240);
    s.out_of_order = true;
    for (uint32_t unit = GD_STAGED_ALL; unit <= GD_STAGED_LONG; unit *= 2) {
        unit_ = unit;
        s.commands = 0;
        ASSERT_NO_FATAL_FAILURE(expect_read(3, kPage, 240 * kPage, 0));
        EXPECT_EQ(s.commands, 240 * kPage / unit);
        ASSERT_NO_FATAL_FAILURE(expect_read(3, kPage + 77, 239 * kPage, 1000));
    }
    EXPECT_EQ(s.odd_commands, 0u);
}

TEST_F(DirectStaged, AShortReadLeavesMostGroupsWithoutWork)
{
    for (uint64_t len : {uint64_t{1}, kPage, 2 * kPage + 1, 33 * kPage})
        ASSERT_NO_FATAL_FAILURE(expect_read(GD_STAGED_QUEUES, kPage + 7, len, kPage - 1)) << len;
}

// As in a graph: each group has a share of its own, and its own error.
TEST_F(DirectStaged, GroupsWithoutWordsShareEvenly)
{
    direct_staged_rig rig = rig_of(s, 4, kPage, whole, 0);
    int err;
    rig.parts = nullptr;
    for (bool fails : {false, true}) {
        for (uint32_t rank = 0; rank < 4; rank++) {
            if (fails && rank == 2)
                s.status_of_next = NVME_ERR_UNRECOVERED_READ;
            EXPECT_FALSE(direct_staged_rig_read(&rig, rank, &err)) << "none is the last";
            EXPECT_EQ(err, fails && rank == 2 ? -EIO : 0);
        }
        EXPECT_TRUE(fails || s.holds(kPage, whole, 0));
    }
}

// The group whose turn it was waits for a queue of another one.
TEST_F(DirectStaged, GroupsWithoutWordsShareTheQueuesThatAreLeft)
{
    direct_staged_rig rig = rig_of(s, 4, kPage, whole, 0);
    std::atomic<int> errors{0};
    rig.parts = nullptr;
    s.locks[1] = s.locks[2] = GD_LOST;
    in_threads(4, [&](uint32_t rank) {
        int err;
        direct_staged_rig_read(&rig, rank, &err);
        errors += err != 0;
    });
    EXPECT_EQ(errors, 0);
    EXPECT_TRUE(s.holds(kPage, whole, 0));
    EXPECT_EQ(s.lost_queues(), 2u);
}

// Other readers have the queues: a group without one is not missed.
TEST_F(DirectStaged, GroupsThatGetNoQueueInTimeAreNotNeeded)
{
    const direct_staged_rig rig = rig_of(s, 2, kPage, whole, 0);
    int err;
    EXPECT_FALSE(direct_staged_rig_read(&rig, 0, &err));
    for (uint32_t q = 0; q < 4; q++)
        __atomic_store_n(&s.locks[q], GD_TAKEN, __ATOMIC_RELEASE);
    s.file.set.command_ns = 50 * kMs;
    EXPECT_TRUE(direct_staged_rig_read(&rig, 1, &err));
    EXPECT_EQ(err, 0);
    EXPECT_TRUE(s.holds(kPage, whole, 0));
    expect_ended();
    EXPECT_EQ(read(4, kPage, whole, 0), -ETIMEDOUT);
}

TEST_F(DirectStaged, LeasesThatHaveEndedReadNothing)
{
    s.lease = GD_LEASE_REVOKED;
    for (uint32_t groups : {1u, 4u})
        EXPECT_EQ(read(groups, kPage, whole, 0), -ESTALE);
    EXPECT_EQ(s.commands, 0u);
    s.file.set.n_queues = 0;
    EXPECT_EQ(read(4, kPage, whole, 0), -ESTALE);
}

// Of commands that the end of the leases has lost, or refused.
TEST_F(DirectStaged, LeasesThatEndMeanwhileEndTheRead)
{
    for (bool refuses : {false, true}) {
        Stack fresh{4, 64, 60};
        fresh.stage_all();
        seen = 0;
        fresh.on_command = [&] {
            if (++seen < 20)
                return true;
            __atomic_store_n(&fresh.lease, GD_LEASE_REVOKED, __ATOMIC_RELAXED);
            fresh.status_of_next = refuses ? NVME_ERR_SQ_DELETED : 0;
            return refuses;
        };
        EXPECT_EQ(read(fresh, 4, kPage, whole, 0), -ESTALE) << refuses;
    }
}

TEST_F(DirectStaged, AReadThatIsCancelledIsNotBegun)
{
    uint32_t cancel = 1;
    cancel_ = &cancel;
    for (uint32_t groups : {1u, 4u})
        EXPECT_EQ(read(groups, kPage, whole, 0), -ECANCELED);
    EXPECT_EQ(s.commands, 0u);
    cancel = 0;
    expect_read(4, kPage, whole, 0);
}

TEST_F(DirectStaged, AReadThatIsCancelledMeanwhileEnds)
{
    uint32_t cancel = 0;
    cancel_ = &cancel;
    s.on_command = [&] {
        if (++seen == 20) { // for longer than groups go without a check
            __atomic_store_n(&cancel, 1, __ATOMIC_RELAXED);
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        return true;
    };
    EXPECT_EQ(read(1, kPage, whole, 0), -ECANCELED);
    EXPECT_EQ(s.lost_queues(), 0u);
    EXPECT_LT(s.commands, whole / GD_STAGED_ALL);
}

} // namespace
