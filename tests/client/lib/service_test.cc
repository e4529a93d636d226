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

#include <cstring>
#include <gtest/gtest.h>

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

TEST_F(Service, MemoryOfAReadIsKeptUntilTheBlockHasLeftTheRead)
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

TEST_F(Service, TheResultOfAnAbandonedReadIsDropped)
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

TEST_F(Service, ReadsAfterAFailedContextAreNotSubmitted)
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

// --- Reads of files through their queues --------------------------------------------------------

using direct_stack::kLba, direct_stack::kPage, direct_stack::Stack;

constexpr uint64_t kServe = 100 * kMs; // as long as a block stays
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
    int64_t read(Stack &s, size_t page, uint64_t offset, uint64_t len = kPage)
    {
        return read(s, s.file, page, offset, len);
    }
    int64_t read(Stack &s, const gpunvme_device_file &file, size_t page, uint64_t offset,
                 uint64_t len = kPage)
    {
        auto addr = reinterpret_cast<uint64_t>(s.pages[0].bytes + page * kPage);
        return service_rig_read_file(&file, addr, len, offset);
    }
    // A block whose clock stands never leaves.
    void stop_clock(uint64_t later_ns = 0) { service_rig_stop_clock(rig, later_ns); }
    void await_leaving() const
    {
        while (!service_rig_has_left())
            std::this_thread::yield();
    }

    struct service_rig *rig = nullptr;
};

// The pages of the file's first two extents: no hole.
uint64_t page_of(unsigned i)
{
    return i % 5 * kPage;
}

TEST(ServiceFile, ThreadsGetTheBytesOfAnyReads)
{
    constexpr size_t kThreads = 4;
    for (bool staged : {false, true}) {
        Stack s(4, 64, 20);
        Block block;
        if (staged)
            s.stage_all();
        std::vector<std::string> wrong(kThreads);
        in_threads(kThreads, [&](size_t t) {
            for (unsigned i = 0; i < 100; i++) {
                size_t page = 1 + 4 * t;
                uint64_t len = i % 3 == 0 ? 2 * kPage : i % 3 * kLba + i % 2, offset = page_of(i);
                if (block.read(s, page, offset, len) != static_cast<int64_t>(len) ||
                    !s.holds(page * kPage, len, offset))
                    wrong[t] += std::to_string(i) + ", ";
            }
        });
        for (const std::string &w : wrong)
            EXPECT_EQ(w, "");
        EXPECT_EQ(s.odd_commands, 0u);
    }
}

// Other callers may wait for all kernels to end, while reads come without an end.
TEST(ServiceFile, TheBlockLeavesAfterAWhileThoughReadsCome)
{
    Stack s(4, 64, 3);
    Block block;
    std::atomic<uint64_t> later{0};
    s.on_command = [&] {
        if (uint64_t ns = later.exchange(0))
            block.stop_clock(ns);
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
    }
}

TEST(ServiceFile, EachReadNamesItsFile)
{
    Stack s(4, 64, 20);
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
    __atomic_store_n(&lease, GD_LEASE_REVOKED, __ATOMIC_RELAXED);
    checked = 0;
    EXPECT_EQ(block.read(s, other, 2, 0), -ESTALE);
    EXPECT_EQ(block.read(s, 1, 0), kWhole) << "the other file's lease is good";
}

TEST(ServiceFile, TheDrivesErrorIsReportedAndTheQueueGoesOn)
{
    Stack s(4, 64, 3);
    Block block;
    for (unsigned i = 0; i < 12; i++) {
        s.status_of_next = i % 3 == 1 ? 0x281 : 0;
        ASSERT_EQ(block.read(s, 1, 0), i % 3 == 1 ? -EIO : kWhole) << i;
    }
}

} // namespace
