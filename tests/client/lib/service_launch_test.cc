/* SPDX-License-Identifier: BSD-2-Clause */
// Long reads that a host waits for, by kernels of their own (client/lib/direct_service.h).
#include <errno.h>

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "gpunvme/gpunvme.h"
#include "tests/client/lib/service_rig.h"

namespace
{

constexpr uint64_t kPart = 256u << 20, kPatient = 60u * 1000000000ull, kHasty = 20u * 1000000ull;

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
        ASSERT_EQ(service_rig_long_read(rig_, kPart, 0), -ETIMEDOUT);
        ASSERT_EQ(rig_->parts, 1u);
        service_rig_set_launch(rig_, 1, false);
    }

    struct service_rig *rig_ = nullptr;
};

TEST_F(ServiceLaunch, EachPartHasAKernel)
{
    start(kPatient);
    const auto len = static_cast<int64_t>(3 * kPart + 5);
    EXPECT_EQ(service_rig_long_read(rig_, 3 * kPart + 5, 7), len);
    EXPECT_EQ(rig_->parts, 4u);
    EXPECT_EQ(rig_->part_bytes, 3 * kPart + 5);
    EXPECT_EQ(rig_->launches, 0u) << "no block stays";
    EXPECT_TRUE(service_rig_has_left());
}

TEST_F(ServiceLaunch, WhatIsNotLaunchedIsReadByTheBlock)
{
    start(kPatient);
    service_rig_set_launch(rig_, 0, false);
    EXPECT_EQ(service_rig_long_read(rig_, kPart + 1, 0), static_cast<int64_t>(kPart + 1));
    EXPECT_EQ(rig_->bytes, kPart + 1);
    EXPECT_EQ(rig_->parts, 0u);
}

TEST_F(ServiceLaunch, ALaunchThatFailsIsTheReadsError)
{
    start(kPatient);
    service_rig_set_launch(rig_, -EIO, false);
    EXPECT_EQ(service_rig_long_read(rig_, kPart, 0), -EIO);
    EXPECT_TRUE(service_rig_has_left());
    EXPECT_EQ(rig_->reads, 0u);
    service_rig_set_launch(rig_, 1, false);
    EXPECT_EQ(service_rig_long_read(rig_, kPart, 0), static_cast<int64_t>(kPart));
}

TEST_F(ServiceLaunch, KernelsThatALaunchHasLeftBehindAreNotForgotten)
{
    start(kHasty);
    service_rig_set_launch(rig_, -ETIMEDOUT, false);
    EXPECT_EQ(service_rig_long_read(rig_, kPart, 0), -ETIMEDOUT);
    EXPECT_FALSE(service_rig_has_left());
    service_rig_set_launch(rig_, 1, false);
    EXPECT_EQ(service_rig_long_read(rig_, kPart, 0), static_cast<int64_t>(kPart));
    EXPECT_EQ(rig_->bytes, kPart) << "by the block";
    rig_->is_idle = true;
    unsigned parts = rig_->parts;
    EXPECT_EQ(service_rig_long_read(rig_, kPart, 0), static_cast<int64_t>(kPart));
    EXPECT_EQ(rig_->parts, parts + 1) << "by a launch again";
}

TEST_F(ServiceLaunch, AnErrorInTheMiddleLeavesWhatCameBefore)
{
    start(kPatient);
    service_rig_fail_from(rig_, kPart, -ESTALE);
    EXPECT_EQ(service_rig_long_read(rig_, 2 * kPart, 0), static_cast<int64_t>(kPart));
    EXPECT_EQ(service_rig_long_read(rig_, kPart, kPart), -ESTALE);
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
    EXPECT_EQ(service_rig_long_read(rig_, kPart, 0), static_cast<int64_t>(kPart));
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
    start(kPatient);
    service_rig_set_launch(rig_, 1, true);
    rig_->fail_stream = true;
    EXPECT_EQ(service_rig_long_read(rig_, kPart, 0), -EIO);
    EXPECT_EQ(service_rig_long_read(rig_, kPart, 0), -EIO) << "at once";
    EXPECT_TRUE(service_rig_settle()) << "nothing runs there";
}

} // namespace
