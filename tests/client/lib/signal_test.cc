/* SPDX-License-Identifier: BSD-2-Clause */
// Calls of the mount that signals end: the library's caller does not see them.
#include <cerrno>
#include <climits>
#include <csignal>
#include <vector>

#include <gtest/gtest.h>

#include "tests/client/lib/signal_rig.h"

namespace
{

constexpr size_t kCalls = 7, kLong = SIGNAL_RIG_STEP * kCalls; // without interrupted calls

std::vector<gpunvme_piece> pieces()
{
    return std::vector<gpunvme_piece>(kLong, gpunvme_piece{0, 0, 512, 7});
}

void expect_all(const std::vector<gpunvme_piece> &list, int32_t result)
{
    for (size_t i = 0; i < list.size(); i++)
        ASSERT_EQ(list[i].result, result) << i;
}

TEST(Signals, EndNoRead)
{
    signal_rig r = {};
    r.interrupted = 3;
    gpunvme_result result = {};
    EXPECT_EQ(signal_rig_read(&r, kLong, &result), ssize_t{kLong});
    EXPECT_EQ(r.calls, 4 * kCalls);
    EXPECT_EQ(result.path, GPUNVME_PATH_GPU);
    EXPECT_EQ(result.commands, kCalls);
}

TEST(Signals, EndNoBatch)
{
    for (bool in_place : {false, true}) {
        signal_rig r = {};
        r.interrupted = 3;
        r.in_place = in_place;
        auto list = pieces();
        gpunvme_result result = {};
        EXPECT_EQ(signal_rig_readv(&r, list.data(), list.size(), &result), 0);
        EXPECT_LE(r.calls, 4 * kCalls);
        EXPECT_GT(r.calls, kCalls);
        EXPECT_EQ(result.path, GPUNVME_PATH_GPU);
        expect_all(list, 512);
    }
}

TEST(Signals, DoNotKeepABufferThatIsUnregistered)
{
    for (bool ended : {false, true}) {
        signal_rig r = {};
        r.interrupted = 3;
        r.ended = ended;
        r.ends_with = 6;
        EXPECT_EQ(signal_rig_read(&r, kLong, nullptr), ssize_t{SIGNAL_RIG_STEP});
        EXPECT_EQ(r.calls, 6u);
        r.ends_with = 2;
        EXPECT_EQ(signal_rig_read(&r, kLong, nullptr), -EINTR);
        auto list = pieces();
        EXPECT_EQ(signal_rig_readv(&r, list.data(), list.size(), nullptr), -EINTR);
        EXPECT_EQ(r.calls, 2u);
        EXPECT_STREQ(gpunvme_error(), "the buffer was unregistered");
        expect_all(list, -ECANCELED);
    }
}

// Else one that comes every millisecond would leave no time for a piece that takes longer.
TEST(Signals, WaitForTheCallAfterAnInterruptedOne)
{
    signal_rig r = {};
    r.interrupted = 3;
    EXPECT_EQ(signal_rig_read(&r, kLong, nullptr), ssize_t{kLong});
    EXPECT_EQ(r.held, 3 * kCalls) << "of four calls the first is like any other";
    auto list = pieces();
    EXPECT_EQ(signal_rig_readv(&r, list.data(), list.size(), nullptr), 0);
    EXPECT_EQ(r.held, r.calls / 4 * 3);
    EXPECT_FALSE(r.faults_held) << "it would be killed without its handler, or not be killed";
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    EXPECT_EQ(sigismember(&mask, SIGUSR1), 0);
}

// A mount that ends answers as if there were nothing but signals.
TEST(Signals, AreNotTheReasonForEver)
{
    signal_rig r = {};
    r.interrupted = UINT_MAX;
    EXPECT_EQ(signal_rig_read(&r, kLong, nullptr), -EINTR);
    EXPECT_LT(r.calls, 1000u);
    auto list = pieces();
    EXPECT_EQ(signal_rig_readv(&r, list.data(), list.size(), nullptr), -EINTR);
    EXPECT_LT(r.calls, 1000u);
    expect_all(list, -ECANCELED);
}

// The library's choice, which the caller did not ask for, makes nothing fail.
TEST(Retries, WhatThePipelineCannotReadTheMountReads)
{
    signal_rig r = {};
    r.bounces = true;
    gpunvme_result result = {};
    EXPECT_EQ(signal_rig_read(&r, SIGNAL_RIG_STEP, &result), ssize_t{SIGNAL_RIG_STEP});
    EXPECT_EQ(r.bounced, 1u);
    EXPECT_EQ(r.calls, 0u);
    EXPECT_STRNE(result.why, "");
    r.bounce_err = -ENOMEM;
    EXPECT_EQ(signal_rig_read(&r, SIGNAL_RIG_STEP, &result), ssize_t{SIGNAL_RIG_STEP});
    EXPECT_EQ(r.bounced, 1u);
    EXPECT_EQ(r.calls, 1u);
    EXPECT_EQ(result.path, GPUNVME_PATH_GPU);
    EXPECT_STREQ(result.why, "");
}

TEST(Retries, AndABatchOfWhichAPieceFailed)
{
    signal_rig r = {};
    r.bounces = true;
    std::vector<gpunvme_piece> list(4, gpunvme_piece{0, 0, 512, 7});
    EXPECT_EQ(signal_rig_readv(&r, list.data(), list.size(), nullptr), 0);
    EXPECT_EQ(r.bounced, 1u);
    EXPECT_EQ(r.calls, 0u);
    expect_all(list, 512);
    r.bounce_err = -ENOMEM;
    for (bool all : {false, true}) {
        r.ends_list = all;
        EXPECT_EQ(signal_rig_readv(&r, list.data(), list.size(), nullptr), 0);
        EXPECT_EQ(r.bounced, 1u);
        EXPECT_GT(r.calls, 0u);
        expect_all(list, 512);
    }
}

} // namespace
