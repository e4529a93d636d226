/* SPDX-License-Identifier: BSD-2-Clause */
// Reads in a stream whose first, second or third launch CUDA refuses.
#include <errno.h>

#include <chrono>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "gpunvme/gpunvme.h"
#include "tests/client/lib/launch_rig.h"

namespace
{

constexpr uint64_t kPatient = 20u * 1000000000ull, kHasty = 10u * 1000000ull;
constexpr unsigned kMoreThanSlots = 70, kKernels = 3; // of a read that is compared

struct shape {
    const char *name;
    bool stages, sums, list;
};

class Launch : public ::testing::TestWithParam<shape>
{
  protected:
    void TearDown() override
    {
        if (rig_)
            launch_rig_close(rig_);
    }
    void start(uint64_t command_ns)
    {
        rig_ = launch_rig_open(GetParam().stages, GetParam().sums, command_ns);
        ASSERT_NE(rig_, nullptr);
    }
    int read() { return GetParam().list ? launch_rig_list(rig_) : launch_rig_read(rig_); }
    // A read that has all its kernels, in the end.
    void expect_whole()
    {
        unsigned before = launch_rig_counts(rig_).launches;
        ASSERT_EQ(read(), 0);
        EXPECT_EQ(launch_rig_counts(rig_).launches, before + kKernels);
        int64_t bytes = launch_rig_result(rig_);
        EXPECT_EQ(bytes, GetParam().list ? 0 : static_cast<int64_t>(LAUNCH_RIG_BYTES));
    }

    struct launch_rig *rig_ = nullptr;
};

TEST_P(Launch, WhatWasLaunchedHasEndedWhenTheCallFails)
{
    start(kPatient);
    for (unsigned nth = 1; nth <= kKernels; nth++) {
        launch_rig_hold(rig_, true);
        launch_rig_refuse(rig_, nth);
        std::thread later([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            launch_rig_hold(rig_, false);
        });
        EXPECT_EQ(read(), -ENOMEM) << nth;
        EXPECT_EQ(launch_rig_counts(rig_).under_way, 0u) << nth;
        EXPECT_NE(std::string(gpunvme_error()).find("what CUDA says"), std::string::npos);
        later.join();
    }
    expect_whole();
}

TEST_P(Launch, WordsOfReadsThatFailedAreUsedAgain)
{
    start(kPatient);
    launch_rig_differ(rig_, true);
    for (unsigned nth = 1; nth <= kKernels; nth++) {
        for (unsigned i = 0; i < kMoreThanSlots; i++) {
            launch_rig_refuse(rig_, nth);
            ASSERT_EQ(read(), -ENOMEM);
        }
        expect_whole();
    }
    EXPECT_EQ(launch_rig_counts(rig_).dirty, 0u);
}

TEST_P(Launch, AKernelThatDoesNotEndIsTold)
{
    start(kHasty);
    launch_rig_hold(rig_, true);
    launch_rig_refuse(rig_, 2);
    EXPECT_EQ(read(), -ETIMEDOUT);
    EXPECT_NE(std::string(gpunvme_error()).find("synchronise the stream"), std::string::npos);
    launch_rig_hold(rig_, false);
    expect_whole();
}

INSTANTIATE_TEST_SUITE_P(Compared, Launch,
                         ::testing::Values(shape{"read", false, true, false},
                                           shape{"staged", true, true, false},
                                           shape{"list", false, true, true}),
                         [](const auto &info) { return std::string(info.param.name); });

// A staged read without checksums is one kernel, also while it is captured.
using LaunchCaptured = Launch;

TEST_P(LaunchCaptured, NothingIsWaitedForNorAsked)
{
    start(kPatient);
    launch_rig_capture(rig_, true);
    launch_rig_refuse(rig_, 1);
    EXPECT_EQ(read(), -ENOMEM);
    EXPECT_EQ(launch_rig_counts(rig_).queries, 0u) << "it would invalidate the capture";
    unsigned before = launch_rig_counts(rig_).launches;
    EXPECT_EQ(read(), 0);
    EXPECT_EQ(launch_rig_counts(rig_).launches, before + 1);
}

INSTANTIATE_TEST_SUITE_P(Staged, LaunchCaptured,
                         ::testing::Values(shape{"staged", true, false, false}),
                         [](const auto &info) { return std::string(info.param.name); });

} // namespace
