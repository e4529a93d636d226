/* SPDX-License-Identifier: BSD-2-Clause */
// Space: what the allocator gives, when it gives it again, and what the maps say.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "tests/fusefs/core/storage_fixture.h"

namespace
{

// --- One map against a vector of bits -----------------------------------------------------------

struct Bits {
    std::vector<uint64_t> words = std::vector<uint64_t>(FFS_GROUP_WORDS);
    bool get(uint32_t bit) const { return words[bit / 64] >> bit % 64 & 1; }
};

ffs_found slow_find(const Bits &bits, uint32_t from, uint32_t to, uint32_t want, unsigned align)
{
    ffs_found best = {0, 0};
    uint32_t pos = from;
    while (pos < to && best.len < want) {
        uint32_t start = pos;
        while (start < to && bits.get(start))
            start++;
        uint32_t end = start;
        while (end < to && !bits.get(end))
            end++;
        uint32_t aligned = (start + align - 1) / align * align;
        uint32_t len = aligned < end ? (end - aligned) / align * align : 0;
        if (len > best.len)
            best = {aligned, std::min(len, want)};
        pos = end + 1;
    }
    return best;
}

TEST(Map, FindsTheSameAsAScanOfSingleBits)
{
    std::mt19937 random(1);
    for (int round = 0; round < 300; round++) {
        Bits bits;
        for (int i = 0; i < 40; i++) {
            uint32_t at = random() % LAY_GROUP_BLOCKS;
            uint32_t len = std::min<uint32_t>(1 + random() % 2000, LAY_GROUP_BLOCKS - at);
            ffs_map_set(bits.words.data(), at, len);
            if (i % 3 == 0)
                ffs_map_clear(bits.words.data(), at + len / 3, 1 + len / 3);
        }
        unsigned align = round % 3 ? 1 : LAY_GPU_ALIGN;
        uint32_t want = (1 + random() % 8) * (align == 1 ? random() % 300 + 1 : align);
        uint32_t from = random() % LAY_GROUP_BLOCKS;
        uint32_t to = from + random() % (LAY_GROUP_BLOCKS - from) + 1;
        ffs_found a = ffs_map_find(bits.words.data(), from, to, want, align);
        ffs_found b = slow_find(bits, from, to, want, align);
        EXPECT_EQ(a.len, b.len) << round;
        EXPECT_TRUE(a.len == 0 || a.bit == b.bit) << round;
        EXPECT_EQ(ffs_map_zeros(bits.words.data(), b.bit, LAY_GROUP_BLOCKS) > 0, !bits.get(b.bit));
    }
}

TEST(Map, DetectsWhetherARangeHasOneValue)
{
    Bits bits;
    ffs_map_set(bits.words.data(), 60, 200);
    EXPECT_TRUE(ffs_map_all(bits.words.data(), 60, 200, true));
    EXPECT_FALSE(ffs_map_all(bits.words.data(), 59, 201, true));
    EXPECT_FALSE(ffs_map_all(bits.words.data(), 60, 201, true));
    EXPECT_TRUE(ffs_map_all(bits.words.data(), 0, 60, false));
    EXPECT_FALSE(ffs_map_all(bits.words.data(), 0, 61, false));
    EXPECT_TRUE(ffs_map_all(bits.words.data(), 260, LAY_GROUP_BLOCKS - 260, false));
}

// --- The allocator ------------------------------------------------------------------------------

struct Range {
    uint64_t block, len;
};

class Alloc : public StorageTest
{
  protected:
    void SetUp() override
    {
        make(300u << 20, 4096); // three groups; no handle needs a checkpoint
        ASSERT_EQ(mount(), 0) << why;
    }
    int alloc(uint64_t goal, uint64_t min, uint64_t max, unsigned align, Range *out)
    {
        return handle([&](ffs_tx *tx) {
            return ffs_alloc(tx, goal, min, max, align, &out->block, &out->len);
        });
    }
    int release(const Range &range)
    {
        return handle([&](ffs_tx *tx) { return ffs_free(tx, range.block, range.len); });
    }
    // Commits; false if there was nothing to commit.
    bool commit_changes()
    {
        uint64_t tid = ffs_running_tid(fs);
        EXPECT_EQ(commit(), 0);
        return ffs_running_tid(fs) != tid;
    }
    // All that can be had, in ranges of at most max blocks.
    std::vector<Range> take_all(uint64_t max, unsigned align = 1)
    {
        std::vector<Range> ranges;
        Range range;
        while (alloc(0, align, max, align, &range) == 0)
            ranges.push_back(range);
        return ranges;
    }
};

TEST_F(Alloc, ExtendsFromTheGoalWhenTheGoalIsFree)
{
    Range a, b;
    ASSERT_EQ(alloc(10000, 1, 50, 1, &a), 0);
    EXPECT_EQ(a.block, 10000u);
    EXPECT_EQ(a.len, 50u);
    ASSERT_EQ(alloc(a.block + a.len, 1, 50, 1, &b), 0);
    EXPECT_EQ(b.block, 10050u);
}

TEST_F(Alloc, GpuRunsAreWholeTwoMegabyteUnits)
{
    Range one, whole;
    ASSERT_EQ(alloc(LAY_GPU_ALIGN * 9, 1, 1, 1, &one), 0); // spoils a unit
    // A goal inside a unit is none for a whole one.
    ASSERT_EQ(alloc(LAY_GPU_ALIGN * 20 + 4, LAY_GPU_ALIGN, LAY_GPU_ALIGN, LAY_GPU_ALIGN, &whole),
              0);
    EXPECT_EQ(whole.block % LAY_GPU_ALIGN, 0u);
    for (const Range &range : take_all(2048, LAY_GPU_ALIGN)) {
        EXPECT_EQ(range.block % LAY_GPU_ALIGN, 0u);
        EXPECT_EQ(range.len % LAY_GPU_ALIGN, 0u);
        EXPECT_TRUE(one.block < range.block || one.block >= range.block + range.len);
    }
}

// The search for the second place finds no unit where the first one was.
TEST_F(Alloc, AChunkWithoutRoomForItsCopyTakesNothing)
{
    const uint64_t goals[] = {0, LAY_GPU_ALIGN * 130}; // groups 0 and 2
    uint64_t blocks[2];
    Range unit, parts, again;
    // All of them are in group 1.
    ASSERT_EQ(alloc(LAY_GPU_ALIGN * 100, LAY_GPU_ALIGN, LAY_GPU_ALIGN, LAY_GPU_ALIGN, &unit), 0);
    ASSERT_EQ(alloc(LAY_GPU_ALIGN * 118 + 4, 600, 600, 1, &parts), 0);
    take_all(100000);
    ASSERT_EQ(release(unit), 0);
    ASSERT_EQ(release(parts), 0);
    ASSERT_EQ(commit_freed(), 0);
    uint64_t free_before = free_blocks();
    ASSERT_EQ(free_before, unit.len + parts.len);
    EXPECT_EQ(handle([&](ffs_tx *tx) {
                  EXPECT_EQ(ffs_alloc_chunk(tx, goals, 2, blocks), -ENOSPC);
                  return 0;
              }),
              0);
    EXPECT_EQ(free_blocks(), free_before);
    ASSERT_EQ(alloc(0, LAY_GPU_ALIGN, LAY_GPU_ALIGN, LAY_GPU_ALIGN, &again), 0);
    EXPECT_EQ(again.block, unit.block);
}

TEST_F(Alloc, AllocatesEveryBlockOnceAndStopsAtTheReserve)
{
    uint64_t free_before = free_blocks();
    std::set<uint64_t> seen;
    for (const Range &range : take_all(700)) {
        for (uint64_t b = range.block; b < range.block + range.len; b++)
            EXPECT_TRUE(seen.insert(b).second && lay_range_ok(ffs_geometry(fs), b, 1));
    }
    EXPECT_EQ(seen.size(), free_before);
    EXPECT_EQ(free_blocks(), 0u);
}

TEST_F(Alloc, KeepsBlocksForTruncateWhenFull)
{
    take_all(100000);
    uint64_t block;
    int err = 0;
    for (int i = 0; i < 10000 && !err; i++)
        err = handle([&](ffs_tx *tx) { return ffs_alloc_meta(tx, 0, &block); });
    EXPECT_EQ(err, -ENOSPC);
    EXPECT_EQ(handle([&](ffs_tx *tx) {
                  ffs_tx_use_reserve(tx);
                  return ffs_alloc_meta(tx, 0, &block);
              }),
              0);
}

TEST_F(Alloc, FreedBlocksAreReusedOnlyAfterALaterCommit)
{
    Range a, b;
    ASSERT_EQ(alloc(20000, 64, 64, 1, &a), 0);
    ASSERT_EQ(commit(), 0);
    ASSERT_EQ(release(a), 0);
    ASSERT_EQ(alloc(20000, 64, 64, 1, &b), 0);
    EXPECT_NE(b.block, a.block);
    ASSERT_EQ(commit(), 0);
    ASSERT_EQ(alloc(20000, 64, 64, 1, &b), 0);
    EXPECT_NE(b.block, a.block) << "the loss of the newest commit must cost nothing";
    ASSERT_EQ(commit(), 0);
    ASSERT_EQ(alloc(20000, 64, 64, 1, &b), 0);
    EXPECT_EQ(b.block, a.block);
}

TEST_F(Alloc, FreedBlocksAreReusedAfterAnEmptyCommit)
{
    Range a, b;

    ASSERT_EQ(alloc(20000, 64, 64, 1, &a), 0);
    ASSERT_EQ(release(a), 0);
    ASSERT_EQ(commit(), 0);
    ASSERT_EQ(commit_freed(), 0);
    ASSERT_EQ(alloc(20000, 64, 64, 1, &b), 0);
    EXPECT_EQ(b.block, a.block);
}

TEST_F(Alloc, PinnedBlocksAreReusedAfterThePinIsDropped)
{
    Range a, b;
    ffs_pin *pin, *other;
    ASSERT_EQ(alloc(20000, 64, 64, 1, &a), 0);
    ffs_segment middle = {0, 16 << 12, (a.block + 8) << 12, false};
    ASSERT_EQ(ffs_pin_add(fs, &middle, 1, &pin), 0);
    ASSERT_EQ(ffs_pin_add(fs, &middle, 1, &other), 0);
    ASSERT_EQ(release(a), 0);
    ASSERT_EQ(commit_freed(), 0);
    ASSERT_EQ(alloc(20000, 8, 64, 1, &b), 0);
    EXPECT_EQ(b.block, a.block);
    EXPECT_EQ(b.len, 8u) << "up to the pinned blocks";
    ffs_pin_drop(fs, pin);
    ASSERT_EQ(alloc(20008, 1, 16, 1, &b), 0);
    EXPECT_EQ(b.block, 20024u);
    ffs_pin_drop(fs, other);
    ASSERT_EQ(alloc(20008, 1, 16, 1, &b), 0);
    EXPECT_EQ(b.block, 20008u);
    EXPECT_EQ(b.len, 16u);
}

TEST_F(Alloc, APinMayEndBeforeTheBlocksAreFreed)
{
    Range a, b;
    ffs_pin *pin;
    ASSERT_EQ(alloc(20000, 4, 4, 1, &a), 0);
    ffs_segment all[2] = {{0, 4096, FFS_HOLE, false}, {4096, 4 << 12, a.block << 12, false}};
    ASSERT_EQ(ffs_pin_add(fs, all, 2, &pin), 0);
    ffs_pin_drop(fs, pin);
    ASSERT_EQ(release(a), 0);
    ASSERT_EQ(commit_freed(), 0);
    ASSERT_EQ(alloc(20000, 4, 4, 1, &b), 0);
    EXPECT_EQ(b.block, a.block);
}

TEST_F(Alloc, AFullDeviceIsUsableAgainRightAfterFreeing)
{
    std::vector<Range> ranges = take_all(5000);
    Range range;
    ASSERT_EQ(release(ranges[1]), 0);
    // The first attempt finds the blocks waiting for commits, and the next handle makes them.
    alloc(0, 5000, 5000, 1, &range);
    EXPECT_EQ(alloc(0, 5000, 5000, 1, &range), 0);
    EXPECT_EQ(range.block, ranges[1].block);
}

TEST_F(Alloc, FreeingABlockTwiceIsDetected)
{
    Range a;
    ASSERT_EQ(alloc(0, 10, 10, 1, &a), 0);
    ASSERT_EQ(release(a), 0);
    EXPECT_EQ(release({a.block + 3, 1}), -EUCLEAN);
    EXPECT_EQ(release(a), -EROFS);
}

TEST_F(Alloc, FreeingAPartlyFreeRangeIsDetected)
{
    Range a;
    ASSERT_EQ(alloc(0, 10, 10, 1, &a), 0);
    ASSERT_EQ(release({a.block, 5}), 0);
    EXPECT_EQ(release(a), -EUCLEAN);
}

TEST_F(Alloc, FreeingTheJournalIsDetected)
{
    EXPECT_EQ(release({ffs_geometry(fs)->log_start, 1}), -EUCLEAN);
}

// Random operations against a model of the owners of blocks.
TEST_F(Alloc, NeverAllocatesUsedBusyOrPinnedBlocks)
{
    std::mt19937 random(7);
    std::map<uint64_t, uint64_t> taken; // block -> len
    std::vector<Range> busy;            // freed, not committed
    std::vector<Range> waiting;         // freed by the newest commit
    auto overlaps = [](const Range &a, const Range &b) {
        return a.block < b.block + b.len && b.block < a.block + a.len;
    };
    bool starved = false;
    // A handle that follows one without luck commits first, so that all are free.
    auto begin = [&] {
        if (starved) {
            busy.clear();
            waiting.clear();
        }
        starved = false;
    };
    for (int step = 0; step < 3000; step++) {
        unsigned what = random() % 16;
        if (what < 9) {
            Range range;
            uint64_t max = 1 + random() % 600;
            begin();
            int err = alloc(random() % 70000, 1 + random() % max, max, 1, &range);
            ASSERT_TRUE(err == 0 || err == -ENOSPC);
            starved = err != 0;
            if (err)
                continue;
            auto next = taken.lower_bound(range.block);
            ASSERT_TRUE(next == taken.end() || next->first >= range.block + range.len);
            ASSERT_TRUE(next == taken.begin() ||
                        std::prev(next)->first + std::prev(next)->second <= range.block);
            for (const std::vector<Range> *all : {&busy, &waiting}) {
                for (const Range &b : *all)
                    ASSERT_FALSE(overlaps(range, b)) << step;
            }
            taken[range.block] = range.len;
        } else if (what < 15 && !taken.empty()) {
            auto it = std::next(taken.begin(), static_cast<long>(random() % taken.size()));
            begin();
            ASSERT_EQ(release({it->first, it->second}), 0);
            busy.push_back({it->first, it->second});
            taken.erase(it);
        } else if (what == 15) {
            if (commit_changes())
                waiting = std::move(busy);
            busy.clear();
        }
    }
    uint64_t sum = 0;
    for (auto &[block, len] : taken)
        sum += len;
    uint64_t left = free_blocks();
    for (auto &[block, len] : taken)
        ASSERT_EQ(release({block, len}), 0);
    EXPECT_EQ(free_blocks(), left + sum);
}

} // namespace
