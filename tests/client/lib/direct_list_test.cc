/* SPDX-License-Identifier: BSD-2-Clause */
// Tests lists of the direct path, through queues of their own and through shared queues.
#include <errno.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "tests/client/lib/direct_take_rig.h"
}
#include "tests/client/lib/direct_stack.h"
#include "tests/threads.h"

namespace
{

// --- Queues that other warps take, too -----------------------------------------------------------

using direct_stack::Stack;

constexpr uint64_t kStep = 1000, kPatience = 100 * kStep;

struct Take : Stack {
    explicit Take(uint32_t n_queues) : Stack(n_queues, 4, 3) { file.set.command_ns = kPatience; }
    struct direct_take take = {1, kStep, 0, 0, 0};
};

TEST(DirectTake, AQueueThatIsLostToOthersIsTriedAgain)
{
    Take t(3);
    t.take.losses = 20;
    EXPECT_EQ(direct_take(&t.file, &t.take), 0);
    EXPECT_EQ(t.take.tries, 21u);
    EXPECT_EQ(t.lock(t.take.queue), GD_TAKEN);
}

TEST(DirectTake, AGroupThatLosesEveryQueueStopsByTheDeadline)
{
    for (uint32_t queues : {1u, 3u}) {
        Take t(queues);
        t.take.losses = UINT_MAX;
        EXPECT_EQ(direct_take(&t.file, &t.take), -ETIMEDOUT);
        EXPECT_GE(t.take.now_ns, kPatience);
        EXPECT_LT(t.take.now_ns, 2 * kPatience);
        EXPECT_GT(t.take.tries, 10u);
        EXPECT_TRUE(GD_FREE(t.lock(t.take.queue))) << "it is others' to give back";
    }
}

TEST(DirectTake, WhereAllAreTakenTheWaitEndsByTheDeadline)
{
    Take t(2);
    t.locks = {GD_TAKEN, GD_TAKEN};
    EXPECT_EQ(direct_take(&t.file, &t.take), -ETIMEDOUT);
    EXPECT_GE(t.take.now_ns, kPatience);
    EXPECT_LT(t.take.now_ns, 2 * kPatience);
}

// The last check of the leases is recent, and does not count.
TEST(DirectTake, IfAllQueuesAreLostTheErrorOfTheLeasesIsImmediate)
{
    for (uint32_t lease : {GD_LEASE_VALID, GD_LEASE_REVOKED}) {
        Take t(2);
        t.locks = {GD_LOST, GD_LOST};
        t.lease = lease;
        t.take.now_ns = *t.file.checked_ns = 10 * GD_CHECK_NS;
        EXPECT_EQ(direct_take(&t.file, &t.take), lease == GD_LEASE_VALID ? -ETIMEDOUT : -ESTALE);
        EXPECT_LT(t.take.now_ns, 10 * GD_CHECK_NS + 10 * kStep);
    }
}

// Time may have passed while the thread was not scheduled: a free queue is taken all the same.
TEST(DirectTake, ATryThatSucceedsAfterTheDeadlineCounts)
{
    Take t(2);
    t.take.losses = 1;
    t.take.step_ns = 2 * kPatience;
    EXPECT_EQ(direct_take(&t.file, &t.take), 0);
    EXPECT_EQ(t.take.tries, 2u);
}

// --- Lists as warps read them: each of several groups of 32 lanes a share ------------------------

using direct_stack::address, direct_stack::kLba, direct_stack::kPage, direct_stack::kPages,
    direct_stack::Stack;

constexpr size_t kStart = kPage + 20; // of the memory, what places are counted from
constexpr int32_t kUntouched = INT32_MIN;

using List = std::vector<struct gq_read_desc>;

// Of any alignment, side by side, with gaps, in holes and past the end too.
List any_list(const Stack &s, unsigned n, unsigned seed)
{
    std::mt19937 rng(seed);
    List list;
    uint64_t at = 0;
    for (unsigned i = 0; i < n; i++) {
        uint64_t offset = rng() % (s.file.map.end + kPage);
        auto len = static_cast<uint32_t>(rng() % (i % 10 ? 700 : 3 * kPage));
        if (i % 2) {
            offset -= offset % kLba;
            at += 4 - at % 4;
            len = kLba;
        }
        list.push_back({offset, at, len, kUntouched});
        at += len + 3;
    }
    EXPECT_LT(kStart + at, kPages * kPage);
    return list;
}

// One thread for each share: what each returned.
std::vector<int> read_shares(Stack &s, List &list, uint32_t groups,
                             struct gd_parts *parts = nullptr)
{
    std::vector<int> returned(groups);
    in_threads(groups, [&](uint32_t rank) {
        returned[rank] = direct_list_read(&s.file, address(s, kStart), list.data(),
                                          static_cast<uint32_t>(list.size()), rank, groups, parts);
    });
    return returned;
}

int32_t bytes_of(const Stack &s, const struct gq_read_desc &a)
{
    return static_cast<int32_t>(gq_read_bytes(&s.file.map, a.file_offset, a.len));
}

void expect_read(const Stack &s, const List &list)
{
    for (size_t i = 0; i < list.size(); i++) {
        ASSERT_EQ(list[i].result, bytes_of(s, list[i])) << i;
        if (list[i].result) {
            ASSERT_TRUE(s.holds(kStart + list[i].at, static_cast<uint64_t>(list[i].result),
                                list[i].file_offset))
                << i;
        }
    }
}

// Its words are ready for the next list.
void expect_ended(const struct gd_parts &p, uint32_t runs)
{
    EXPECT_EQ(p.dealing.next, 0u);
    EXPECT_EQ(p.dealing.left, 0u);
    EXPECT_EQ(p.dealing.runs, runs);
    EXPECT_EQ(p.left, 0u);
    EXPECT_EQ(p.errnum, 0u);
}

void read_by_groups(struct gd_parts *parts)
{
    uint32_t runs = 0;

    for (unsigned n : {1u, 8u, 31u, 32u, 33u, 64u, 700u}) {
        for (uint32_t groups : {1u, 2u, 5u, GQ_QUEUES_OF_LONG + 3}) {
            Stack s(3, 8, 30);
            List list = any_list(s, n, n + groups);
            EXPECT_EQ(read_shares(s, list, groups, parts), std::vector<int>(groups, 0)) << n;
            ASSERT_NO_FATAL_FAILURE(expect_read(s, list)) << n << " by " << groups;
            if (parts)
                expect_ended(*parts, ++runs);
        }
    }
}

TEST(DirectList, SharesAreDealtWithoutGaps)
{
    read_by_groups(nullptr);
}

TEST(DirectList, GroupsDealTheListByACounter)
{
    struct gd_parts parts = {};
    read_by_groups(&parts);
}

// Groups of several launches at a time, each of which knows only the number of its launch.
TEST(DirectList, GroupsOfALaunchFindTheSameWordsAndTheLastFreesThem)
{
    constexpr unsigned kLaunches = 5, kGroups = 4, kRounds = 50;
    Stack s(1, 8, 30);
    struct gd_parts_table table = {};
    for (unsigned round = 0; round < kRounds; round++) {
        std::atomic<unsigned> last{0}, alone{0};
        in_threads(kLaunches * kGroups, [&](unsigned i) {
            struct gd_parts *p = parts_rig_take(&s.file, &table, 1 + i % kLaunches);
            int err = i / kLaunches == 1 ? -EIO : 0;
            if (__atomic_add_fetch(&p->dealing.next, 1, __ATOMIC_RELAXED) == kGroups) {
                alone++;
                __atomic_store_n(&p->dealing.next, 0, __ATOMIC_RELAXED);
            }
            if (parts_rig_leave(&table, p, kGroups, &err) && err == -EIO)
                last++;
        });
        ASSERT_EQ(alone, kLaunches) << "each launch had words of its own";
        ASSERT_EQ(last, kLaunches) << "its last group got the error";
        for (uint64_t number : table.number)
            ASSERT_EQ(number, 0u);
    }
}

TEST(DirectList, ALaunchWithoutWordsGivesUpAfterTheDeadline)
{
    Stack s(1, 8, 30);
    struct gd_parts_table table = {};
    s.file.set.command_ns = 20 * 1000000;
    for (uint64_t &number : table.number)
        number = 7;
    EXPECT_EQ(parts_rig_take(&s.file, &table, 8), nullptr);
    table.number[5] = 0;
    EXPECT_EQ(parts_rig_take(&s.file, &table, 8), &table.parts[5]);
    EXPECT_EQ(parts_rig_take(&s.file, &table, 8), &table.parts[5]);
}

TEST(DirectList, GroupsWithoutQueuesGiveEachPieceAnError)
{
    for (uint32_t groups : {1u, 4u, GQ_QUEUES_OF_LONG + 3}) {
        struct gd_parts parts = {};
        Stack s(2, 8, 30);
        List list = any_list(s, 300, 3);

        s.lease = GD_LEASE_REVOKED;
        EXPECT_EQ(read_shares(s, list, groups), std::vector<int>(groups, -ESTALE));
        for (const struct gq_read_desc &a : list)
            ASSERT_EQ(a.result, -ESTALE);
        list = any_list(s, 300, 3);
        read_shares(s, list, groups, &parts);
        for (const struct gq_read_desc &a : list)
            ASSERT_EQ(a.result, -ESTALE);
        EXPECT_EQ(s.commands, 0u);
        expect_ended(parts, 1);
    }
}

// Pieces of one length, of which a share of `groups` is read alone: how many have a result?
ptrdiff_t count_read(uint32_t len, uint32_t rank, uint32_t groups, bool staged = false)
{
    Stack s(1, 8, 30);
    if (staged)
        s.stage_all();
    List list;
    for (unsigned i = 0; i < 2 * groups; i++)
        list.push_back({i * kLba, i * kLba, len, kUntouched});
    EXPECT_EQ(direct_list_read(&s.file, address(s, kStart), list.data(),
                               static_cast<uint32_t>(list.size()), rank, groups, nullptr),
              0);
    return std::count_if(list.begin(), list.end(),
                         [](const struct gq_read_desc &a) { return a.result != kUntouched; });
}

TEST(DirectList, LongPiecesAreSharedByFewGroups)
{
    constexpr uint32_t kGroups = GQ_QUEUES_OF_LONG + 8;
    EXPECT_EQ(count_read(GQ_LONG_READ, GQ_QUEUES_OF_LONG, kGroups), 0);
    EXPECT_EQ(count_read(GQ_LONG_READ - 1, GQ_QUEUES_OF_LONG, kGroups), 2);
    // 40 pieces in groups of two: eight have four pieces, four have two
    EXPECT_EQ(count_read(GQ_LONG_READ, 0, kGroups), 4);
    EXPECT_EQ(count_read(GQ_LONG_READ, GQ_QUEUES_OF_LONG - 1, kGroups), 2);
    // Where all is staged, longer ones count as short.
    EXPECT_EQ(count_read(GD_STAGED_QUEUE / GD_GROUP, GQ_QUEUES_OF_LONG, kGroups, true), 0);
    EXPECT_EQ(count_read(GQ_LONG_READ, GQ_QUEUES_OF_LONG, kGroups, true), 2);

    Stack s(3, 8, 30);
    List list;
    for (unsigned i = 0; i < 40; i++)
        list.push_back({i * kLba, i * (GQ_LONG_READ + 4u), GQ_LONG_READ, kUntouched});
    EXPECT_EQ(read_shares(s, list, kGroups), std::vector<int>(kGroups, 0));
    expect_read(s, list);
}

TEST(DirectList, TheFirstErrorOfEachShareIsReported)
{
    Stack s(2, 16, 30);
    List list = any_list(s, 256, 6); // in turns of 32
    list[70] = {0, kPages * kPage, 1, kUntouched};
    list[72] = {0, 0, 0x80000000u, kUntouched};
    list[200] = {0, 0, UINT32_MAX, kUntouched};
    list[201] = {0, UINT64_MAX, 1, kUntouched};
    EXPECT_EQ(read_shares(s, list, 2), (std::vector<int>{-EFAULT, 0}));
    for (size_t i : {72, 200})
        EXPECT_EQ(list[i].result, -EINVAL) << i;
    for (size_t i : {70, 201})
        EXPECT_EQ(list[i].result, -EFAULT) << i;
    for (size_t i : {201, 200, 72, 70})
        list.erase(list.begin() + static_cast<ssize_t>(i));
    expect_read(s, list);
}

TEST(DirectList, AnErrorOfTheDriveFailsOnePiece)
{
    Stack s(1, 8, 1);
    List list;
    for (unsigned i = 0; i < 100; i++)
        list.push_back({i * 8 % (2 * kPage) / kLba * kLba, i * kLba, kLba, kUntouched});
    s.status_of_next = 0x281; // unrecovered read error
    EXPECT_EQ(read_shares(s, list, 1), std::vector<int>{-EIO});
    size_t failed = 0;
    for (size_t i = 0; i < list.size(); i++) {
        failed += list[i].result == -EIO;
        if (list[i].result == -EIO)
            list[i].result = 0;
        else
            ASSERT_EQ(list[i].result, static_cast<int32_t>(kLba)) << i;
    }
    EXPECT_EQ(failed, 1u);
}

// Returns how many reads are stale. All others have their results.
ptrdiff_t expect_read_or_stale(const Stack &s, const List &list)
{
    ptrdiff_t stale = 0;
    for (size_t i = 0; i < list.size(); i++) {
        stale += list[i].result == -ESTALE;
        if (list[i].result != -ESTALE) {
            EXPECT_EQ(list[i].result, bytes_of(s, list[i])) << i;
        }
    }
    return stale;
}

// Reads sent before that may have completed; every other read has an error.
TEST(DirectList, LeasesThatEndMeanwhileEndTheList)
{
    for (uint32_t groups : {1u, 3u}) {
        struct gd_parts parts = {};
        std::atomic<unsigned> seen{0};
        Stack s(groups, 8, 30);
        s.on_command = [&] {
            if (++seen == 50)
                __atomic_store_n(&s.lease, GD_LEASE_REVOKED, __ATOMIC_RELAXED);
            return seen < 50;
        };
        List list = any_list(s, 500, 8);
        bool dealt = groups > 1; // by a counter
        std::vector<int> returned = read_shares(s, list, groups, dealt ? &parts : nullptr);
        EXPECT_GT(expect_read_or_stale(s, list), 300) << groups;
        if (dealt) {
            expect_ended(parts, 1);
        } else {
            EXPECT_EQ(returned, std::vector<int>{-ESTALE});
            EXPECT_EQ(s.lock(0) & GD_LOST, GD_LOST);
        }
    }
}

// A queue is deleted under the list: results that other groups still store are the last one's.
TEST(DirectList, RefusedCommandsOfACounterAreStale)
{
    for (unsigned at : {1u, 50u, 499u}) {
        struct gd_parts parts = {};
        std::atomic<unsigned> seen{0};
        Stack s(3, 8, 30);
        List list;

        s.on_command = [&] {
            if (++seen >= at) {
                __atomic_store_n(&s.lease, GD_LEASE_REVOKED, __ATOMIC_RELAXED);
                s.status_of_next = NVME_ERR_SQ_DELETED;
            }
            return true;
        };
        for (unsigned i = 0; i < 500; i++)
            list.push_back({i * 8 % (2 * kPage) / kLba * kLba, i * kLba, kLba, kUntouched});
        read_shares(s, list, 3, &parts);
        EXPECT_GE(expect_read_or_stale(s, list), static_cast<ptrdiff_t>(list.size() - (at - 1)))
            << at;
        expect_ended(parts, 1);
    }
}

// The queue is deleted under the list: the drive refuses the rest, and each read has an error.
TEST(DirectList, CommandsThatTheLeasesEndHasRefusedAreStale)
{
    for (size_t outside : {size_t{3}, SIZE_MAX}) { // a piece that fails by itself, before that
        std::atomic<unsigned> seen{0};
        Stack s(1, 8, 1);
        s.on_command = [&] {
            if (++seen == 50)
                __atomic_store_n(&s.lease, GD_LEASE_REVOKED, __ATOMIC_RELAXED);
            if (seen >= 50)
                s.status_of_next = NVME_ERR_SQ_DELETED;
            return true;
        };
        List list;
        for (unsigned i = 0; i < 256; i++)
            list.push_back({i * 8 % (2 * kPage) / kLba * kLba,
                            i == outside ? kPages * kPage : i * kLba, kLba, kUntouched});
        int first = outside < list.size() ? -EFAULT : -ESTALE;
        EXPECT_EQ(read_shares(s, list, 1), std::vector<int>{first});
        std::map<int32_t, size_t> results;
        for (const struct gq_read_desc &a : list)
            results[a.result]++;
        size_t failed = outside < list.size();
        EXPECT_EQ(results[-EFAULT], failed);
        EXPECT_EQ(results[kLba], 49u);
        EXPECT_EQ(results[-ESTALE], list.size() - 49 - failed);
    }
}

// There is no word of their lease either.
TEST(DirectList, OfAFileThatWasOpenedWithoutQueuesNothingIsRead)
{
    for (uint32_t groups : {1u, 4u}) {
        struct gd_parts parts = {};
        Stack s(2, 8, 30);
        List list = any_list(s, 100, 9);
        const struct gd_buffer *buffers = s.file.set.buffers;

        s.file.set = {};
        s.file.set.buffers = buffers;
        read_shares(s, list, groups, &parts);
        for (const struct gq_read_desc &a : list)
            ASSERT_EQ(a.result, -ESTALE);
        expect_ended(parts, 1);
    }
}

// As long as a queue's staging has room for 32, or as the controller permits.
TEST(DirectListStaged, CommandsAreAsLongAsLanesHaveStaging)
{
    for (uint32_t most : {4096u, 8192u, 131072u}) {
        Stack s(1, 8, 9);
        s.stage_all();
        s.make_one_extent(64);
        s.file.set.max_command = most;
        List list = {{0, 0, 64 * kPage, kUntouched}};
        EXPECT_EQ(read_shares(s, list, 1)[0], 0);
        expect_read(s, list);
        EXPECT_EQ(s.commands, 64 * kPage / std::min(most, GD_STAGED_QUEUE / GD_GROUP));
    }
}

// --- Lists that a warp reads through shared queues -----------------------------------------------

class DirectSharedList : public ::testing::TestWithParam<bool>
{
  protected:
    void SetUp() override
    {
        if (GetParam())
            s_.stage_all();
        s_.out_of_order = true;
    }
    int read() { return shared_read_list(&s_.file, address(s_, kPage), list_.data(), size()); }
    uint32_t size() const { return static_cast<uint32_t>(list_.size()); }
    bool holds(size_t i)
    {
        const gq_read_desc &p = list_[i];
        return s_.holds(kPage + p.at, static_cast<uint64_t>(p.result), p.file_offset);
    }

    Stack s_{3, 8, 20};
    std::vector<gq_read_desc> list_;
};

TEST_P(DirectSharedList, PiecesGoAnywhereAndEndWithTheFile)
{
    std::mt19937 rng(9);
    uint64_t end = s_.file.map.end, at = 0;
    for (unsigned n : {1u, 31u, 32u, 33u, 100u}) {
        list_.clear();
        for (at = 0; list_.size() < n;) {
            uint32_t len = rng() % (list_.size() % 4 == 0 ? 3 * kPage : 700);
            list_.push_back({rng() % end, at, len, -1});
            at += len + rng() % 3;
        }
        ASSERT_LT(at, (kPages - 2) * kPage);
        EXPECT_EQ(read(), 0);
        for (size_t i = 0; i < n; i++) {
            uint64_t left = end - list_[i].file_offset;
            ASSERT_EQ(list_[i].result,
                      static_cast<int32_t>(std::min<uint64_t>(list_[i].len, left)));
            ASSERT_TRUE(holds(i)) << i << " of " << n;
        }
    }
    EXPECT_EQ(s_.odd_commands, 0u);
    expect_idle(s_);
}

TEST_P(DirectSharedList, EachPieceHasItsErrorAndTheFirstIsTold)
{
    for (uint64_t i = 0; i < 70; i++)
        list_.push_back({i % 5 * kPage, i * kPage, kPage, -1});
    list_[50].len = 1u << 31;
    list_[40].at = kPages * kPage;
    EXPECT_EQ(read(), -EFAULT);
    for (size_t i = 0; i < list_.size(); i++)
        EXPECT_EQ(list_[i].result, i == 40 ? -EFAULT : i == 50 ? -EINVAL : int{kPage}) << i;
    EXPECT_EQ(shared_read_list(&s_.file, address(s_, kPage), list_.data(), 0), 0);
    EXPECT_EQ(shared_read_list(&s_.file, address(s_, kPage), list_.data(), 1u << 31), -EINVAL);
}

TEST_P(DirectSharedList, LeasesThatEndMeanwhileEndTheList)
{
    for (uint64_t i = 0; i < 2000; i++)
        list_.push_back({i % 5 * kPage, i % 64 * kPage, kPage, -1});
    s_.on_command = [this] {
        if (s_.commands >= 20)
            __atomic_store_n(&s_.lease, GD_LEASE_REVOKED, __ATOMIC_RELAXED);
        return s_.commands < 20;
    };
    EXPECT_EQ(read(), -ESTALE);
    EXPECT_EQ(list_.back().result, -ESTALE);
    EXPECT_LT(s_.commands, 200u);
}

TEST_P(DirectSharedList, ChecksTheLeasesAlsoAfterEmptyPieces)
{
    list_.assign(100, {0, 0, 0, -1});
    list_.push_back({0, 0, kPage, -1});
    s_.lease = GD_LEASE_REVOKED;
    s_.forget_check();
    EXPECT_EQ(read(), -ESTALE);
    EXPECT_EQ(list_.front().result, 0);
    EXPECT_EQ(list_.back().result, -ESTALE);
    EXPECT_EQ(s_.commands, 0u);
}

// The queue has seven CIDs. The other two queues must not be lost.
TEST_P(DirectSharedList, ALostCommandEndsTheList)
{
    for (uint64_t i = 0; i < 100; i++)
        list_.push_back({i % 5 * kPage, i % 64 * kPage, kPage, -1});
    s_.file.set.command_ns = 50000000;
    s_.on_command = [] { return false; };
    EXPECT_EQ(read(), -ETIMEDOUT);
    for (const gq_read_desc &p : list_)
        ASSERT_EQ(p.result, -ETIMEDOUT);
    EXPECT_LE(s_.commands, 7u);
}

INSTANTIATE_TEST_SUITE_P(Lists, DirectSharedList, ::testing::Bool(),
                         [](const auto &info) { return info.param ? "staged" : "direct"; });

} // namespace
