/* SPDX-License-Identifier: BSD-2-Clause */
// Tests the cache as warps use it: threads execute 32 lanes each, and the drive
// counts the commands.
#include <errno.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tests/client/lib/cache_stack.h"
#include "tests/threads.h"

namespace
{

using cache_stack::Cached, cache_stack::kSlots, direct_stack::expect_idle, direct_stack::kLba,
    direct_stack::kPage, direct_stack::Stack;

constexpr uint64_t kFilePages = 600;

class CacheLanes : public ::testing::Test
{
  protected:
    void SetUp() override { stack_.make_one_extent(kFilePages); }
    Stack stack_{2, 16, 1};
};

TEST_F(CacheLanes, AHitTakesNoCommand)
{
    Cached c(stack_, 12, 0, 16);
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(c.read(kPage, 5 * kPage), static_cast<int64_t>(kPage));
    EXPECT_EQ(c.read(7, 5 * kPage + 4089), 7);
    EXPECT_EQ(stack_.commands, 1u);
    EXPECT_EQ(c.misses(), 1u);
    EXPECT_EQ(c.hits(), 3u);
    EXPECT_EQ(c.bypasses(), 0u);
    c.expect_idle_words();
    expect_idle(stack_);
}

TEST_F(CacheLanes, ReadsCrossLinesAndEndWithTheFile)
{
    for (uint32_t shift : {9u, 12u, 13u}) {
        Cached c(stack_, shift, 1, 16);
        std::mt19937 rng(shift);
        uint64_t size = kFilePages * kPage;
        for (int i = 0; i < 200; i++) {
            uint64_t n = 1 + rng() % (4 * kPage), offset = rng() % size;
            auto want = static_cast<int64_t>(std::min(n, size - offset));
            ASSERT_EQ(c.read(n, offset), want) << n << " at " << offset;
        }
        EXPECT_EQ(c.read(kPage, size - 3), 3);
        EXPECT_EQ(c.read(kPage, size), 0);
        EXPECT_EQ(c.read(1, UINT64_MAX), 0);
        EXPECT_GT(c.misses(), 0u);
        c.expect_idle_words();
    }
}

// The last line of the file is longer than the rest of the file.
TEST_F(CacheLanes, TheLastLineMayBeShort)
{
    stack_.file.map.end = 9 * kPage + 100;
    Cached c(stack_, 13, 0, 16);
    EXPECT_EQ(c.read(kPage, 8 * kPage + 50), static_cast<int64_t>(kPage));
    EXPECT_EQ(c.read(2 * kPage, 8 * kPage), static_cast<int64_t>(kPage + 100));
    EXPECT_EQ(c.misses(), 1u);
}

// One warp fills the line, and the others wait for it.
TEST_F(CacheLanes, ALineIsReadOnceForManyWarps)
{
    Cached c(stack_, 12, 0, 16);
    for (unsigned turn = 0; turn < 20; turn++) {
        std::atomic<unsigned> ready{0}, wrong{0};
        in_threads(8, [&](int) {
            for (ready++; ready < 8;)
                std::this_thread::yield();
            wrong += c.read(kPage, turn * kPage) != static_cast<int64_t>(kPage);
        });
        EXPECT_EQ(wrong, 0u);
    }
    EXPECT_EQ(stack_.commands, 20u);
    EXPECT_EQ(c.misses(), 20u);
    EXPECT_EQ(c.hits(), 140u);
    c.expect_idle_words();
}

// CLOCK passes a line that was hit since the last turn.
TEST_F(CacheLanes, ClockKeepsALineThatIsRead)
{
    Cached c(stack_, 12, 0, 16);
    for (uint64_t i = 1; i < 200; i++) {
        EXPECT_EQ(c.read(kPage, 0), static_cast<int64_t>(kPage));
        EXPECT_EQ(c.read(kPage, i * kPage), static_cast<int64_t>(kPage));
    }
    EXPECT_EQ(c.misses(), 200u) << "line 0 once";
    EXPECT_EQ(c.hits(), 198u);
}

// Returns the hits of CLOCK with one hand a set, which inserts lines untouched.
unsigned hits_of_model(const std::vector<uint64_t> &lines, unsigned set_shift, unsigned ways)
{
    struct Way {
        uint64_t line = UINT64_MAX;
        bool touched = false;
    };
    std::vector<std::vector<Way>> sets(1u << set_shift, std::vector<Way>(ways));
    std::vector<unsigned> hands(sets.size());
    unsigned hits = 0;
    for (uint64_t line : lines) {
        size_t set = (line ^ line >> set_shift) & (sets.size() - 1);
        std::vector<Way> &s = sets[set];
        auto is = [&](const Way &w) { return w.line == line; };
        auto way = std::find_if(s.begin(), s.end(), is);
        if (way != s.end()) {
            hits++;
            way->touched = true;
            continue;
        }
        for (; s[hands[set]].touched; hands[set] = (hands[set] + 1) % ways)
            s[hands[set]].touched = false;
        s[hands[set]] = {line};
        hands[set] = (hands[set] + 1) % ways;
    }
    return hits;
}

TEST_F(CacheLanes, TheHitRateIsThatOfClock)
{
    Cached c(stack_, 9, 3, 20);
    std::mt19937 rng(11);
    std::geometric_distribution<uint64_t> skewed(0.01);
    std::vector<uint64_t> lines(8000);
    for (uint64_t &line : lines)
        line = skewed(rng) * 37 % (kFilePages * 8);
    for (uint64_t line : lines)
        ASSERT_EQ(c.read(8, line * kLba + 16), 8);
    double model = hits_of_model(lines, 3, 20);
    EXPECT_NEAR(static_cast<double>(c.hits()) / 8000, model / 8000, 0.02);
    EXPECT_GT(model, 1000);
}

// --- Elements -----------------------------------------------------------------

TEST_F(CacheLanes, ElementsOfAnySizeAndPlace)
{
    for (uint32_t size : {1u, 4u, 12u, 100u}) {
        Cached c(stack_, 9, 2, 16);
        std::mt19937 rng(size);
        std::vector<uint64_t> offsets(CACHE_LANES);
        for (int turn = 0; turn < 30; turn++) {
            uint64_t most = turn % 2 ? 64 * kLba : kFilePages * kPage;
            for (uint64_t &o : offsets)
                o = rng() % (most - size) / size * size + turn % 3;
            ASSERT_EQ(c.elements(size, offsets), CACHE_LANES) << size << ", turn " << turn;
        }
        EXPECT_GT(c.hits(), 0u);
        c.expect_idle_words();
        expect_idle(stack_);
    }
}

// The lines that the lanes need are in flight at a time.
TEST_F(CacheLanes, LanesFillTheirLinesTogether)
{
    Cached c(stack_, 9, 2, 16);
    std::vector<uint64_t> offsets(CACHE_LANES);
    for (size_t i = 0; i < offsets.size(); i++)
        offsets[i] = i * kLba + 8;
    EXPECT_EQ(c.elements(4, offsets), CACHE_LANES);
    EXPECT_EQ(stack_.commands, CACHE_LANES);
    EXPECT_GT(stack_.most_held, 1u);
    EXPECT_EQ(c.elements(4, offsets), CACHE_LANES);
    EXPECT_EQ(stack_.commands, CACHE_LANES);
    std::fill(offsets.begin(), offsets.end(), 100 * kLba);
    EXPECT_EQ(c.elements(4, offsets), CACHE_LANES);
    EXPECT_EQ(stack_.commands, CACHE_LANES + 1) << "one line for all lanes";
}

TEST_F(CacheLanes, PrefetchedLinesAreHits)
{
    Cached c(stack_, 9, 3, 16);
    EXPECT_EQ(cache_rig_prefetch(&c.cache(), 50 * kLba, 10 * kLba + 1), 0);
    EXPECT_EQ(c.misses(), 51u);
    EXPECT_EQ(c.read(50 * kLba, 10 * kLba + 1), static_cast<int64_t>(50 * kLba));
    EXPECT_EQ(c.misses(), 51u);
    EXPECT_EQ(stack_.commands, 51u);
    EXPECT_EQ(cache_rig_prefetch(&c.cache(), UINT64_MAX, kFilePages * kPage - 1), 0);
    EXPECT_EQ(c.misses(), 52u);
    EXPECT_EQ(cache_rig_prefetch(&c.cache(), 1, kFilePages * kPage), 0);
    EXPECT_EQ(c.misses(), 52u);
    c.expect_idle_words();
}

// --- Insertion -----------------------------------------------------------------

TEST_F(CacheLanes, ALineIsKeptAtItsSecondTouch)
{
    Cached c(stack_, 12, 0, 16);
    c.cache().second_touch = 1;
    EXPECT_EQ(c.read(8, 5 * kPage), 8);
    EXPECT_EQ(c.words_in(GD_CACHE_VALID), 0u);
    EXPECT_EQ(c.bypasses(), 1u);
    EXPECT_EQ(c.read(8, 5 * kPage), 8);
    EXPECT_EQ(c.words_in(GD_CACHE_VALID), 1u);
    EXPECT_EQ(c.read(8, 5 * kPage), 8);
    EXPECT_EQ(c.misses(), 1u);
    EXPECT_EQ(c.hits(), 1u);
    EXPECT_EQ(stack_.commands, 2u);
    c.expect_idle_words();
}

// Lines that are read once displace no line that is read again.
TEST_F(CacheLanes, AScanDisplacesNothing)
{
    Cached c(stack_, 9, 1, 16);
    c.cache().second_touch = 1;
    for (int turn = 0; turn < 2; turn++) {
        for (uint64_t i = 0; i < 16; i++)
            EXPECT_EQ(c.read(8, i * kLba), 8);
    }
    unsigned kept = c.words_in(GD_CACHE_VALID);
    EXPECT_GE(kept, 8u) << "few of the 16 lines share a word";
    for (uint64_t i = 100; i < 1000; i++)
        EXPECT_EQ(c.read(8, i * kLba), 8);
    uint64_t hits = c.hits();
    for (uint64_t i = 0; i < 16; i++)
        EXPECT_EQ(c.read(8, i * kLba), 8);
    EXPECT_GE(c.hits() - hits, kept);
}

// All lanes together touch each line once, and take one command for it.
TEST_F(CacheLanes, LanesTouchALineOnce)
{
    for (bool staged : {false, true}) {
        Stack s(2, 16, 1);
        s.make_one_extent(kFilePages);
        if (staged)
            s.stage_all();
        Cached c(s, 9, 2, 16);
        c.cache().second_touch = 1;
        std::vector<uint64_t> offsets(CACHE_LANES);
        for (size_t i = 0; i < offsets.size(); i++)
            offsets[i] = i / 4 * kLba + i % 4 * 100;
        EXPECT_EQ(c.elements(4, offsets), CACHE_LANES);
        EXPECT_EQ(s.commands, CACHE_LANES / 4);
        EXPECT_EQ(c.bypasses(), CACHE_LANES);
        EXPECT_EQ(c.words_in(GD_CACHE_VALID), 0u);
        c.expect_idle_words();
        EXPECT_EQ(c.elements(4, offsets), CACHE_LANES);
        EXPECT_EQ(c.words_in(GD_CACHE_VALID), CACHE_LANES / 4);
        EXPECT_EQ(c.elements(4, offsets), CACHE_LANES);
        EXPECT_EQ(s.commands, CACHE_LANES / 2);
        c.expect_idle_words();
        expect_idle(s);
    }
}

// There are fewer free slots than lines, and then none.
TEST_F(CacheLanes, LanesTakeTurnsAtFewSlots)
{
    for (uint32_t taken : {kSlots - 3, kSlots}) {
        Cached c(stack_, 9, 2, 16);
        c.cache().second_touch = 1;
        if (taken == kSlots)
            stack_.file.set.command_ns = 20000000; // of waits, since no command is sent
        for (uint32_t i = 0; i < taken; i++)
            *c.cache().slots |= 1u << i;
        std::vector<uint64_t> offsets(CACHE_LANES);
        for (size_t i = 0; i < offsets.size(); i++)
            offsets[i] = i * kLba;
        int err = 0;
        EXPECT_EQ(c.elements(4, offsets, &err), taken == kSlots ? 0 : CACHE_LANES);
        EXPECT_EQ(err, taken == kSlots ? -ETIMEDOUT : 0);
        EXPECT_EQ(c.words_in(GD_CACHE_VALID), 0u);
        c.expect_idle_words(taken);
    }
}

// Only the elements of the line that the drive cannot read fail.
TEST_F(CacheLanes, AFailureOfASlotFailsItsElements)
{
    Cached c(stack_, 9, 2, 16);
    c.cache().second_touch = 1;
    std::vector<uint64_t> offsets(CACHE_LANES);
    for (size_t i = 0; i < offsets.size(); i++)
        offsets[i] = i / 8 * kLba + i % 8 * 8;
    stack_.on_command = [&] {
        stack_.status_of_next = stack_.commands == 2 ? 0x281 : 0; // unrecovered read error
        return true;
    };
    EXPECT_EQ(c.elements(4, offsets), CACHE_LANES) << "read again without the slot";
    c.expect_idle_words();
    expect_idle(stack_);
}

// --- The end of validity -------------------------------------------------------

TEST_F(CacheLanes, ANewGenerationReadsAgain)
{
    Cached c(stack_, 12, 0, 16);
    EXPECT_EQ(c.read(kPage, 0), static_cast<int64_t>(kPage));
    stack_.on_media(7) ^= 1;
    EXPECT_EQ(c.read(kPage, 0), -EBADMSG) << "the line holds the bytes of before";
    c.cache().generation++;
    EXPECT_EQ(c.read(kPage, 0), static_cast<int64_t>(kPage));
    EXPECT_EQ(c.elements(4, std::vector<uint64_t>(CACHE_LANES, 4)), CACHE_LANES);
    EXPECT_EQ(c.misses(), 2u);
    for (uint64_t i = 1; i < 16; i++)
        EXPECT_EQ(c.read(kPage, i * kPage), static_cast<int64_t>(kPage));
    EXPECT_EQ(c.read(kPage, 0), static_cast<int64_t>(kPage));
    EXPECT_EQ(c.misses(), 17u) << "the line of the earlier generation was used first";
}

TEST_F(CacheLanes, ACacheThatIsOffBypasses)
{
    Cached c(stack_, 12, 0, 16);
    c.cache().generation = GD_CACHE_OFF;
    EXPECT_EQ(c.read(2 * kPage, 100), static_cast<int64_t>(2 * kPage));
    EXPECT_EQ(c.elements(4, std::vector<uint64_t>(CACHE_LANES, 4)), CACHE_LANES);
    EXPECT_EQ(cache_rig_prefetch(&c.cache(), kPage, 0), 0);
    EXPECT_EQ(c.misses() + c.hits(), 0u);
    EXPECT_EQ(c.bypasses(), 3u + CACHE_LANES);
    EXPECT_EQ(c.words_in(GD_CACHE_FREE), 16u);
    c.expect_idle_words();
}

TEST_F(CacheLanes, HitsEndWithTheLease)
{
    Cached c(stack_, 12, 0, 16);
    EXPECT_EQ(c.read(kPage, 0), static_cast<int64_t>(kPage));
    __atomic_store_n(&stack_.lease, GD_LEASE_REVOKED, __ATOMIC_RELAXED);
    stack_.forget_check();
    int err = 0;
    EXPECT_EQ(c.read(kPage, 0), -ESTALE);
    EXPECT_EQ(c.read(kPage, 9 * kPage), -ESTALE);
    EXPECT_EQ(c.elements(4, std::vector<uint64_t>(CACHE_LANES, 4), &err), 0u);
    EXPECT_EQ(err, -ESTALE);
    EXPECT_EQ(cache_rig_prefetch(&c.cache(), kPage, 0), -ESTALE);
    c.expect_idle_words();
}

// --- Faults --------------------------------------------------------------------

// The drive fails one command: the bytes are read without the line.
TEST_F(CacheLanes, ALineThatFailsIsReadAround)
{
    Cached c(stack_, 13, 0, 16);
    stack_.status_of_next = 0x281; // unrecovered read error
    EXPECT_EQ(c.read(100, 50), 100);
    EXPECT_EQ(c.bypasses(), 1u);
    EXPECT_EQ(c.words_in(GD_CACHE_FREE), 16u) << "the way can be used again";
    EXPECT_EQ(c.read(100, 50), 100);
    EXPECT_EQ(c.misses(), 2u);
    c.expect_idle_words();
}

TEST_F(CacheLanes, AnErrorOfTheDriveIsReported)
{
    Cached c(stack_, 12, 0, 16);
    std::atomic<bool> fails{true};
    stack_.on_command = [&] {
        if (fails)
            stack_.status_of_next = 0x281;
        return true;
    };
    int err = 0;
    EXPECT_EQ(c.read(100, 50), -EIO);
    EXPECT_EQ(c.elements(4, std::vector<uint64_t>(CACHE_LANES, 4), &err), 0u);
    EXPECT_EQ(err, -EIO);
    EXPECT_EQ(cache_rig_prefetch(&c.cache(), 4 * kPage, 0), -EIO);
    c.expect_idle_words();
    fails = false;
    EXPECT_EQ(c.read(100, 50), 100);
    expect_idle(stack_);
}

// A lost command may write to its line later, so the line is not used again.
TEST_F(CacheLanes, ALineOfALostCommandIsNotUsedAgain)
{
    Cached c(stack_, 12, 0, 4);
    std::atomic<unsigned> loses{1};
    stack_.file.set.command_ns = 50000000;
    stack_.on_command = [&] { return loses == 0 || loses-- == 0; };
    EXPECT_EQ(c.read(kPage, 0), -ETIMEDOUT);
    EXPECT_EQ(c.words_in(GD_CACHE_FAILED), 1u);
    stack_.file.set.command_ns = 60000000000u;
    memset(stack_.pages[1].bytes, 0xee, kPage); // way 0, of which CLOCK begins
    for (int turn = 0; turn < 3; turn++) {
        for (uint64_t i = 0; i < 12; i++)
            ASSERT_EQ(c.read(kPage, i * kPage), static_cast<int64_t>(kPage)) << i;
        c.cache().generation++;
    }
    EXPECT_EQ(c.words_in(GD_CACHE_FAILED), 1u);
    EXPECT_EQ(c.bypasses(), 3u) << "line 0 has no other way";
    EXPECT_EQ(stack_.pages[1].bytes[0], 0xee);
    c.expect_idle_words();
}

// A slot of a lost command stays taken, too.
TEST_F(CacheLanes, ASlotOfALostCommandIsNotUsedAgain)
{
    Cached c(stack_, 12, 0, 4);
    std::atomic<unsigned> loses{1};
    c.cache().generation = GD_CACHE_OFF;
    stack_.file.set.command_ns = 50000000;
    stack_.on_command = [&] { return loses == 0 || loses-- == 0; };
    EXPECT_EQ(c.read(kPage, 0), -ETIMEDOUT);
    stack_.file.set.command_ns = 60000000000u;
    for (uint64_t i = 0; i < 40; i++)
        ASSERT_EQ(c.read(kPage, i * kPage), static_cast<int64_t>(kPage)) << i;
    c.expect_idle_words(1);
}

// A group that never ends its fill does not keep others from their bytes.
TEST_F(CacheLanes, AWaitForAFillEndsByTheDeadline)
{
    Cached c(stack_, 12, 0, 4);
    stack_.file.set.command_ns = 2000000000; // also of the reads that follow the waits
    c.cache().words[2] = uint64_t{1} << GD_CACHE_GENERATION_SHIFT | GD_CACHE_FILLING; // of line 0
    c.cache().locks[0] |= GD_TAKEN;
    in_threads(2, [&](uint64_t line) {
        EXPECT_EQ(c.read(kPage, line * kPage), static_cast<int64_t>(kPage)) << line;
    });
    EXPECT_EQ(c.bypasses(), 2u);
    stack_.file.set.command_ns = 20000000;
    c.cache().slots[0] = UINT32_MAX;
    EXPECT_EQ(c.read(kPage, kPage), -ETIMEDOUT);
}

// All ways have readers, or are filled: the bytes come without a wait.
TEST_F(CacheLanes, ASetWithoutAFreeWayIsBypassed)
{
    Cached c(stack_, 12, 0, 4);
    uint64_t word = uint64_t{1} << GD_CACHE_GENERATION_SHIFT;
    for (uint64_t i = 0; i < 4; i++)
        c.cache().words[i] = word | (100 + i) << GD_CACHE_TAG_SHIFT |
                             (i % 2 ? GD_CACHE_FILLING : GD_CACHE_VALID | GD_CACHE_PIN);
    EXPECT_EQ(c.read(kPage, 0), static_cast<int64_t>(kPage));
    EXPECT_EQ(c.elements(4, std::vector<uint64_t>(CACHE_LANES, 4)), CACHE_LANES);
    EXPECT_EQ(c.bypasses(), 1u + CACHE_LANES);
}

// The number of a line may have more bits than a tag.
TEST_F(CacheLanes, LinesBeyondTheTagsAreBypassed)
{
    Cached c(stack_, 9, 0, 4);
    stack_.file.map.end = GD_CACHE_TAGS * kLba * 2;
    std::vector<uint8_t> to(8);
    // The only extent has no such blocks, but the place is the same for the test.
    EXPECT_EQ(c.read(8, 0), 8);
    EXPECT_EQ(c.misses(), 1u);
    uint64_t beyond = GD_CACHE_TAGS * kLba;
    std::vector<gq_file_extent> extents = {{0, 40}, {beyond, 40}};
    stack_.file.map.extents = extents.data();
    stack_.file.map.count = 2;
    EXPECT_EQ(cache_rig_read(&c.cache(), to.data(), 8, beyond), 8);
    for (uint64_t i = 0; i < 8; i++)
        EXPECT_EQ(to[i], stack_.on_media(i));
    EXPECT_EQ(c.misses(), 1u);
    EXPECT_EQ(c.bypasses(), 1u);
}

// --- Many warps ------------------------------------------------------------------

// Reads at random places, as warps and by lanes. Counts results that are errors,
// and returns the number of those that are wrong.
unsigned read_at_random(Cached &c, unsigned seed, unsigned rounds, std::atomic<unsigned> *failed)
{
    std::mt19937 rng(seed);
    std::vector<uint64_t> offsets(CACHE_LANES);
    unsigned wrong = 0;
    for (unsigned i = 0; i < rounds; i++) {
        uint64_t most = rng() % 4 ? 40 * kLba : kFilePages * kPage;
        if (i % 4 == 0) {
            int err = 0;
            for (uint64_t &o : offsets)
                o = rng() % (most - 8);
            unsigned right = c.elements(8, offsets, &err);
            *failed += err != 0;
            wrong += right != CACHE_LANES && (err == 0 || err == -EBADMSG);
            continue;
        }
        uint64_t n = 1 + rng() % std::min(3 * c.line(), most - 1), offset = rng() % (most - n);
        int64_t got = c.read(n, offset);
        *failed += got < 0 && got != -EBADMSG;
        wrong += got == -EBADMSG || (got >= 0 && got != static_cast<int64_t>(n));
    }
    return wrong;
}

// Expects that no read of so many threads is wrong, and returns how many failed.
unsigned read_by(unsigned threads, Cached &c, unsigned rounds)
{
    std::atomic<unsigned> wrong{0}, failed{0};
    in_threads(threads, [&](unsigned t) { wrong += read_at_random(c, t, rounds, &failed); });
    EXPECT_EQ(wrong, 0u);
    return failed;
}

// The drive refuses about one command in n.
void refuse_one_in(unsigned n, Stack &s, unsigned seed)
{
    s.on_command = [&s, n, rng = std::mt19937(seed)]() mutable {
        if (rng() % n == 0)
            s.status_of_next = 0x281;
        return true;
    };
}

TEST(CacheMany, FewLinesServeManyWarps)
{
    for (uint32_t set_shift : {0u, 1u, 2u}) {
        Stack s(2, 16, 1);
        s.make_one_extent(kFilePages);
        s.out_of_order = set_shift == 2;
        Cached c(s, 9, set_shift, 4);
        c.cache().second_touch = set_shift == 1;
        EXPECT_EQ(read_by(8, c, 60), 0u);
        EXPECT_GT(c.hits(), 0u);
        c.expect_idle_words();
        expect_idle(s);
    }
}

// The drive does not reach the lines: all bytes are staged.
TEST(CacheMany, LinesThatTheDriveDoesNotReach)
{
    Stack s(2, 16, 1);
    s.make_one_extent(kFilePages);
    s.stage_all();
    Cached c(s, 13, 1, 4);
    EXPECT_EQ(read_by(6, c, 60), 0u);
    c.expect_idle_words();
}

// Each thread holds one line after another while others need the ways.
unsigned hold_at_random(Cached &c, unsigned seed, unsigned rounds)
{
    std::mt19937 rng(seed);
    unsigned wrong = 0;
    for (unsigned i = 0; i < rounds; i++) {
        int err = 1;
        cache_rig_line held = cache_rig_hold(&c.cache(), rng() % 40 * kLba, &err);
        for (int turn = 0; turn < 3 && held.word; turn++) {
            wrong += !c.is_right(held);
            std::this_thread::yield();
        }
        wrong += held.word ? err != 0 : err != 0 && err != -EIO;
        if (held.word)
            cache_rig_release(&held);
    }
    return wrong;
}

TEST(CacheMany, HoldersAndReadersWithADriveThatFails)
{
    for (unsigned seed : {1u, 2u, 3u}) {
        Stack s(2, 16, 1);
        s.make_one_extent(kFilePages);
        refuse_one_in(8, s, seed);
        Cached c(s, 9, 1, 4);
        std::atomic<unsigned> wrong{0}, failed{0};
        in_threads(8, [&](unsigned t) {
            wrong += t % 2 ? read_at_random(c, t, 40, &failed) : hold_at_random(c, t, 200);
        });
        EXPECT_EQ(wrong, 0u);
        EXPECT_GT(c.bypasses(), 0u);
        c.expect_idle_words();
        expect_idle(s);
    }
}

TEST(CacheMany, ADriveThatFailsSomeCommands)
{
    for (unsigned seed : {1u, 2u, 3u}) {
        Stack s(2, 16, 1);
        s.make_one_extent(kFilePages);
        refuse_one_in(4, s, seed);
        Cached c(s, 9, 1, 4);
        c.cache().second_touch = seed == 2;
        EXPECT_GT(read_by(8, c, 60), 0u);
        c.expect_idle_words();
        expect_idle(s);
    }
}

// Some commands never complete. Every read ends, and none is wrong.
TEST(CacheMany, ADriveThatLosesSomeCommands)
{
    Stack s(4, 16, 1);
    s.make_one_extent(kFilePages);
    s.file.set.command_ns = 50000000;
    std::mt19937 rng(5);
    s.on_command = [&] { return rng() % 64 != 0; };
    Cached c(s, 9, 1, 4);
    read_by(6, c, 8);
    EXPECT_EQ(c.words_in(GD_CACHE_FILLING), 0u);
}

TEST(CacheMany, ChecksumsAreCompared)
{
    Stack s(2, 16, 1);
    s.make_one_extent(kFilePages);
    s.add_sums();
    Cached c(s, 12, 1, 4);
    EXPECT_EQ(read_by(4, c, 40), 0u);
    s.on_media(20 * kPage + 5) ^= 1;
    s.file.map.end = 64 * kPage;
    c.cache().generation++;
    EXPECT_EQ(c.read(8, 20 * kPage + 100), -EIO);
    EXPECT_EQ(s.bad_block, 20 * kPage + 1);
    EXPECT_EQ(c.read(8, 21 * kPage), 8);
    c.expect_idle_words();
}

} // namespace
