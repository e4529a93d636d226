/* SPDX-License-Identifier: BSD-2-Clause */
// The host's half of reads by the persistent kernel: the request, the bounds of the waits,
// the result.
#include <errno.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <array>
#include <cstring>
#include <gtest/gtest.h>
#include <memory>

#include "gpunvme/gpunvme.h"
#include "tests/client/lib/direct_stack.h"
#include "tests/client/lib/service_rig.h"
#include "tests/threads.h"

namespace
{

constexpr uint64_t kPart = 64u << 20, kMs = 1000000, kPatient = 20000 * kMs, kHasty = 20 * kMs;

class Service : public ::testing::Test
{
  protected:
    void start(uint64_t command_ns) { ASSERT_EQ(service_rig_open(command_ns, &rig_), 0); }
    void TearDown() override { EXPECT_TRUE(!rig_ || service_rig_close(rig_)); }
    // A block is stuck with the last of the reads; it may not have seen earlier ones in time.
    void stick_in_a_read()
    {
        rig_->stick = true;
        for (int i = 0; i < 1000 && rig_->reads == 0; i++)
            EXPECT_EQ(service_rig_read(100, 0), -ETIMEDOUT);
        ASSERT_EQ(rig_->reads, 1u);
    }
    struct service_rig *rig_ = nullptr;
};

TEST_F(Service, NothingRunsBeforeTheFirstRead)
{
    start(kPatient);
    EXPECT_EQ(rig_->launches, 0u);
    EXPECT_EQ(service_rig_read(0, 5), 0);
    EXPECT_EQ(rig_->reads, 0u) << "there is nothing to ask for";
    EXPECT_EQ(service_rig_read(4096, 8192), 4096);
    EXPECT_GE(rig_->launches, 1u) << "a block that has no processor leaves before it sees the read";
    EXPECT_EQ(rig_->held, 4);
}

TEST_F(Service, ABlockThatLeftIsLaunchedAgain)
{
    start(kPatient);
    for (unsigned i = 1; i <= 20; i++) {
        ASSERT_EQ(service_rig_read(i, i), i);
        if (i % 5 == 0)
            usleep(20000);
    }
    EXPECT_EQ(rig_->reads, 20u) << "each once";
    EXPECT_GE(rig_->launches, 1u);
}

TEST_F(Service, LongReadsGoInParts)
{
    start(kPatient);
    EXPECT_EQ(service_rig_read(3 * kPart + 5, 77), static_cast<int64_t>(3 * kPart + 5));
    EXPECT_EQ(rig_->reads, 4u);
    EXPECT_EQ(rig_->bytes, 3 * kPart + 5);
}

TEST_F(Service, AnErrorIsToldOrWhatCameBeforeIt)
{
    start(kPatient);
    service_rig_fail_from(rig_, 2 * kPart, -ESTALE);
    EXPECT_EQ(service_rig_read(3 * kPart, 0), static_cast<int64_t>(2 * kPart));
    EXPECT_EQ(rig_->reads, 3u) << "not beyond the error";
    EXPECT_EQ(service_rig_read(kPart, 2 * kPart), -ESTALE);
    EXPECT_EQ(service_rig_read(kPart, 0), static_cast<int64_t>(kPart));
}

TEST_F(Service, ThreadsTakeTurns)
{
    constexpr unsigned kThreads = 4, kReads = 50;
    std::atomic<unsigned> wrong{0};
    start(kPatient);
    in_threads(kThreads, [&](unsigned t) {
        for (unsigned i = 1; i <= kReads; i++)
            wrong += service_rig_read(t * 1000 + i, t) != t * 1000 + i;
    });
    EXPECT_EQ(wrong, 0u);
    EXPECT_EQ(rig_->reads, kThreads * kReads);
}

TEST_F(Service, AGpuWithoutRoomIsNotWaitedForForever)
{
    start(kHasty);
    rig_->hold = true;
    EXPECT_EQ(service_rig_read(4096, 0), -ETIMEDOUT);
    EXPECT_EQ(service_rig_read(4096, 0), -ETIMEDOUT);
    EXPECT_EQ(rig_->launches, 1u) << "one waits for room, not one for each read";
    rig_->hold = false;
    int64_t got = -ETIMEDOUT;
    for (int i = 0; i < 1000 && got == -ETIMEDOUT; i++) // it may be slow to come
        got = service_rig_read(4096, 0);
    EXPECT_EQ(got, 4096);
    EXPECT_EQ(rig_->bytes % 4096, 0u);
}

TEST_F(Service, ABlockIsThereAsLongAsItMayLookAtItsRead)
{
    start(kHasty);
    EXPECT_TRUE(service_rig_has_left());
    stick_in_a_read();
    EXPECT_FALSE(service_rig_has_left());
    rig_->stick = false;
    for (int i = 0; i < 30000 && !service_rig_has_left(); i++)
        usleep(1000);
    EXPECT_TRUE(service_rig_has_left());
}

TEST_F(Service, WhatAReadUsesIsThereUntilItIsNotAtItAnyMore)
{
    start(kHasty);
    EXPECT_TRUE(service_rig_settle()) << "nothing to wait for";
    stick_in_a_read();
    std::thread later([this] {
        usleep(50000);
        rig_->stick = false;
    });
    EXPECT_TRUE(service_rig_settle());
    EXPECT_TRUE(service_rig_has_left());
    later.join();
}

TEST_F(Service, ABlockThatNeverLeavesIsNotWaitedForForever)
{
    start(kHasty);
    stick_in_a_read();
    EXPECT_FALSE(service_rig_settle()) << "its memory stays";
    EXPECT_FALSE(service_rig_settle()) << "without another wait";
    EXPECT_FALSE(service_rig_has_left());
    rig_->stick = false;
    for (int i = 0; i < 30000 && !service_rig_settle(); i++)
        usleep(1000);
    EXPECT_TRUE(service_rig_settle()) << "it has left after all";
}

TEST_F(Service, ABlockThatNeverLeavesKeepsItsMemoryAtTheEnd)
{
    start(kHasty);
    stick_in_a_read();
    EXPECT_FALSE(service_rig_any_stuck());
    EXPECT_FALSE(service_rig_close(rig_));
    EXPECT_EQ(rig_->held, 4) << "the block may access all of it";
    EXPECT_TRUE(service_rig_any_stuck());
    rig_->stick = false;
    for (int i = 0; i < 30000 && service_rig_any_stuck(); i++)
        usleep(1000);
    EXPECT_FALSE(service_rig_any_stuck()) << "it has left after all";
}

TEST_F(Service, TheAnswerToAReadThatWasGivenUpIsNobodys)
{
    start(kHasty);
    stick_in_a_read();
    rig_->stick = false;
    int64_t got = -ETIMEDOUT;
    for (int i = 0; i < 1000 && got == -ETIMEDOUT; i++)
        got = service_rig_read(7, 0);
    EXPECT_EQ(got, 7);
}

TEST_F(Service, ALaunchThatFailsIsTold)
{
    start(kPatient);
    rig_->fail_launches = -EIO;
    EXPECT_EQ(service_rig_read(4096, 0), -EIO);
    rig_->fail_launches = 0;
    EXPECT_EQ(service_rig_read(4096, 0), 4096);
    EXPECT_EQ(rig_->reads, 1u) << "what was taken back is not read later";
}

// Another thread's launch seems to serve the item before this thread's fails.
TEST_F(Service, AReadThatWasServedIsNotTheErrorOfALaunch)
{
    start(kPatient);
    rig_->fail_launches = -EIO;
    rig_->serves_first = true;
    EXPECT_EQ(service_rig_read(4096, 0), 4096);
    EXPECT_EQ(rig_->reads, 1u);
    rig_->fail_launches = 0;
    EXPECT_EQ(service_rig_read(4096, 0), 4096);
}

TEST_F(Service, AFailedContextIsToldLongBeforeTheDeadline)
{
    start(kPatient);
    rig_->hold = true;
    rig_->fail_stream = true;
    EXPECT_EQ(service_rig_read(4096, 0), -EIO);
    EXPECT_STREQ(gpunvme_error(), "what CUDA says");
    EXPECT_EQ(rig_->checks, 1u);
    rig_->hold = false;
}

TEST_F(Service, WhatComesAfterAFailedContextIsNotHandedOver)
{
    start(kPatient);
    rig_->hold = true;
    rig_->fail_stream = true;
    EXPECT_EQ(service_rig_read(4096, 0), -EIO);
    rig_->hold = false; // it would be read now
    std::thread([] {
        EXPECT_EQ(service_rig_read(4096, 0), -EIO);
        EXPECT_STREQ(gpunvme_error(), "what CUDA says") << "each thread is told";
    }).join();
    EXPECT_EQ(service_rig_read(4096, 0), -EIO);
    EXPECT_EQ(rig_->reads, 0u);
}

TEST_F(Service, TheDriverIsAskedRarely)
{
    start(kHasty);
    rig_->hold = true;
    EXPECT_EQ(service_rig_read(4096, 0), -ETIMEDOUT);
    EXPECT_NE(std::string(gpunvme_error()).find("timed out"), std::string::npos) << gpunvme_error();
    EXPECT_EQ(rig_->checks, 1u) << "when it was given up";
    rig_->hold = false;
}

TEST_F(Service, AChildHasNoPartInTheSharedPage)
{
    int status = 0;
    start(kPatient);
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        unsigned char there;
        bool none = mincore(rig_->page, 1, &there) != 0 && errno == ENOMEM;
        _exit(none ? 0 : 1);
    }
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(service_rig_read(4096, 0), 4096) << "and the parent has it still";
}

// --- Long reads by kernels of their own ----------------------------------------------------------

constexpr uint64_t kLaunchPart = 256u << 20; // read by a kernel

class ServiceLaunch : public ::testing::Test
{
  protected:
    void TearDown() override
    {
        if (rig_)
            service_rig_close(rig_);
    }
    void start(uint64_t command_ns)
    {
        ASSERT_EQ(service_rig_open(command_ns, &rig_), 0);
        service_rig_set_launch(rig_, 1, false);
    }
    // A read whose kernel does not begin in time.
    void give_up()
    {
        service_rig_set_launch(rig_, 1, true);
        ASSERT_EQ(service_rig_long_read(rig_, kLaunchPart, 0), -ETIMEDOUT);
        ASSERT_EQ(rig_->parts, 1u);
        service_rig_set_launch(rig_, 1, false);
    }

    struct service_rig *rig_ = nullptr;
};

TEST_F(ServiceLaunch, EachPartHasAKernel)
{
    start(3 * kPatient);
    const auto len = static_cast<int64_t>(3 * kLaunchPart + 5);
    EXPECT_EQ(service_rig_long_read(rig_, 3 * kLaunchPart + 5, 7), len);
    EXPECT_EQ(rig_->parts, 4u);
    EXPECT_EQ(rig_->part_bytes, 3 * kLaunchPart + 5);
    EXPECT_EQ(rig_->launches, 0u) << "no block stays";
    EXPECT_TRUE(service_rig_has_left());
}

TEST_F(ServiceLaunch, WhatIsNotLaunchedIsReadByTheBlock)
{
    start(3 * kPatient);
    service_rig_set_launch(rig_, 0, false);
    EXPECT_EQ(service_rig_long_read(rig_, kLaunchPart + 1, 0),
              static_cast<int64_t>(kLaunchPart + 1));
    EXPECT_EQ(rig_->bytes, kLaunchPart + 1);
    EXPECT_EQ(rig_->parts, 0u);
}

TEST_F(ServiceLaunch, ALaunchThatFailsIsTheReadsError)
{
    start(3 * kPatient);
    service_rig_set_launch(rig_, -EIO, false);
    EXPECT_EQ(service_rig_long_read(rig_, kLaunchPart, 0), -EIO);
    EXPECT_TRUE(service_rig_has_left());
    EXPECT_EQ(rig_->reads, 0u);
    service_rig_set_launch(rig_, 1, false);
    EXPECT_EQ(service_rig_long_read(rig_, kLaunchPart, 0), static_cast<int64_t>(kLaunchPart));
}

TEST_F(ServiceLaunch, KernelsThatALaunchHasLeftBehindAreNotForgotten)
{
    start(kHasty);
    service_rig_set_launch(rig_, -ETIMEDOUT, false);
    EXPECT_EQ(service_rig_long_read(rig_, kLaunchPart, 0), -ETIMEDOUT);
    EXPECT_FALSE(service_rig_has_left());
    service_rig_set_launch(rig_, 1, false);
    EXPECT_EQ(service_rig_long_read(rig_, kLaunchPart, 0), static_cast<int64_t>(kLaunchPart));
    EXPECT_EQ(rig_->bytes, kLaunchPart) << "by the block";
    rig_->is_idle = true;
    unsigned parts = rig_->parts;
    EXPECT_EQ(service_rig_long_read(rig_, kLaunchPart, 0), static_cast<int64_t>(kLaunchPart));
    EXPECT_EQ(rig_->parts, parts + 1) << "by a launch again";
}

TEST_F(ServiceLaunch, AnErrorInTheMiddleLeavesWhatCameBefore)
{
    start(3 * kPatient);
    service_rig_fail_from(rig_, kLaunchPart, -ESTALE);
    EXPECT_EQ(service_rig_long_read(rig_, 2 * kLaunchPart, 0), static_cast<int64_t>(kLaunchPart));
    EXPECT_EQ(service_rig_long_read(rig_, kLaunchPart, kLaunchPart), -ESTALE);
    EXPECT_NE(std::string(gpunvme_error()).find("read through leased queues"), std::string::npos);
}

TEST_F(ServiceLaunch, AKernelThatComesTooLateDoesNotBegin)
{
    start(kHasty);
    give_up();
    EXPECT_FALSE(service_rig_has_left());
    EXPECT_EQ(service_rig_long_read(rig_, 4096, 0), 4096) << "by the block, meanwhile";
    EXPECT_EQ(rig_->bytes, 4096u);
    EXPECT_FALSE(service_rig_let_launched(rig_)) << "nobody waits";
    EXPECT_EQ(service_rig_long_read(rig_, kLaunchPart, 0), static_cast<int64_t>(kLaunchPart));
    EXPECT_EQ(rig_->parts, 2u);
}

TEST_F(ServiceLaunch, MemoryGoesAfterAKernelThatWasGivenUpHasEnded)
{
    start(kHasty);
    give_up();
    std::atomic<bool> ended{false};
    std::thread later([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        ended = true;
        service_rig_let_launched(rig_);
    });
    EXPECT_TRUE(service_rig_settle());
    EXPECT_TRUE(ended);
    EXPECT_TRUE(service_rig_has_left());
    later.join();
}

TEST_F(ServiceLaunch, AContextThatFailsEndsTheWait)
{
    start(3 * kPatient);
    service_rig_set_launch(rig_, 1, true);
    rig_->fail_stream = true;
    EXPECT_EQ(service_rig_long_read(rig_, kLaunchPart, 0), -EIO);
    EXPECT_EQ(service_rig_long_read(rig_, kLaunchPart, 0), -EIO) << "at once";
    EXPECT_TRUE(service_rig_settle()) << "nothing runs there";
}

// --- Reads of one command: both halves of the block, against a controller ------------------------

using direct_stack::kLba, direct_stack::kPage, direct_stack::Stack;

constexpr uint32_t kDepth = 4;
constexpr uint32_t kFree = 0;
constexpr uint64_t kHold = 10 * kMs, kServe = 100 * kMs;
constexpr int64_t kWhole = kPage;

// Goes before the queues that it drives.
class Block
{
  public:
    Block() { EXPECT_EQ(service_rig_open(10000 * kMs, &rig), 0); }
    ~Block()
    {
        rig->stopped_ns = 0;
        service_rig_close(rig);
    }
    // To page `page` of the stack's memory.
    int64_t read(Stack &s, size_t page, uint64_t offset) { return read(s, s.file, page, offset); }
    int64_t read(Stack &s, const gpunvme_device_file &file, size_t page, uint64_t offset,
                 uint64_t len = kPage)
    {
        gd_buffer b = s.buffer();
        return service_rig_command(&file, &b, page * kPage - 64, len, offset);
    }
    // To byte `at` of the stack's memory.
    int64_t read_at(Stack &s, size_t at, uint64_t len, uint64_t offset)
    {
        gd_buffer b = s.buffer();
        return service_rig_command(&s.file, &b, at - 64, len, offset);
    }
    // A block whose clock stands never leaves.
    void stop_clock(uint64_t later_ns = 0) { service_rig_stop_clock(rig, later_ns); }
    void await_look_at_clock() const
    {
        unsigned polls = rig->clock_polls;
        while (rig->clock_polls < polls + 2) // one may have begun before
            std::this_thread::yield();
    }
    void await_leaving() const
    {
        while (!service_rig_has_left())
            std::this_thread::yield();
    }
    void leave()
    {
        rig->stopped_ns = 0;
        await_leaving();
    }

    struct service_rig *rig = nullptr;
};

// The pages of the file's first two extents: no hole.
uint64_t page_of(unsigned i)
{
    return i % 5 * kPage;
}

unsigned count(Stack &s, uint32_t n_queues, uint32_t state)
{
    unsigned n = 0;
    for (uint32_t i = 0; i < n_queues; i++) {
        uint32_t word = s.lock(i); // one that is lost may be taken as well
        n += (word & GD_LOST ? GD_LOST : word & GD_TAKEN) == state;
    }
    return n;
}

using Rings = ::testing::TestWithParam<uint32_t>;

INSTANTIATE_TEST_SUITE_P(Depths, Rings, ::testing::Values(2u, 3u, 4u, 65535u));

// The host waits for the copies that the warp makes of staged bytes.
TEST_P(Rings, GoRoundAndBytesAreRight)
{
    for (unsigned n = 0; n < 6; n++) {
        const bool staged = n % 2;
        Stack s(std::array{1u, 3u, 4u}[n / 2], GetParam(), 20);
        Block block;
        if (staged)
            s.stage_all();
        for (unsigned i = 0; i < 40; i++) {
            const bool is_long = staged && i % 3 == 0;
            size_t page = 1 + i % 7;
            uint64_t len = is_long ? 2 * kPage : staged ? i % 3 * kLba : kPage;
            uint64_t offset = is_long ? 3 * kPage : page_of(i);
            memset(&s.pages[page - 1], 0x5a, 4 * kPage);
            ASSERT_EQ(block.read(s, s.file, page, offset, len), static_cast<int64_t>(len)) << i;
            ASSERT_TRUE(s.holds(page * kPage, len, offset)) << i << " in turn " << n;
            EXPECT_EQ(s.pages[page - 1].bytes[kPage - 1], 0x5a);
            EXPECT_EQ(s.pages[0].bytes[page * kPage + len], 0x5a);
        }
        block.leave();
        EXPECT_EQ(s.commands, 40u);
        EXPECT_EQ(s.odd_commands, 0u);
        EXPECT_EQ(block.rig->reads, 0u) << "all were commands";
    }
}

TEST(ServiceQueues, ThreadsTakeTurns)
{
    constexpr size_t kThreads = 4;
    Stack s(4, 2, 20);
    Block block;
    std::vector<std::string> wrong(kThreads);
    in_threads(kThreads, [&](size_t t) {
        for (unsigned i = 0; i < 100; i++) {
            size_t page = 1 + t;
            if (block.read(s, page, page_of(i + t)) != kWhole ||
                !s.holds(page * kPage, kPage, page_of(i + t)))
                wrong[t] += std::to_string(i) + ", ";
        }
    });
    for (const std::string &w : wrong)
        EXPECT_EQ(w, "");
    EXPECT_EQ(s.commands, 100 * kThreads);
}

// Waits until n queues are in the state, since an answer comes before its queue is given back.
// Readers that go on may change the number at once, so it is not counted again.
bool come_to_be(Stack &s, uint32_t n_queues, uint32_t state, unsigned n)
{
    for (int i = 0; i < 10000; i++) {
        if (count(s, n_queues, state) == n)
            return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
}

// Each has a block, and its own queue, as soon as a kernel knows of them.
TEST(ServiceQueues, ThreadsReadAtTheSameTime)
{
    Stack s(8, kDepth, 20);
    Block block;
    std::atomic<bool> done{false};
    std::atomic<unsigned> wrong{0};
    std::vector<std::thread> threads;
    for (size_t page : {1, 2})
        threads.emplace_back([&, page] {
            for (unsigned i = 0; !done; i++)
                wrong += block.read(s, page, page_of(i)) != kWhole ||
                         !s.holds(page * kPage, kPage, page_of(i));
        });
    EXPECT_TRUE(come_to_be(s, 8, GD_TAKEN, 2));
    done = true;
    for (std::thread &t : threads)
        t.join();
    EXPECT_EQ(wrong, 0u);
    block.leave();
    EXPECT_EQ(count(s, 8, kFree), 8u);
}

TEST(ServiceQueues, WhatIsNoCommandIsNotMadeOne)
{
    Stack s(4, kDepth, 20);
    Block block;
    uint64_t hole = 5 * kPage;
    EXPECT_EQ(block.read(s, s.file, 1, hole), -ENOTSUP);
    EXPECT_EQ(block.read(s, s.file, 1, kPage, 2 * kPage), -ENOTSUP) << "over the edge of an extent";
    EXPECT_EQ(block.read(s, s.file, 1, 7), -ENOTSUP);
    EXPECT_EQ(block.read(s, s.file, 1, 2 * kPage, 3 * kPage), -ENOTSUP) << "longer than a command";
    EXPECT_EQ(block.read(s, s.file, 1, kLba, kLba), static_cast<int64_t>(kLba));
    EXPECT_TRUE(s.holds(kPage, kLba, kLba));
}

TEST(ServiceQueues, AQueueIsKeptOnlyWhereOthersAreLeft)
{
    for (uint32_t n_queues : {1u, 3u, 4u}) {
        Stack s(n_queues, kDepth, 3);
        Block block;
        block.stop_clock();
        for (unsigned i = 0; i < 3; i++) {
            ASSERT_EQ(block.read(s, 1, 0), kWhole);
            ASSERT_TRUE(come_to_be(s, n_queues, GD_TAKEN, n_queues < 4 ? 0 : 1)) << n_queues;
        }
        block.leave();
        EXPECT_EQ(count(s, n_queues, kFree), n_queues) << "who leaves gives it back";
    }
}

// The block serves reads of a file of three extents.
struct ServiceCommand : ::testing::Test {
    Stack s{4, kDepth, 3};
    Block block;
};

TEST_F(ServiceCommand, AQueueIsKeptForAWhile)
{
    std::atomic<bool> long_one{false};
    s.on_command = [&] {
        if (long_one) {
            block.stop_clock(kHold + kMs);
            block.await_look_at_clock();
        }
        return true;
    };
    block.stop_clock();
    ASSERT_EQ(block.read(s, 1, 0), kWhole);
    std::vector<uint32_t> before = s.locks;
    for (unsigned i = 0; i < 10; i++)
        ASSERT_EQ(block.read(s, 1, 0), kWhole);
    EXPECT_EQ(s.locks, before);
    long_one = true;
    ASSERT_EQ(block.read(s, 1, 0), kWhole);
    EXPECT_TRUE(come_to_be(s, 4, kFree, 4));
    EXPECT_FALSE(service_rig_has_left());
}

// Other callers may wait for all kernels to end, while reads come without an end.
TEST_F(ServiceCommand, TheBlockLeavesAfterAWhileThoughReadsCome)
{
    std::atomic<uint64_t> later{0};
    s.on_command = [&] {
        if (uint64_t ns = later.exchange(0)) {
            block.stop_clock(ns);
            block.await_look_at_clock();
        }
        return true;
    };
    for (unsigned launches = 1; launches <= 3; launches++) {
        block.stop_clock();
        ASSERT_EQ(block.read(s, 1, 0), kWhole);
        EXPECT_EQ(block.rig->launches, launches);
        later = kServe / 2;
        ASSERT_EQ(block.read(s, 1, 0), kWhole);
        ASSERT_EQ(block.read(s, 1, 0), kWhole);
        EXPECT_FALSE(service_rig_has_left());
        later = 2 * kServe;
        ASSERT_EQ(block.read(s, 1, 0), kWhole);
        block.await_leaving();
        EXPECT_EQ(count(s, 4, kFree), 4u);
    }
}

// The one that is not free, of all.
uint32_t taken(const std::vector<uint32_t> &locks)
{
    uint32_t i = 0;
    while (i < locks.size() && GD_FREE(locks[i]))
        i++;
    return i;
}

// A waiter for the queue has the time of one trip to take it: the next one is tried before.
TEST_F(ServiceCommand, AQueueThatWasKeptIsTheLastToBeTakenAgain)
{
    std::atomic<bool> long_one{false};
    s.on_command = [&] {
        if (long_one.exchange(false)) {
            block.stop_clock(kHold + kMs);
            block.await_look_at_clock();
        }
        return true;
    };
    block.stop_clock();
    for (unsigned i = 0; i < 5; i++) {
        ASSERT_EQ(block.read(s, 1, 0), kWhole);
        uint32_t kept = taken(s.locks);
        ASSERT_LT(kept, 4u);
        long_one = true;
        ASSERT_EQ(block.read(s, 1, 0), kWhole);
        ASSERT_TRUE(come_to_be(s, 4, kFree, 4));
        ASSERT_EQ(block.read(s, 1, 0), kWhole);
        EXPECT_EQ(taken(s.locks), (kept + 1) % 4) << i;
    }
    EXPECT_FALSE(service_rig_has_left());
}

TEST_F(ServiceCommand, WhoWaitsForTheOnlyQueueThatIsLeftGetsIt)
{
    constexpr int kReads = 10;
    std::atomic<bool> done{false};
    int got = 0;
    for (uint32_t i = 0; i < 3; i++)
        __atomic_store_n(&s.locks[i], GD_TAKEN, __ATOMIC_RELEASE);
    std::thread other([&] {
        for (int i = 0; i < kReads; i++)
            got += s.read_alone(2 * kPage, kPage, 0) == kWhole;
        done = true;
    });
    int64_t last = kWhole;
    while (!done && last == kWhole)
        last = block.read(s, 1, 0);
    other.join();
    EXPECT_EQ(last, kWhole);
    EXPECT_EQ(got, kReads);
}

TEST_F(ServiceCommand, ForAReadThatIsNoCommandTheQueueIsGivenBack)
{
    block.stop_clock();
    ASSERT_EQ(block.read(s, 1, 0), kWhole);
    EXPECT_EQ(service_rig_read(100, 7), 100);
    EXPECT_EQ(count(s, 4, kFree), 4u);
    EXPECT_EQ(block.read(s, 1, 0), kWhole);
}

// Where the rings of a queue stand goes from hand to hand.
TEST(ServiceQueues, QueuesAreSharedWithOthersWhoRead)
{
    Stack s(4, kDepth, 20);
    Block block;
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    std::vector<std::string> wrong(2);
    for (size_t t = 0; t < wrong.size(); t++)
        threads.emplace_back([&, t] {
            for (unsigned i = 0; !stop || i < 50; i++) {
                size_t at = (20 + 8 * t) * kPage;
                uint64_t offset = page_of(i), len = i % 3 ? kPage : kPage + 5;
                if (s.read(at, len, offset) != static_cast<int64_t>(len) ||
                    !s.holds(at, len, offset))
                    wrong[t] = std::to_string(len) + " at " + std::to_string(offset);
            }
        });
    for (unsigned i = 0; i < 300; i++) {
        ASSERT_EQ(block.read(s, 1, page_of(i)), kWhole) << i;
        ASSERT_TRUE(s.holds(kPage, kPage, page_of(i))) << i;
    }
    stop = true;
    for (std::thread &t : threads)
        t.join();
    for (const std::string &w : wrong)
        EXPECT_EQ(w, "");
}

TEST(ServiceQueues, FilesTakeTurns)
{
    Stack s(4, kDepth, 20);
    Block block;
    uint32_t lease = GD_LEASE_VALID;
    uint64_t checked = 0;
    gpunvme_device_file other = s.file;
    std::vector<gq_file_extent> extents = {{0, 11}, {4 * kPage, 900}};
    other.map = {extents.data(), 8 * kPage, 2, kLba};
    other.lease = &lease;
    other.checked_ns = &checked;
    for (unsigned i = 0; i < 20; i++) {
        ASSERT_EQ(block.read(s, 1, page_of(i)), kWhole);
        ASSERT_TRUE(s.holds(kPage, kPage, page_of(i))) << i;
        uint64_t place = i % 4 * kPage, lba = extents[0].lba + place / kLba;
        ASSERT_EQ(block.read(s, other, 2, place), kWhole);
        ASSERT_TRUE(s.is_media(2 * kPage, kPage, lba)) << i;
        extents[0].lba = 11 + i % 3; // another file, with all of it in the same places
    }
}

// Of a queue that is kept the lease is good; each command's extents may have ended.
TEST_F(ServiceCommand, TheExtentsOfEachCommandAreChecked)
{
    uint32_t lease = GD_LEASE_REVOKED;
    uint64_t checked = 0;
    gpunvme_device_file other = s.file;
    other.lease = &lease;
    other.checked_ns = &checked;
    block.stop_clock();
    ASSERT_EQ(block.read(s, 1, 0), kWhole);
    EXPECT_EQ(block.read(s, other, 2, 0), -ESTALE);
    EXPECT_EQ(s.commands, 1u);
    EXPECT_TRUE(come_to_be(s, 4, kFree, 4));
    for (uint32_t i = 0; i < 4; i++)
        EXPECT_EQ(s.lock(i) & GD_CQ_DB_PENDING, 0u) << "the CQ doorbell was stored all the same";
    EXPECT_EQ(block.read(s, 1, 0), kWhole) << "the other file's lease is good";
    __atomic_store_n(&lease, GD_LEASE_VALID, __ATOMIC_RELAXED);
    EXPECT_EQ(block.read(s, other, 2, 0), kWhole);
    EXPECT_NE(checked, 0u);
}

TEST_F(ServiceCommand, NothingIsSentOnceTheLeaseIsKnownToHaveEnded)
{
    block.stop_clock();
    ASSERT_EQ(block.read(s, 1, 0), kWhole);
    __atomic_store_n(&s.lease, GD_LEASE_REVOKED, __ATOMIC_RELAXED);
    ASSERT_EQ(block.read(s, 1, 0), kWhole) << "it was good a moment ago";
    block.stop_clock(kMs);
    for (unsigned i = 0; i < 5; i++)
        EXPECT_EQ(block.read(s, 1, 0), -ESTALE);
    EXPECT_EQ(s.commands, 2u);
    EXPECT_TRUE(come_to_be(s, 4, kFree, 4));
}

TEST_F(ServiceCommand, ALeaseThatEndsTakesTheCommandUnderWayWithIt)
{
    s.on_command = [&] {
        __atomic_store_n(&s.lease, GD_LEASE_REVOKED, __ATOMIC_RELAXED);
        return false;
    };
    EXPECT_EQ(block.read(s, 1, 0), -ESTALE);
    EXPECT_EQ(s.commands, 1u);
    block.leave();
    EXPECT_EQ(count(s, 4, GD_LOST), 1u);
    EXPECT_EQ(count(s, 4, GD_TAKEN), 0u);
}

TEST_F(ServiceCommand, ACommandThatIsLostCostsItsQueue)
{
    std::atomic<bool> lose{true};
    s.file.set.command_ns = 50000000;
    s.on_command = [&] { return !lose.exchange(false); };
    EXPECT_EQ(block.read(s, 1, 0), -ETIMEDOUT);
    s.file.set.command_ns = 20000000000; // a loaded machine misses no deadline
    for (unsigned i = 0; i < 3 * kDepth; i++)
        ASSERT_EQ(block.read(s, 1, page_of(i % 2)), kWhole) << i;
    EXPECT_EQ(count(s, 4, GD_LOST), 1u);
    block.leave();
    EXPECT_EQ(count(s, 4, GD_TAKEN), 0u);
}

TEST_F(ServiceCommand, TheDrivesErrorIsReportedAndTheQueueGoesOn)
{
    for (unsigned i = 0; i < 3 * kDepth; i++) {
        s.status_of_next = i % 3 == 1 ? 0x281 : 0;
        ASSERT_EQ(block.read(s, 1, 0), i % 3 == 1 ? -EIO : kWhole) << i;
    }
    block.leave();
    EXPECT_EQ(count(s, 4, kFree), 4u);
}

TEST_F(ServiceCommand, ACompletionOfAnotherCommandIsNotBelieved)
{
    ASSERT_EQ(block.read(s, 1, 0), kWhole);
    s.cid_error = 1;
    EXPECT_EQ(block.read(s, 1, 0), -EIO);
    EXPECT_TRUE(come_to_be(s, 4, GD_LOST, 1));
}

TEST_F(ServiceCommand, AStagedReadReportsTheDrivesErrorAndCopiesNothing)
{
    s.stage_all();
    memset(&s.pages[1], 0x5a, kPage);
    s.status_of_next = 0x281;
    EXPECT_EQ(block.read(s, 1, 0), -EIO);
    EXPECT_EQ(s.pages[1].bytes[0], 0x5a);
    ASSERT_EQ(block.read(s, 1, 0), kWhole);
    EXPECT_TRUE(s.holds(kPage, kPage, 0));
}

// The host may know of the end before the block does.
TEST_F(ServiceCommand, AFileMayBeClosedWhenItsReadHasEnded)
{
    for (unsigned i = 0; i < 100; i++) {
        auto lease = std::make_unique<uint32_t>(GD_LEASE_VALID);
        auto checked = std::make_unique<uint64_t>(0);
        gpunvme_device_file file = s.file;
        file.lease = lease.get();
        file.checked_ns = checked.get();
        ASSERT_EQ(block.read(s, file, 1, 0), kWhole) << i;
        block.stop_clock(kMs / 2); // all that is due now and then is due at once
    }
}

// Queues that the block was not launched with are for the general path, until it has left.
TEST(ServiceQueues, OtherQueuesWaitForAnotherBlock)
{
    Stack first(4, kDepth, 3), second(4, kDepth, 3);
    Block block;
    ASSERT_EQ(block.read(first, 1, 0), kWhole);
    for (unsigned i = 0; i < 5; i++)
        ASSERT_EQ(block.read(second, 1, 0), kWhole);
    EXPECT_EQ(second.commands + block.rig->reads, 5u);
    block.leave();
    unsigned before = second.commands;
    EXPECT_EQ(block.read(second, 1, 0), kWhole);
    EXPECT_EQ(second.commands, before + 1);
    EXPECT_EQ(first.commands, 1u);
}

// A block that has a checksum is one command, too; the warp compares it where it then is.
class Compared : public ::testing::TestWithParam<bool>
{
  protected:
    Compared()
    {
        s_.add_sums();
        if (GetParam())
            s_.stage_all();
    }
    Stack s_{4, kDepth, 20};
    Block block_;
};

TEST_P(Compared, BlocksAreCommands)
{
    for (unsigned i = 0; i < 40; i++) {
        size_t page = 1 + i % 7;
        if (i == 20) // without one
            s_.sums[page_of(i) / kPage] = 0;
        memset(&s_.pages[page], 0x5a, kPage);
        ASSERT_EQ(block_.read(s_, page, page_of(i)), kWhole) << i;
        ASSERT_TRUE(s_.holds(page * kPage, kPage, page_of(i))) << i;
    }
    block_.leave();
    EXPECT_EQ(s_.commands, 40u);
    EXPECT_EQ(s_.odd_commands, 0u);
    EXPECT_EQ(block_.rig->reads, 0u) << "all were commands";
}

TEST_P(Compared, ABlockThatDiffersIsReadByTheGeneralPath)
{
    for (unsigned i = 0; i < 10; i++) {
        uint32_t &sum = s_.sums[page_of(i) / kPage];
        sum ^= 1u << i;
        ASSERT_EQ(block_.read(s_, 1, page_of(i)), kWhole) << i;
        EXPECT_EQ(block_.rig->reads, i + 1);
        sum ^= 1u << i;
        ASSERT_EQ(block_.read(s_, 1, page_of(i)), kWhole) << i;
        EXPECT_EQ(block_.rig->reads, i + 1) << "the queue works on";
    }
}

TEST_P(Compared, OnlyWholeBlocksAreCommands)
{
    EXPECT_EQ(block_.read(s_, s_.file, 1, 0, kLba), -ENOTSUP);
    EXPECT_EQ(block_.read(s_, s_.file, 1, kLba, kPage), -ENOTSUP);
    EXPECT_EQ(block_.read(s_, s_.file, 1, 3 * kPage, 2 * kPage), -ENOTSUP);
}

// The completion says nothing of the checksum.
INSTANTIATE_TEST_SUITE_P(Ways, Compared, ::testing::Bool(),
                         [](const auto &info) { return info.param ? "staged" : "reached"; });

} // namespace
