/* SPDX-License-Identifier: BSD-2-Clause */
// The host's half of reads by the persistent kernel: the request, the bounds of the waits,
// the result.
#include <atomic>
#include <cerrno>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "gpunvme/gpunvme.h"
#include "tests/client/lib/service_rig.h"

namespace
{

constexpr uint64_t kPart = 64u << 20, kMs = 1000000, kPatient = 20000 * kMs, kHasty = 20 * kMs;

class Service : public ::testing::Test
{
  protected:
    void start(uint64_t command_ns)
    {
        ASSERT_EQ(service_rig_open(command_ns, &rig_), 0);
    }
    void TearDown() override
    {
        EXPECT_TRUE(!rig_ || service_rig_close(rig_));
    }
    struct service_rig *rig_ = nullptr;
};

TEST_F(Service, NothingRunsBeforeTheFirstRead)
{
    start(kPatient);
    EXPECT_EQ(service_rig_launches(rig_), 0u);
    EXPECT_EQ(service_rig_read(rig_, 0, 5), 0);
    EXPECT_EQ(service_rig_reads(rig_), 0u) << "there is nothing to ask for";
    EXPECT_EQ(service_rig_read(rig_, 4096, 8192), 4096);
    EXPECT_EQ(service_rig_launches(rig_), 1u);
    EXPECT_EQ(service_rig_held(rig_), 4);
}

TEST_F(Service, ABlockThatLeftIsLaunchedAgain)
{
    start(kPatient);
    for (unsigned i = 1; i <= 20; i++) {
        ASSERT_EQ(service_rig_read(rig_, i, i), i);
        if (i % 5 == 0)
            usleep(20000);
    }
    EXPECT_EQ(service_rig_reads(rig_), 20u) << "each once";
    EXPECT_GE(service_rig_launches(rig_), 1u);
}

TEST_F(Service, LongReadsGoInParts)
{
    start(kPatient);
    EXPECT_EQ(service_rig_read(rig_, 3 * kPart + 5, 77), static_cast<int64_t>(3 * kPart + 5));
    EXPECT_EQ(service_rig_reads(rig_), 4u);
    EXPECT_EQ(service_rig_bytes(rig_), 3 * kPart + 5);
}

TEST_F(Service, AnErrorIsToldOrWhatCameBeforeIt)
{
    start(kPatient);
    service_rig_fail_from(rig_, 2 * kPart, -ESTALE);
    EXPECT_EQ(service_rig_read(rig_, 3 * kPart, 0), static_cast<int64_t>(2 * kPart));
    EXPECT_EQ(service_rig_reads(rig_), 3u) << "not beyond the error";
    EXPECT_EQ(service_rig_read(rig_, kPart, 2 * kPart), -ESTALE);
    EXPECT_EQ(service_rig_read(rig_, kPart, 0), static_cast<int64_t>(kPart));
}

TEST_F(Service, ThreadsTakeTurns)
{
    constexpr unsigned kThreads = 4, kReads = 50;
    std::vector<std::thread> threads;
    std::atomic<unsigned> wrong{0};
    start(kPatient);
    for (unsigned t = 0; t < kThreads; t++)
        threads.emplace_back([&, t] {
            for (unsigned i = 1; i <= kReads; i++)
                wrong += service_rig_read(rig_, t * 1000 + i, t) != t * 1000 + i;
        });
    for (auto &thread : threads)
        thread.join();
    EXPECT_EQ(wrong, 0u);
    EXPECT_EQ(service_rig_reads(rig_), kThreads * kReads);
}

TEST_F(Service, AGpuWithoutRoomIsNotWaitedForForever)
{
    start(kHasty);
    service_rig_hold(rig_, true);
    EXPECT_EQ(service_rig_read(rig_, 4096, 0), -ETIMEDOUT);
    EXPECT_EQ(service_rig_read(rig_, 4096, 0), -ETIMEDOUT);
    EXPECT_EQ(service_rig_launches(rig_), 1u) << "one waits for room, not one for each read";
    service_rig_hold(rig_, false);
    int64_t got = -ETIMEDOUT;
    for (int i = 0; i < 1000 && got == -ETIMEDOUT; i++) // it may be slow to come
        got = service_rig_read(rig_, 4096, 0);
    EXPECT_EQ(got, 4096);
    EXPECT_EQ(service_rig_bytes(rig_) % 4096, 0u);
}

TEST_F(Service, ABlockIsThereAsLongAsItMayLookAtItsRead)
{
    start(kHasty);
    EXPECT_TRUE(service_rig_has_left(rig_));
    service_rig_stick(rig_, true);
    EXPECT_EQ(service_rig_read(rig_, 100, 0), -ETIMEDOUT);
    EXPECT_FALSE(service_rig_has_left(rig_));
    service_rig_stick(rig_, false);
    for (int i = 0; i < 30000 && !service_rig_has_left(rig_); i++)
        usleep(1000);
    EXPECT_TRUE(service_rig_has_left(rig_));
}

TEST_F(Service, WhatAReadUsesIsThereUntilItIsNotAtItAnyMore)
{
    start(kHasty);
    service_rig_settle(rig_); // nothing to wait for
    service_rig_stick(rig_, true);
    EXPECT_EQ(service_rig_read(rig_, 100, 0), -ETIMEDOUT);
    std::thread later([this] {
        usleep(50000);
        service_rig_stick(rig_, false);
    });
    service_rig_settle(rig_);
    EXPECT_TRUE(service_rig_has_left(rig_));
    later.join();
}

TEST_F(Service, ABlockThatNeverLeavesIsNotWaitedForForever)
{
    start(kHasty);
    service_rig_stick(rig_, true);
    EXPECT_EQ(service_rig_read(rig_, 100, 0), -ETIMEDOUT);
    service_rig_settle(rig_);
    EXPECT_FALSE(service_rig_has_left(rig_));
    service_rig_stick(rig_, false);
}

TEST_F(Service, ABlockThatNeverLeavesKeepsItsMemoryAtTheEnd)
{
    start(kHasty);
    service_rig_stick(rig_, true);
    EXPECT_EQ(service_rig_read(rig_, 100, 0), -ETIMEDOUT);
    EXPECT_FALSE(service_rig_close(rig_));
    EXPECT_EQ(service_rig_held(rig_), 4) << "the block may access all of it";
    service_rig_stick(rig_, false);
}

TEST_F(Service, TheAnswerToAReadThatWasGivenUpIsNobodys)
{
    start(kHasty);
    service_rig_stick(rig_, true);
    EXPECT_EQ(service_rig_read(rig_, 100, 0), -ETIMEDOUT);
    service_rig_stick(rig_, false);
    int64_t got = -ETIMEDOUT;
    for (int i = 0; i < 1000 && got == -ETIMEDOUT; i++)
        got = service_rig_read(rig_, 7, 0);
    EXPECT_EQ(got, 7);
}

TEST_F(Service, ALaunchThatFailsIsTold)
{
    start(kPatient);
    service_rig_fail_launches(rig_, -EIO);
    EXPECT_EQ(service_rig_read(rig_, 4096, 0), -EIO);
    service_rig_fail_launches(rig_, 0);
    EXPECT_EQ(service_rig_read(rig_, 4096, 0), 4096);
    EXPECT_EQ(service_rig_reads(rig_), 1u) << "what was taken back is not read later";
}

TEST_F(Service, AFailedContextIsToldLongBeforeTheDeadline)
{
    start(kPatient);
    service_rig_hold(rig_, true);
    service_rig_fail_stream(rig_);
    EXPECT_EQ(service_rig_read(rig_, 4096, 0), -EIO);
    EXPECT_STREQ(gpunvme_error(), "what CUDA says");
    EXPECT_EQ(service_rig_checks(rig_), 1u);
    service_rig_hold(rig_, false);
}

TEST_F(Service, WhatComesAfterAFailedContextIsNotHandedOver)
{
    start(kPatient);
    service_rig_hold(rig_, true);
    service_rig_fail_stream(rig_);
    EXPECT_EQ(service_rig_read(rig_, 4096, 0), -EIO);
    service_rig_hold(rig_, false); // it would be read now
    std::thread([this] {
        EXPECT_EQ(service_rig_read(rig_, 4096, 0), -EIO);
        EXPECT_STREQ(gpunvme_error(), "what CUDA says") << "each thread is told";
    }).join();
    EXPECT_EQ(service_rig_read(rig_, 4096, 0), -EIO);
    EXPECT_EQ(service_rig_reads(rig_), 0u);
}

TEST_F(Service, TheDriverIsAskedRarely)
{
    start(kHasty);
    service_rig_hold(rig_, true);
    EXPECT_EQ(service_rig_read(rig_, 4096, 0), -ETIMEDOUT);
    EXPECT_NE(std::string(gpunvme_error()).find("timed out"), std::string::npos) << gpunvme_error();
    EXPECT_EQ(service_rig_checks(rig_), 1u) << "when it was given up";
    service_rig_hold(rig_, false);
}

TEST_F(Service, AChildHasNoPartInTheSharedPage)
{
    int status = 0;
    start(kPatient);
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        unsigned char there;
        bool none = mincore(service_rig_page(rig_), 1, &there) != 0 && errno == ENOMEM;
        _exit(none ? 0 : 1);
    }
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(service_rig_read(rig_, 4096, 0), 4096) << "and the parent has it still";
}

} // namespace
