/* SPDX-License-Identifier: BSD-2-Clause */
// Groups that share queues: they wait for CIDs (client/device/gd_shared_run.h), check the leases,
// and lead a queue (cuda/queue/gq_lead.h).
#include <errno.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/client/lib/direct_stack.h"

namespace
{

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
TEST(DirectWaiting, EndsWhenTheLocksOfAllQueuesTellThatTheyAreLost)
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
