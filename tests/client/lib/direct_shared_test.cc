/* SPDX-License-Identifier: BSD-2-Clause */
// Reads through shared queues: threads stand for warps.
#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/client/lib/direct_stack.h"
#include "tests/threads.h"

namespace
{

using direct_stack::address, direct_stack::Case, direct_stack::expect_idle,
    direct_stack::expect_read, direct_stack::kLba, direct_stack::kPage, direct_stack::kPages,
    direct_stack::Stack;

int64_t read_warp(Stack &s, size_t at, uint64_t len, uint64_t offset)
{
    return shared_read_warp(&s.file, address(s, at), len, offset);
}

using DirectShared = ::testing::TestWithParam<Case>;

TEST_P(DirectShared, TakesAsManyCommandsAsItMust)
{
    for (unsigned extents : {9u, 50u}) {
        Stack s(1, 8, extents);
        expect_read(s, GetParam(), [&](size_t at, uint64_t len, uint64_t offset) {
            return read_warp(s, at, len, offset);
        });
        expect_idle(s);
    }
}

INSTANTIATE_TEST_SUITE_P(Reads, DirectShared, ::testing::ValuesIn(direct_stack::kCases),
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

// Warps and threads of warps, each with a place of its own.
void expect_right(Stack &s)
{
    std::vector<std::string> wrong(8);
    in_threads(wrong.size(), [&](unsigned t) {
        size_t at = (1 + t * 10) * kPage;
        wrong[t] = t % 2 ? read_lanes_at_random(s, t, at, 10) : read_at_random(s, t, at, 60);
    });
    for (const std::string &w : wrong)
        EXPECT_EQ(w, "");
    expect_idle(s);
}

TEST(DirectSharedMany, WarpsAndLanesShareQueuesAndCids)
{
    for (uint32_t depth : {2u, 5u, 64u, 100u}) {
        Stack s(depth == 64 ? 4 : 1, depth, 20);
        expect_right(s);
    }
}

TEST(DirectSharedMany, AllBytesAreStagedWhereTheControllerDoesNotReachTheMemory)
{
    for (uint32_t depth : {5u, 64u, 100u}) {
        Stack s(depth == 64 ? 4 : 1, depth, 20);
        s.stage_all();
        s.out_of_order = depth == 64;
        expect_right(s);
    }
}

TEST(DirectSharedMany, CompletionsComeInAnyOrder)
{
    for (uint32_t depth : {3u, 40u, 70u}) {
        Stack s(1, depth, 20);
        s.out_of_order = true;
        expect_right(s);
    }
}

TEST(DirectSharedMany, ReadsWithTheirOwnQueuesContinueMeanwhile)
{
    Stack s(2, 8, 20);
    std::string wrong;
    std::thread other([&] {
        for (unsigned i = 0; i < 200; i++) {
            uint64_t offset = i % 16 * kPage, len = i % 4 ? kPage : 3 * kPage + 5;
            if (s.read_alone(200 * kPage, static_cast<uint32_t>(len), offset) !=
                    static_cast<int64_t>(len) ||
                !s.holds(200 * kPage, len, offset))
                wrong = std::to_string(len) + " at " + std::to_string(offset);
        }
    });
    EXPECT_EQ(read_at_random(s, 3, kPage, 200), "");
    other.join();
    EXPECT_EQ(wrong, "");
    expect_idle(s);
}

// Both stay in flight while their owner does something else; other warps complete them.
TEST(DirectSharedTickets, AreEndedLater)
{
    Stack s(1, 4, 20);
    struct shared_ticket *first = shared_begin(&s.file, address(s, kPage), kPage, 0);
    struct shared_ticket *second = shared_begin(&s.file, address(s, 2 * kPage), 100, 1000);
    EXPECT_EQ(read_warp(s, 8 * kPage, kPage, kPage), static_cast<int64_t>(kPage));
    EXPECT_EQ(shared_end(first), static_cast<int64_t>(kPage));
    EXPECT_EQ(shared_end(second), 100);
    EXPECT_TRUE(s.holds(kPage, kPage, 0));
    EXPECT_TRUE(s.holds(2 * kPage, 100, 1000));
    expect_idle(s);
}

TEST(DirectSharedTickets, MayBeMoreThanThereAreCids)
{
    constexpr size_t kTickets = 20;
    Stack s(2, 4, 20);
    struct shared_ticket *tickets[kTickets];
    for (size_t i = 0; i < kTickets; i++)
        tickets[i] = shared_begin(&s.file, address(s, (1 + i) * kPage), kPage, i % 8 * kPage);
    for (size_t i = 0; i < kTickets; i++) {
        EXPECT_EQ(shared_end(tickets[i]), static_cast<int64_t>(kPage)) << i;
        EXPECT_TRUE(s.holds((1 + i) * kPage, kPage, i % 8 * kPage)) << i;
    }
    expect_idle(s);
}

// A page, or a part of it, begun and not ended.
struct Ticket {
    struct shared_ticket *t;
    size_t at;
    uint64_t len, offset;
};

// Ends a ticket; the text tells an error of its read.
std::string end_ticket(Stack &s, const Ticket &t)
{
    int64_t got = shared_end(t.t);
    if (got == static_cast<int64_t>(t.len) && s.holds(t.at, t.len, t.offset))
        return "";
    return std::to_string(t.len) + " at " + std::to_string(t.offset) + ": " + std::to_string(got);
}

// Begins reads and leaves the queue, ends them in any order, and sleeps now and then:
// the leader of the queue is often one that leaves. Tickets that remain are added to `left`.
std::string come_and_go(Stack &s, unsigned seed, size_t at, std::vector<Ticket> *left)
{
    std::mt19937 rng(seed);
    std::vector<Ticket> held;
    std::string wrong;
    for (unsigned i = 0; i < 150 && wrong.empty(); i++) {
        size_t place = at + i % 8 * kPage;
        if (held.size() == 8 || (!held.empty() && rng() % 3 == 0)) {
            std::swap(held[rng() % held.size()], held.front());
            wrong = end_ticket(s, held.front());
            place = held.front().at;
            held.erase(held.begin());
        }
        bool used = std::any_of(held.begin(), held.end(),
                                [place](const Ticket &t) { return t.at == place; });
        uint64_t len = rng() % 2 ? kPage : 1 + rng() % kPage, offset = rng() % 8 * kPage;
        if (!used)
            held.push_back(
                {shared_begin(&s.file, address(s, place), len, offset), place, len, offset});
        if (rng() % 8 == 0)
            std::this_thread::sleep_for(std::chrono::microseconds(rng() % 500));
    }
    left->insert(left->end(), held.begin(), held.end());
    return wrong;
}

// The first ticket has no CID, and later tickets of the same group have all of them but one.
TEST(DirectSharedTickets, HoldAllCidsButOne)
{
    Stack s(1, 4, 20);
    std::vector<Ticket> held;
    auto begin = [&] {
        size_t i = held.size();
        size_t at = (1 + i) * kPage;
        uint64_t offset = i % 4 * kPage; /* not in a hole */
        held.push_back({shared_begin(&s.file, address(s, at), kPage, offset), at, kPage, offset});
    };
    for (int i = 0; i < 4; i++)
        begin();
    for (size_t i = 0; i < 3; i++)
        EXPECT_EQ(end_ticket(s, held[i]), "") << i;
    for (int i = 0; i < 3; i++)
        begin();
    auto start = std::chrono::steady_clock::now();
    for (size_t i = 3; i < held.size(); i++)
        EXPECT_EQ(end_ticket(s, held[i]), "") << i;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
    expect_idle(s);
}

// A wake-up that is lost when a leader leaves costs the deadline of a command, and is an error.
TEST(DirectSharedTickets, ManyGroupsLeaveAtRandom)
{
    for (bool staged : {false, true}) {
        Stack s(2, 20, 20);
        if (staged)
            s.stage_all();
        s.out_of_order = true;
        std::vector<std::thread> threads;
        std::vector<std::string> wrong(12);
        std::vector<std::vector<Ticket>> left(wrong.size());
        for (unsigned t = 0; t < wrong.size(); t++)
            threads.emplace_back(
                [&, t] { wrong[t] = come_and_go(s, t, (1 + t * 10) * kPage, &left[t]); });
        for (std::thread &t : threads)
            t.join();
        for (const std::string &w : wrong)
            EXPECT_EQ(w, "");
        for (const std::vector<Ticket> &of_thread : left) {
            for (const Ticket &t : of_thread)
                EXPECT_EQ(end_ticket(s, t), "") << "of a group that has gone";
        }
        expect_idle(s);
    }
}

// Tickets of commands that never complete, ended; all results.
std::vector<int64_t> end_lost_tickets(Stack &s, const std::function<void()> &before)
{
    std::vector<struct shared_ticket *> tickets;
    std::vector<int64_t> results;
    for (size_t i = 0; i < 5; i++)
        tickets.push_back(shared_begin(&s.file, address(s, (1 + i) * kPage), kPage, i * kPage));
    before();
    auto start = std::chrono::steady_clock::now();
    for (struct shared_ticket *t : tickets)
        results.push_back(shared_end(t));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
    return results;
}

TEST(DirectSharedTickets, EndWithTheDeadline)
{
    Stack s(2, 8, 20);
    s.file.set.command_ns = 200000000;
    s.on_command = [] { return false; };
    EXPECT_EQ(end_lost_tickets(s, [] {}), std::vector<int64_t>(5, -ETIMEDOUT));
}

// A renewal has brought other queues, with CIDs of their own.
TEST(DirectSharedTickets, OfAFormerLeaseTouchNoQueueOfTheNewOne)
{
    Stack s(1, 8, 20);
    std::atomic<bool> goes_on{false};
    s.on_command = [&] {
        while (!goes_on)
            std::this_thread::yield();
        return true;
    };
    auto dst = address(s, kPage);
    struct shared_ticket *ticket = shared_begin(&s.file, dst, kPage, 0);
    uint32_t lock = s.lock(0), taken = s.cids[0].taken[0];
    s.file.set.number++;
    EXPECT_EQ(shared_end(ticket), -ESTALE);
    EXPECT_EQ(s.lock(0), lock);
    EXPECT_EQ(s.cids[0].taken[0], taken);
    goes_on = true;
}

TEST(DirectSharedTickets, EndWithTheLease)
{
    Stack s(2, 8, 20);
    s.on_command = [] { return false; };
    std::vector<int64_t> results = end_lost_tickets(
        s, [&] { __atomic_store_n(&s.lease, GD_LEASE_REVOKED, __ATOMIC_RELAXED); });
    EXPECT_EQ(results[0], -ESTALE);
    for (int64_t r : results) /* commands that were given up have made their queues useless */
        EXPECT_TRUE(r == -ESTALE || r == -ETIMEDOUT) << r;
}

// Reads of a page each, until the only queue has so many free CIDs.
std::vector<struct shared_ticket *> claim_all_but(Stack &s, uint32_t left)
{
    std::vector<struct shared_ticket *> tickets;
    while (shared_claim(&s.file, SHARED_LANES, SHARED_PATIENCE) > left) {
        size_t i = tickets.size();
        tickets.push_back(shared_begin(&s.file, address(s, (1 + i) * kPage), kPage, i % 8 * kPage));
    }
    return tickets;
}

void end_all(Stack &s, const std::vector<struct shared_ticket *> &tickets)
{
    for (struct shared_ticket *t : tickets)
        EXPECT_EQ(shared_end(t), static_cast<int64_t>(kPage));
    expect_idle(s);
}

// Half of the CIDs that a group wants is enough for it, and one after many claims.
TEST(DirectSharedClaims, TakeHalfOfTheCidsOrNone)
{
    Stack s(1, 17, 20);
    uint32_t all = shared_claim(&s.file, SHARED_LANES, 0);
    std::vector<struct shared_ticket *> tickets = claim_all_but(s, 6);
    ASSERT_EQ(all, 16u);
    for (uint32_t tries : {0u, 1u, SHARED_PATIENCE - 1}) {
        EXPECT_EQ(shared_claim(&s.file, SHARED_LANES, tries), 0u) << tries;
        EXPECT_EQ(shared_claim(&s.file, 13, tries), 0u) << tries;
        EXPECT_EQ(shared_claim(&s.file, 12, tries), 6u) << tries;
        EXPECT_EQ(shared_claim(&s.file, 5, tries), 5u) << tries;
    }
    EXPECT_EQ(shared_claim(&s.file, SHARED_LANES, SHARED_PATIENCE), 6u);
    end_all(s, tickets);
    EXPECT_EQ(shared_claim(&s.file, SHARED_LANES, 0), all);
}

TEST(DirectSharedClaims, ReadsEndWithFewCids)
{
    Stack s(1, 17, 20);
    std::vector<struct shared_ticket *> tickets = claim_all_but(s, 3);
    EXPECT_EQ(read_lanes_at_random(s, 1, 40 * kPage, 4), "");
    end_all(s, tickets);
}

// One page each, over and over, by threads; the results that are not a page's.
std::vector<int64_t> read_pages(Stack &s, unsigned rounds, const std::function<void()> &midway,
                                unsigned readers = 8)
{
    std::vector<int64_t> errors;
    std::mutex lock;
    in_threads(readers, [&](unsigned t) {
        for (unsigned i = 0; i < rounds; i++) {
            if (t == 0 && i == rounds / 2)
                midway();
            uint64_t offset = (t + i) % 4 * kPage;
            int64_t got = read_warp(s, (1 + t) * kPage, kPage, offset);
            std::lock_guard guard(lock);
            if (got != static_cast<int64_t>(kPage))
                errors.push_back(got);
            else if (!s.holds((1 + t) * kPage, kPage, offset))
                errors.push_back(1);
        }
    });
    return errors;
}

TEST(DirectSharedFails, WithTheDrivesErrorForOneOwner)
{
    for (bool out_of_order : {false, true}) {
        Stack s(1, 16, 20);
        s.out_of_order = out_of_order;
        EXPECT_EQ(read_pages(s, 60, [&] { s.status_of_next = 0x281; }), std::vector<int64_t>{-EIO});
        expect_idle(s);
    }
}

// Only the owner's read has a deadline that passes: on a busy machine, others could miss it, too.
TEST(DirectSharedFails, ByTheDeadlineForOneOwnerAndOtherQueuesGoOn)
{
    Stack s(3, 16, 20);
    gpunvme_device_file hasty = s.file;
    uint64_t to = address(s, 20 * kPage);
    hasty.set.command_ns = 300000000;
    s.never_to = to;
    EXPECT_EQ(
        read_pages(s, 200, [&] { EXPECT_EQ(shared_read_warp(&hasty, to, kPage, 0), -ETIMEDOUT); }),
        std::vector<int64_t>());
    size_t lost = 0;
    for (size_t q = 0; q < s.cids.size(); q++) {
        lost += s.cids[q].lost;
        EXPECT_EQ((s.lock(static_cast<uint32_t>(q)) & GD_LOST) != 0, s.cids[q].lost != 0) << q;
    }
    EXPECT_EQ(lost, 1u);
}

// The drive may see a command only after the reader has given it up.
void await_commands(const Stack &s, unsigned n)
{
    for (int i = 0; i < 30000 && s.commands < n; i++)
        usleep(1000);
    EXPECT_EQ(s.commands, n);
}

void lose_two_queues(Stack &s)
{
    s.file.set.command_ns = 50000000;
    s.on_command = [] { return false; };
    EXPECT_EQ(read_warp(s, kPage, kPage, 0), -ETIMEDOUT);
    EXPECT_EQ(read_warp(s, kPage, kPage, 0), -ETIMEDOUT);
    await_commands(s, 2);
}

TEST(DirectSharedFails, AtOnceWhenAllQueuesAreLost)
{
    Stack s(2, 4, 3);
    lose_two_queues(s);
    EXPECT_EQ(read_warp(s, kPage, kPage, 0), -ETIMEDOUT);
    EXPECT_EQ(s.commands, 2u);
}

// A check of before the end is still good, so the reads begin.
TEST(DirectSharedFails, AsStaleWhenAllQueuesAreLostAndTheLeaseHasEnded)
{
    Stack s(2, 4, 3);
    lose_two_queues(s);
    s.lease = GD_LEASE_REVOKED;
    s.set_checked();
    EXPECT_EQ(read_warp(s, kPage, kPage, 0), -ESTALE);
    EXPECT_EQ(s.commands, 2u);
}

// The leader has counted the lost commands before, and stores that none is lost when it leaves.
TEST(DirectSharedFails, AndTheLockShowsALostQueueAlthoughTheLeaderDoesNotKnow)
{
    Stack s(1, 8, 20);
    uint32_t idle = s.lock(0);
    int64_t result = 0;
    s.file.set.command_ns = 300000000;
    s.on_command = [] { return false; };
    auto dst = address(s, kPage);
    struct shared_ticket *ticket = shared_begin(&s.file, dst, kPage, 0);
    uint32_t in_flight = s.lock(0);
    ASSERT_EQ(in_flight & GD_IN_FLIGHT, 1u << GD_FLIGHT_SHIFT);
    __atomic_fetch_or(&s.locks[0], GD_TAKEN, __ATOMIC_ACQ_REL);
    std::thread reader([&] { result = shared_end(ticket); });
    while (__atomic_load_n(&s.cids[0].lost, __ATOMIC_ACQUIRE) == 0)
        std::this_thread::yield();
    __atomic_store_n(&s.locks[0], in_flight, __ATOMIC_RELEASE);
    reader.join();
    EXPECT_EQ(result, -ETIMEDOUT);
    EXPECT_NE(s.lock(0) & GD_LOST, 0u) << s.lock(0) << ", was " << idle;
}

TEST(DirectSharedFails, ALateCompletionLeavesTheQueueToTheOtherCommands)
{
    bool released;
    uint32_t word = shared_word_after_late_completion(false, &released);

    EXPECT_EQ(word & GD_LOST, 0u);
    EXPECT_EQ((word & GD_IN_FLIGHT) >> GD_FLIGHT_SHIFT, 1u);
    EXPECT_TRUE(released);
}

// Its target is still written to.
TEST(DirectSharedFails, ASecondCompletionDoesNotReleaseTheNextCommandsCid)
{
    bool released;

    EXPECT_EQ(shared_word_after_late_completion(true, &released), GD_LOST);
    EXPECT_FALSE(released);
}

// The queue has seven CIDs. That of another command in flight could not be told from its own.
TEST(DirectSharedFails, OverACompletionOfNoCommandAndTheQueueIsLost)
{
    struct {
        unsigned cid_error, readers;
    } cases[] = {{1, 1}, {5, 1}, {7, 8}, {0x8000, 8}};
    for (const auto &c : cases) {
        Stack s(1, 8, 20);
        s.file.set.command_ns = 2000000000;
        std::vector<int64_t> errors = read_pages(
            s, 40, [&] { s.cid_error = c.cid_error; }, c.readers);
        ASSERT_FALSE(errors.empty());
        for (int64_t e : errors)
            EXPECT_TRUE(e == -EIO || e == -ETIMEDOUT) << e;
        EXPECT_TRUE(s.lock(0) & GD_LOST);
    }
}

// The CID of the command before it, which had the same index, is completed once more.
TEST(DirectSharedFails, OverASecondCompletionAndTheQueueIsLost)
{
    for (unsigned readers : {1, 2, 8}) {
        for (bool stages : {false, true}) {
            Stack s(1, 40, 20);
            s.file.set.command_ns = 2000000000;
            if (stages)
                s.stage_all();
            std::vector<int64_t> errors = read_pages(
                s, 100, [&] { s.repeat = true; }, readers);
            ASSERT_FALSE(errors.empty());
            for (int64_t e : errors)
                EXPECT_TRUE(e == -EIO || e == -ETIMEDOUT) << e;
            EXPECT_TRUE(s.lock(0) & GD_LOST);
        }
    }
}

TEST(DirectSharedFails, WhenTheLeaseEndsInTheMiddle)
{
    Stack s(2, 8, 20);
    std::atomic<bool> ended{false};
    s.on_command = [&] { return !ended; };
    auto start = std::chrono::steady_clock::now();
    std::vector<int64_t> errors = read_pages(s, 100, [&] {
        ended = true;
        __atomic_store_n(&s.lease, GD_LEASE_REVOKED, __ATOMIC_RELAXED);
    });
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
    ASSERT_FALSE(errors.empty());
    for (int64_t e : errors)
        EXPECT_EQ(e, -ESTALE);
}

TEST(DirectSharedFails, BeforeACommandWhenTheLeaseHasEnded)
{
    Stack s(1, 4, 3);
    s.lease = GD_LEASE_REVOKED;
    EXPECT_EQ(read_warp(s, kPage, kPage, 0), -ESTALE);
    EXPECT_EQ(s.commands, 0u);
    expect_idle(s);
}

TEST(DirectSharedFails, OfAFileWithoutQueues)
{
    Stack s(1, 4, 20);
    s.file.set.n_queues = 0;
    EXPECT_EQ(read_warp(s, kPage, kPage, 0), -ESTALE);
    EXPECT_EQ(s.commands, 0u);
}

TEST(DirectSharedFails, ByTheDeadlineWhileQueuesBelongToOtherReads)
{
    Stack s(2, 4, 3);
    s.locks = {GD_TAKEN, 0};
    for (unsigned i = 0; i < 8; i++)
        EXPECT_EQ(read_warp(s, kPage, kPage, 0), static_cast<int64_t>(kPage)) << i;
    s.locks[1] = GD_TAKEN;
    s.file.set.command_ns = 50000000;
    EXPECT_EQ(read_warp(s, kPage, kPage, 0), -ETIMEDOUT);
}

TEST(DirectSharedFails, ForTheLaneOutsideOfBuffersAlone)
{
    Stack s(1, 40, 20);
    struct shared_read reads[SHARED_LANES];
    for (size_t i = 0; i < SHARED_LANES; i++)
        reads[i] = {address(s, (1 + i) * kPage), i % 5 == 1 ? 0 : kLba, i % 4 * kPage, -1000};
    reads[3].dst = address(s, 0);
    reads[9].dst = address(s, kPages * kPage - 100);
    reads[12].offset = s.file.map.end;
    reads[13].offset = s.file.map.end - 100;
    shared_read_lanes(&s.file, reads);
    for (size_t i = 0; i < SHARED_LANES; i++) {
        int64_t want = i % 5 == 1 || i == 12 ? 0 : i == 13 ? 100 : int64_t{kLba};
        want = i == 3 || i == 9 ? -EFAULT : want;
        EXPECT_EQ(reads[i].result, want) << i;
        if (want > 0) {
            EXPECT_TRUE(s.holds((1 + i) * kPage, static_cast<uint64_t>(want), reads[i].offset))
                << i;
        }
    }
    expect_idle(s);
}

// --- Waiting for CIDs, checking the leases, leading a queue --------------------------------------

using direct_stack::expect_idle, direct_stack::kLba, direct_stack::kPage, direct_stack::Stack;

constexpr auto kSoon = std::chrono::seconds(300); // below the deadline of a command, 600 s

int64_t read_page(Stack &s)
{
    return shared_read_warp(&s.file, reinterpret_cast<uint64_t>(&s.pages[1]), kPage, 0);
}

// A page's read, begun while no queue has a free CID; `then` is called while it waits.
template <typename Then> int64_t read_waiting(Stack &s, Then then)
{
    int64_t got = 0;
    std::thread reader([&] { got = read_page(s); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    then();
    reader.join();
    return got;
}

uint32_t take_all(Stack &s, size_t queue)
{
    return __atomic_exchange_n(&s.cids[queue].taken[0], UINT32_MAX, __ATOMIC_SEQ_CST);
}

TEST(DirectWaiting, AQueueWithoutFreeCidsIsNotLostAsAnotherOneIs)
{
    Stack s(2, 8, 20);
    s.cids[0].lost = 1;
    uint32_t taken = take_all(s, 1);
    EXPECT_EQ(
        read_waiting(s, [&] { __atomic_store_n(&s.cids[1].taken[0], taken, __ATOMIC_SEQ_CST); }),
        static_cast<int64_t>(kPage));
    EXPECT_TRUE(s.holds(kPage, kPage, 0));
}

// What the read returns, far below the deadline of a command.
template <typename Then> int64_t read_and_end_soon(Stack &s, Then then)
{
    auto start = std::chrono::steady_clock::now();
    int64_t got = read_waiting(s, then);
    EXPECT_LT(std::chrono::steady_clock::now() - start, kSoon);
    return got;
}

// While its command is in flight, the deadline is shorter for a moment than the wait for a CID was.
TEST(DirectWaiting, ForACidIsNotCountedAsTimeOfTheCommand)
{
    constexpr auto kWait = std::chrono::milliseconds(2000), kMoment = std::chrono::milliseconds(50);
    Stack s(1, 8, 20);
    uint32_t taken = take_all(s, 0);
    uint64_t usual = s.file.set.command_ns;
    auto set_deadline = [&s](uint64_t ns) {
        __atomic_store_n(&s.file.set.command_ns, ns, __ATOMIC_SEQ_CST);
    };
    s.on_command = [&] {
        set_deadline(std::chrono::nanoseconds(kWait).count() * 9u / 10);
        std::this_thread::sleep_for(kMoment);
        set_deadline(usual);
        return true;
    };
    EXPECT_EQ(read_waiting(s,
                           [&] {
                               std::this_thread::sleep_for(kWait);
                               __atomic_store_n(&s.cids[0].taken[0], taken, __ATOMIC_SEQ_CST);
                           }),
              static_cast<int64_t>(kPage));
    expect_idle(s);
}

void take_all_of_all(Stack &s)
{
    for (gq_cids &cids : s.cids)
        std::fill_n(cids.taken, GQ_CID_WORDS, UINT32_MAX);
}

void store(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
}

// To readers that had them for themselves: no CID is lost, and none is given back.
TEST(DirectWaiting, EndsWhenTheLocksOfAllQueuesAreMarkedLost)
{
    for (uint32_t queues : {1u, 3u, 6u}) {
        Stack s(queues, 40, 20);
        take_all_of_all(s);
        EXPECT_EQ(read_and_end_soon(s,
                                    [&] {
                                        for (uint32_t &lock : s.locks)
                                            store(&lock, GD_LOST);
                                    }),
                  -ETIMEDOUT)
            << queues;
    }
}

TEST(DirectWaiting, EndsWhenQueuesAreLostToReadersAloneAndToGroupsThatShareThem)
{
    Stack s(3, 40, 20);
    take_all_of_all(s);
    EXPECT_EQ(read_and_end_soon(s,
                                [&] {
                                    store(&s.locks[0], GD_LOST);
                                    store(&s.cids[1].lost, 1);
                                    store(&s.locks[2], GD_LOST);
                                }),
              -ETIMEDOUT);
}

TEST(DirectWaiting, EndsWhenTheFileHasLostItsQueues)
{
    Stack s(2, 8, 20);
    take_all(s, 0);
    take_all(s, 1);
    EXPECT_EQ(read_and_end_soon(s, [&] { store(&s.file.set.n_queues, 0); }), -ESTALE);
}

// It leads the queue, and gives up the lock: the host waits for that.
TEST(DirectWaiting, EndsForACommandWhenTheFileHasLostItsQueues)
{
    Stack s(1, 8, 20);
    s.on_command = [] { return false; };
    EXPECT_EQ(read_and_end_soon(s,
                                [&] {
                                    for (int i = 0; i < 30000 && s.commands == 0; i++)
                                        std::this_thread::sleep_for(std::chrono::milliseconds(1));
                                    store(&s.file.set.n_queues, 0);
                                }),
              -ESTALE);
    EXPECT_EQ(s.commands, 1u);
    EXPECT_EQ(s.lock(0), GD_LOST);
}

// The lanes of a group: half of them have all CIDs of the queue, in which another group's is lost.
TEST(DirectWaiting, ForLanesAQueueThatIsFoundLostOftenIsNotAllQueues)
{
    Stack s(2, 17, 20);
    std::atomic<bool> goes_on{false};
    struct shared_read reads[SHARED_LANES];
    for (size_t i = 0; i < SHARED_LANES; i++)
        reads[i] = {reinterpret_cast<uint64_t>(&s.pages[1 + i]), kLba, i % 4 * kPage, 0};
    s.on_command = [&] {
        while (!goes_on)
            std::this_thread::yield();
        return true;
    };
    std::thread reader([&] { shared_read_lanes(&s.file, reads); });
    while (s.commands == 0)
        std::this_thread::yield();
    store(&s.cids[s.lock(0) ? 0 : 1].lost, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    goes_on = true;
    reader.join();
    for (size_t i = 0; i < SHARED_LANES; i++)
        EXPECT_EQ(reads[i].result, static_cast<int64_t>(kLba)) << i;
}

// A busy machine may take longer for a try than the last check is good.
TEST(DirectSharedChecks, AreLeftToTheGroupThatMakesOne)
{
    int64_t got = -ESTALE;
    for (unsigned i = 0; i < 1000 && got == -ESTALE; i++) {
        Stack s(1, 8, 20);
        s.lease = GD_LEASE_REVOKED;
        s.set_checked(GD_CHECK_NS, true);
        got = read_page(s);
    }
    EXPECT_EQ(got, static_cast<int64_t>(kPage));
}

TEST(DirectSharedChecks, AreMadeInPlaceOfAGroupThatIsGone)
{
    Stack s(1, 8, 20);
    s.set_checked(GD_CHECK_MOST_NS, true);
    uint64_t before = s.checked();
    EXPECT_EQ(read_page(s), static_cast<int64_t>(kPage));
    EXPECT_GT(s.checked(), before);
    EXPECT_EQ(s.checked() % 2, 0u);
    s.lease = GD_LEASE_REVOKED;
    s.set_checked(GD_CHECK_MOST_NS, true);
    EXPECT_EQ(read_page(s), -ESTALE);
    expect_idle(s);
}

TEST(DirectSharedChecks, OfTimesBeforeTheClockSteppedBackAreRepeated)
{
    for (bool another_checks : {false, true}) {
        Stack s(1, 8, 20);
        s.set_checked(-uint64_t{10000000000u}, another_checks);
        uint64_t before = s.checked();
        EXPECT_EQ(read_page(s), static_cast<int64_t>(kPage));
        EXPECT_LT(s.checked(), before);
        s.set_checked(-uint64_t{10000000000u}, another_checks);
        s.lease = GD_LEASE_REVOKED;
        EXPECT_EQ(read_page(s), -ESTALE);
        expect_idle(s);
    }
}

// n completions of the CIDs from 0 on, in order.
void complete(struct shared_queue *q, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        q->cq[i].cid = static_cast<uint16_t>(i);
        q->cq[i].status = 1;
    }
}

void publish(struct shared_queue *q, uint32_t cid)
{
    q->cmds[cid].slba = 1000 + cid;
    q->states[cid] = GQ_CID_PENDING;
    q->cids.pending[cid / 32] |= 1u << cid % 32;
}

void nothing(struct shared_queue *)
{
}

// A command that no round has posted yet.
void publish_next(struct shared_queue *q)
{
    uint32_t cid = 200;
    while (q->states[cid])
        cid++;
    publish(q, cid);
}

// More than the group has lanes, of all words but one.
TEST(DirectLead, PostsThePendingCommandsOfAllWordsInOneRound)
{
    auto q = std::make_unique<struct shared_queue>();
    std::vector<uint32_t> cids = {0, 31, 32, 63, 95};
    for (uint32_t cid = 128; cid < 255; cid += cid < 160 ? 1 : 3)
        cids.push_back(cid);
    for (uint32_t cid : cids)
        publish(q.get(), cid);
    shared_lead(q.get(), 1, nothing);
    ASSERT_EQ(q->in_flight, cids.size());
    EXPECT_EQ(q->doorbells[0], cids.size());
    for (size_t i = 0; i < cids.size(); i++) {
        EXPECT_EQ(q->sq[i].cid & 255u, cids[i]) << i;
        EXPECT_EQ(q->sq[i].cdw10, 1000 + cids[i]) << i;
        EXPECT_EQ(q->states[cids[i]], GQ_CID_POSTED | q->sq[i].cid) << i;
    }
    for (uint32_t word : q->cids.pending)
        EXPECT_EQ(word, 0u);
}

// A round looks at a completion for each lane, behind a full one at two, if it posts commands.
TEST(DirectLead, TakesMoreCompletionsAfterAFullRound)
{
    struct {
        unsigned rounds;
        uint32_t head;
    } cases[] = {{1, 32}, {2, 96}, {3, 150}};
    for (const auto &c : cases) {
        auto q = std::make_unique<struct shared_queue>();
        q->in_flight = 160;
        complete(q.get(), 150);
        shared_lead(q.get(), c.rounds, publish_next);
        EXPECT_EQ(q->head, c.head) << c.rounds;
        EXPECT_EQ(q->in_flight, 160 + c.rounds - c.head) << c.rounds;
        EXPECT_FALSE(q->broken);
        for (uint32_t cid = 0; cid < 160; cid++)
            EXPECT_EQ(q->states[cid], cid < c.head ? GQ_ENDED : GQ_CID_POSTED | cid) << cid;
    }
}

// No fence has acquired what those would tell.
TEST(DirectLead, TakesNoMoreCompletionsWithoutAPost)
{
    auto q = std::make_unique<struct shared_queue>();
    q->in_flight = 160;
    complete(q.get(), 150);
    shared_lead(q.get(), 2, nothing);
    EXPECT_EQ(q->head, 64u);
}

TEST(DirectLead, KeepsTheCompletionsOfItsOwnCommands)
{
    auto q = std::make_unique<struct shared_queue>();
    q->in_flight = 40;
    q->own = 7;
    complete(q.get(), 40);
    std::swap(q->cq[3].cid, q->cq[30].cid);
    std::swap(q->cq[5].cid, q->cq[39].cid);
    shared_lead(q.get(), 1, nothing);
    EXPECT_EQ(q->ended, 0x5fu);
    EXPECT_FALSE(q->broken);
    for (uint32_t cid = 0; cid < 7; cid++)
        EXPECT_EQ(q->states[cid], 0u) << cid;
    EXPECT_EQ(q->states[30], GQ_ENDED);
    EXPECT_EQ(q->states[39], GQ_ENDED);
    EXPECT_EQ(q->states[32], GQ_CID_POSTED | 32);
}

TEST(DirectLead, FindsTwoCompletionsOfAnOwnCommandAndTheQueueBroken)
{
    for (uint32_t same : {1u, 20u}) {
        auto q = std::make_unique<struct shared_queue>();
        q->in_flight = 30;
        q->own = 2;
        complete(q.get(), 30);
        q->cq[same == 1 ? 0 : same].cid = 1;
        shared_lead(q.get(), 1, nothing);
        EXPECT_TRUE(q->broken) << same;
    }
}

} // namespace
