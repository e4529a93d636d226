/* SPDX-License-Identifier: BSD-2-Clause */
// Copies of small reads: which are given to the block, that each is made once, what ends a wait.
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <sched.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "client/device/gd_copies.h"
#include "tests/client/lib/copy_service_rig.h"

namespace
{

constexpr uint64_t kSecond = 1000000000;

class CopyService : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        start(60 * kSecond);
    }
    void start(uint64_t slow_ns, uint64_t patience_ns = 60 * kSecond)
    {
        ASSERT_EQ(copy_service_rig_open(slow_ns, patience_ns, &service_), 0);
    }
    void start_anew(uint64_t slow_ns, uint64_t patience_ns = 60 * kSecond)
    {
        copy_service_rig_close(service_);
        start(slow_ns, patience_ns);
    }
    void TearDown() override
    {
        copy_service_rig_hold(false);
        copy_service_rig_resume();
        copy_service_rig_pause_copies(false);
        copy_service_rig_close(service_);
        EXPECT_EQ(copy_service_rig_held(), 0);
    }
    // Claims until a block is there; calls in between are close together.
    int claim()
    {
        auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
        int slot = -1;
        for (unsigned i = 1; slot < 0 && std::chrono::steady_clock::now() < end; i++) {
            slot = copy_service_claim(service_);
            if (i % 64 == 0)
                sched_yield();
        }
        return slot;
    }
    // Claims until a block is there that can be paused before it leaves, and pauses it.
    int claim_and_pause()
    {
        int slot = claim();
        while (slot >= 0 && !copy_service_rig_pause()) {
            copy_service_rig_resume();
            copy_service_release(service_, slot);
            slot = claim();
        }
        return slot;
    }
    // A copy of len bytes from `first` on, with contents of its own.
    int copy(int slot, size_t first, size_t len, unsigned char content)
    {
        std::vector<unsigned char> to(len + 2, 0xee), expected(len + 2, content);
        expected.front() = expected.back() = 0xee;
        memset(copy_service_staging(service_, slot), 0, GD_COPIES_STAGING);
        memset(copy_service_staging(service_, slot) + first, content, len);
        int err = copy_service_copy(service_, slot, reinterpret_cast<uintptr_t>(to.data() + 1),
                                    first, len);
        EXPECT_TRUE(err || to == expected);
        return err;
    }
    bool may_write(const unsigned char *to, size_t len)
    {
        return copy_services_may_write(0, reinterpret_cast<uintptr_t>(to), len);
    }
    // Of a copy to the 100 bytes behind `to`.
    void expect_in_doubt(const unsigned char *to)
    {
        EXPECT_TRUE(may_write(to, 1) && may_write(to + 99, 1) && may_write(to - 1, 102));
        EXPECT_FALSE(may_write(to - 1, 1) || may_write(to + 100, 1));
    }
    // Waits until the block has left.
    void expect_settled(const unsigned char *to)
    {
        auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
        while (may_write(to, 100) && std::chrono::steady_clock::now() < end)
            usleep(1000);
        EXPECT_FALSE(may_write(to, 100));
    }
    // A copy of 100 bytes.
    int copy_to(int slot, unsigned char *to)
    {
        memset(copy_service_staging(service_, slot), 7, 100);
        return copy_service_copy(service_, slot, reinterpret_cast<uintptr_t>(to), 0, 100);
    }
    struct copy_service *service_ = nullptr;
};

TEST_F(CopyService, AReadAloneIsForThePipeline)
{
    EXPECT_EQ(copy_service_claim(service_), -1);
    usleep(2000);
    EXPECT_EQ(copy_service_claim(service_), -1);
    EXPECT_EQ(copy_service_rig_launches(), 0u);
}

TEST_F(CopyService, ReadsThatFollowOneAnotherAreCopiedByABlock)
{
    for (unsigned i = 0; i < 200; i++) {
        int slot = claim();
        ASSERT_GE(slot, 0);
        EXPECT_EQ(copy(slot, i % 4096, 1 + i * 80, static_cast<unsigned char>(i)), 0);
        copy_service_release(service_, slot);
    }
    EXPECT_GE(copy_service_rig_launches(), 1u);
}

TEST_F(CopyService, SlotsAreOfOneThreadAtATime)
{
    std::vector<int> slots;
    for (unsigned i = 0; i < GD_COPIES_SLOTS; i++) {
        int slot = claim();
        for (int other : slots)
            EXPECT_NE(slot, other);
        slots.push_back(slot);
    }
    EXPECT_EQ(copy_service_claim(service_), -1);
    copy_service_release(service_, slots[3]);
    EXPECT_EQ(claim(), slots[3]);
}

TEST_F(CopyService, ThreadsAndBlocksThatComeAndGo)
{
    std::vector<std::thread> threads;
    std::atomic<bool> end{false};
    std::atomic<unsigned> failed{0};
    for (unsigned t = 0; t < 4; t++)
        threads.emplace_back([&, t] {
            for (unsigned i = 0; i < 100; i++) {
                int slot = claim();
                failed += slot < 0 || copy(slot, t, 4096, static_cast<unsigned char>(i + t)) != 0;
                if (slot >= 0)
                    copy_service_release(service_, slot);
            }
        });
    std::thread hurries([&] {
        for (bool hurry = true; !end; hurry = !hurry) {
            copy_service_rig_hurry(hurry);
            usleep(300);
        }
        copy_service_rig_hurry(false);
    });
    for (auto &thread : threads)
        thread.join();
    end = true;
    hurries.join();
    EXPECT_EQ(failed, 0u);
    EXPECT_GE(copy_service_rig_launches(), 2u);
}

TEST_F(CopyService, ABlockThatLeftLeavesItsCopiesToTheEngine)
{
    int slot = claim();
    ASSERT_GE(slot, 0);
    copy_service_rig_hurry(true);
    for (int i = 0; i < 10000 && copy_service_rig_engine() == 0; i++)
        EXPECT_EQ(copy(slot, 0, 100, 7), 0);
    EXPECT_GE(copy_service_rig_engine(), 1u);
}

TEST_F(CopyService, ABlockThatWaitsForRoomIsGivenNothing)
{
    copy_service_rig_hold(true);
    for (int i = 0; i < 1000; i++)
        ASSERT_EQ(copy_service_claim(service_), -1);
    EXPECT_EQ(copy_service_rig_launches(), 1u);
    copy_service_rig_hold(false);
    EXPECT_GE(claim(), 0);
}

TEST_F(CopyService, ASlowCopyEndsItsUseForAWhile)
{
    start_anew(kSecond / 100);
    int slot = claim_and_pause();
    ASSERT_GE(slot, 0);
    copy_service_rig_resume_at_check();
    EXPECT_EQ(copy(slot, 0, 4096, 3), 0);
    copy_service_release(service_, slot);
    EXPECT_EQ(copy_service_claim(service_), -1) << "the GPU is another process's as well";
}

TEST_F(CopyService, AFailedContextEndsTheWaitAndAllUse)
{
    int slot = claim_and_pause();
    ASSERT_GE(slot, 0);
    unsigned char to[100] = {}; // a context that has failed makes no copy, which the block may yet
    copy_service_rig_fail_stream();
    EXPECT_EQ(copy_service_copy(service_, slot, reinterpret_cast<uintptr_t>(to), 0, sizeof(to)),
              -EIO);
    EXPECT_EQ(copy_service_claim(service_), -1);
    copy_service_rig_resume();
    copy_service_rig_close(service_); // waits for the block
    start(kSecond);
}

TEST_F(CopyService, ACopyThatIsGivenUpIsNotMadeByAWarpThatHasNotSeenIt)
{
    start_anew(60 * kSecond, kSecond / 10);
    int slot = claim_and_pause();
    ASSERT_GE(slot, 0);
    unsigned char to[300] = {}, none[300] = {};
    EXPECT_EQ(copy_to(slot, to + 100), -ETIMEDOUT);
    expect_in_doubt(to + 100);
    copy_service_release(service_, slot);
    copy_service_rig_resume();
    expect_settled(to + 100);
    EXPECT_EQ(memcmp(to, none, sizeof(to)), 0);
    EXPECT_EQ(copy_service_claim(service_), -1);
}

TEST_F(CopyService, ACopyThatIsGivenUpMayWriteUntilItsBlockHasLeft)
{
    start_anew(60 * kSecond, kSecond / 10);
    int slot = claim();
    ASSERT_GE(slot, 0);
    unsigned char to[300] = {};
    copy_service_rig_pause_copies(true);
    int err;
    while ((err = copy_to(slot, to + 100)) == 0) // the engine's, where the block has left
        ASSERT_GE(slot = claim(), 0);
    EXPECT_EQ(err, -ETIMEDOUT);
    expect_in_doubt(to + 100);
    copy_service_release(service_, slot);
    EXPECT_EQ(copy_service_claim(service_), -1);
    copy_service_rig_pause_copies(false);
    expect_settled(to + 100);
    memset(to, 0, sizeof(to));
    usleep(10000);
    EXPECT_EQ(to[100], 0) << "it is made no more";
}

// Of this device, and until the service that made it is closed.
TEST_F(CopyService, ACopyIsInDoubtForAllHandlesOfTheProcess)
{
    start_anew(60 * kSecond, kSecond / 10);
    int slot = claim_and_pause();
    ASSERT_GE(slot, 0);
    unsigned char to[300] = {};
    EXPECT_FALSE(may_write(to + 100, 100));
    EXPECT_EQ(copy_to(slot, to + 100), -ETIMEDOUT);
    EXPECT_TRUE(may_write(to + 100, 100));
    EXPECT_FALSE(copy_services_may_write(1, reinterpret_cast<uintptr_t>(to + 100), 100));
    copy_service_rig_resume();
    start_anew(60 * kSecond);
    EXPECT_FALSE(may_write(to + 100, 100));
}

TEST_F(CopyService, ACopyThatWasGivenUpEndsWithItsContext)
{
    start_anew(60 * kSecond, kSecond / 10);
    int slot = claim_and_pause();
    ASSERT_GE(slot, 0);
    unsigned char to[300] = {};
    EXPECT_EQ(copy_to(slot, to + 100), -ETIMEDOUT);
    copy_service_rig_fail_stream();
    EXPECT_FALSE(may_write(to + 100, 100));
}

TEST_F(CopyService, ALaunchThatFailsIsTheLast)
{
    copy_service_rig_fail_launches(-EIO);
    for (int i = 0; i < 100; i++)
        EXPECT_EQ(copy_service_claim(service_), -1);
    copy_service_rig_fail_launches(0);
    EXPECT_EQ(copy_service_claim(service_), -1);
    EXPECT_EQ(copy_service_rig_launches(), 0u);
}

} // namespace
