/* SPDX-License-Identifier: BSD-2-Clause */
// Reads through shared queues: threads stand for warps.
#include <errno.h>

#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/client/lib/direct_stack.h"

extern "C" {
#include "tests/client/lib/direct_shared_rig.h"
}

namespace
{

using direct_stack::kLba, direct_stack::kPage, direct_stack::kPages, direct_stack::Stack;

uint64_t address(Stack &s, size_t at)
{
    return reinterpret_cast<uint64_t>(s.pages.data()) + at;
}

int64_t read_warp(Stack &s, size_t at, uint64_t len, uint64_t offset)
{
    return shared_read_warp(&s.file, address(s, at), len, offset);
}

// Nothing is claimed, pending or lost, and each queue is free.
void expect_idle(Stack &s)
{
    for (size_t q = 0; q < s.slots.size(); q++) {
        EXPECT_TRUE(GD_FREE(s.locks[q])) << q << ": " << s.locks[q];
        EXPECT_EQ(s.slots[q].lost, 0u) << q;
        for (uint32_t i = 0; i < s.slots[q].n_slots; i++)
            EXPECT_EQ(s.slots[q].taken[i / 32] >> i % 32 & 1, 0u) << q << ", " << i;
        for (uint32_t word : s.slots[q].pending)
            EXPECT_EQ(word, 0u) << q;
    }
}

struct Case {
    const char *name;
    size_t at;
    uint64_t len, offset;
    unsigned commands;
};

class DirectShared : public ::testing::TestWithParam<Case>
{
};

// Extents: 2 pages, 3 pages, 4 of a hole, 2 pages...
TEST_P(DirectShared, TakesAsManyCommandsAsItMust)
{
    const Case &c = GetParam();
    for (unsigned extents : {9u, 50u}) {
        Stack s(1, 8, extents);
        memset(s.pages[0].bytes, 0x5a, kPages * kPage);
        ASSERT_EQ(read_warp(s, c.at, c.len, c.offset), static_cast<int64_t>(c.len));
        EXPECT_TRUE(s.holds(c.at, c.len, c.offset));
        EXPECT_EQ(s.pages[0].bytes[c.at - 1], 0x5a);
        EXPECT_EQ(s.pages[0].bytes[c.at + c.len], 0x5a);
        EXPECT_EQ(s.commands, c.commands);
        expect_idle(s);
    }
}

INSTANTIATE_TEST_SUITE_P(
    Reads, DirectShared,
    ::testing::Values(Case{"a_page", kPage, kPage, 0, 1}, Case{"an_lba", kPage, kLba, 1536, 1},
                      Case{"to_a_multiple_of_4", kPage + 4, kPage, kPage, 1},
                      Case{"two_pages_whole_extent", kPage, 2 * kPage, 0, 1},
                      Case{"in_the_second_extent", kPage, 2 * kPage, 3 * kPage, 1},
                      Case{"behind_a_hole", 2 * kPage, kPage, 9 * kPage, 1},
                      Case{"to_an_odd_address", kPage + 1, kLba, 0, 1},
                      Case{"from_within_an_lba", kPage, kLba, 100, 2},
                      Case{"ends_within_an_lba", kPage, kPage + 100, 0, 2},
                      Case{"over_two_extents", kPage, 2 * kPage, kPage, 2},
                      Case{"over_the_edge_of_a_hole", kPage, 2 * kPage, 4 * kPage, 1},
                      Case{"in_a_hole", kPage, kPage, 5 * kPage, 0}),
    [](const auto &info) { return info.param.name; });

// One warp's reads, of any kind, at random; wrong ones are told.
std::string read_at_random(Stack &s, unsigned seed, size_t at, unsigned rounds)
{
    std::mt19937 rng(seed);
    uint64_t size = s.file.map.end;
    for (unsigned i = 0; i < rounds; i++) {
        uint64_t len = 1 + rng() % (6 * kPage), offset = rng() % (size - len);
        size_t shift = rng() % 64;
        if (i % 2) {
            offset -= offset % kLba;
            len = kPage;
            shift = 0;
        }
        int64_t got = read_warp(s, at + shift, len, offset);
        if (got != static_cast<int64_t>(len) || !s.holds(at + shift, len, offset))
            return std::to_string(len) + " at " + std::to_string(offset) + ": " +
                   std::to_string(got);
    }
    return "";
}

std::string read_lanes_at_random(Stack &s, unsigned seed, size_t at, unsigned rounds)
{
    std::mt19937 rng(seed);
    uint64_t size = s.file.map.end;
    struct shared_read reads[SHARED_LANES];
    for (unsigned i = 0; i < rounds; i++) {
        for (size_t k = 0; k < SHARED_LANES; k++) {
            uint64_t len = i % 2 ? kLba : rng() % 600, offset = rng() % (size - len);
            reads[k] = {address(s, at + k * 640), len, i % 2 ? offset - offset % kLba : offset, 0};
        }
        shared_read_lanes(&s.file, reads);
        for (size_t k = 0; k < SHARED_LANES; k++) {
            if (reads[k].result != static_cast<int64_t>(reads[k].len) ||
                !s.holds(at + k * 640, reads[k].len, reads[k].offset))
                return std::to_string(reads[k].len) + " at " + std::to_string(reads[k].offset) +
                       ": " + std::to_string(reads[k].result);
        }
    }
    return "";
}

TEST(DirectSharedMany, WarpsAndLanesShareQueuesAndSlots)
{
    for (uint32_t depth : {2u, 5u, 64u, 100u}) {
        Stack s(depth == 64 ? 4 : 1, depth, 20);
        std::vector<std::thread> threads;
        std::vector<std::string> wrong(8);
        for (size_t t = 0; t < wrong.size(); t++) {
            threads.emplace_back([&s, &wrong, t] {
                size_t at = (1 + t * 10) * kPage;
                wrong[t] =
                    t % 2 ? read_lanes_at_random(s, t, at, 10) : read_at_random(s, t, at, 60);
            });
        }
        for (std::thread &t : threads)
            t.join();
        for (const std::string &w : wrong)
            EXPECT_EQ(w, "") << depth;
        expect_idle(s);
    }
}

} // namespace
