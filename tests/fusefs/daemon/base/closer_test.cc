/* SPDX-License-Identifier: BSD-2-Clause */
// The daemon's end waits for slow close calls, for a bounded time.
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <vector>

#include <gtest/gtest.h>

#include "tests/fusefs/daemon/tcp_ends.h"

extern "C" {
#include "fusefs/daemon/base/closer.h"

int __real_clock_gettime(clockid_t clock, struct timespec *ts);
int __wrap_clock_gettime(clockid_t clock, struct timespec *ts);
int __real_close(int fd);
int __wrap_close(int fd);
}

namespace
{

using Clock = std::chrono::steady_clock;

bool is_set_back; // the time of day, by an hour, each time that it has been looked at
constexpr time_t kHour = 3600;
std::atomic<int> blocking{-1}; // close(2) of this descriptor takes half a minute

TEST(Closer, WaitDoesNotDependOnTheRealTimeClock)
{
    closer c = {};
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    blocking = ends[0];
    closer_close(&c, &ends[0], 1, 1);
    is_set_back = true;
    auto start = Clock::now();
    closer_end(&c);
    auto took = Clock::now() - start;
    is_set_back = false;
    close(ends[1]);
    EXPECT_GE(took, std::chrono::milliseconds(900));
    EXPECT_LT(took, std::chrono::seconds(20));
}

TEST(Closer, SlotsAreLimitedPerUserAndReservedForRoot)
{
    closer c = {};
    std::vector<int> others;
    uid_t uid = 1;
    for (; !closer_is_busy(&c, 1000); uid++) {
        ASSERT_LT(uid, 100u);
        for (int i = 0; i < 100 && !closer_is_busy(&c, uid); i++) {
            int ends[2];
            ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
            blocking = ends[0];
            closer_close(&c, &ends[0], 1, uid);
            while (blocking >= 0) // until its thread has begun
                usleep(100);
            others.push_back(ends[1]);
        }
        EXPECT_TRUE(closer_is_busy(&c, uid));
    }
    EXPECT_GE(uid, 60u) << "fewer users together shut out all others";
    EXPECT_FALSE(closer_is_busy(&c, 0));
    closer_end(&c);
    for (int fd : others)
        close(fd);
}

TEST(Closer, ASocketThatLingersIsClosedAtOnce)
{
    int peer, slow = slow_socket(&peer);
    auto start = Clock::now();
    closer_discard(slow);
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
    close(peer);
}

// On a busy machine the closing thread may start late: the test repeats.
TEST(Closer, WaitEndsWithTheLastClose)
{
    bool at_once = false;
    for (int i = 0; i < 10 && !at_once; i++) {
        closer c = {};
        int ends[2];
        char byte;
        ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
        closer_close(&c, &ends[1], 1, 1);
        auto start = Clock::now();
        closer_end(&c);
        at_once = Clock::now() - start < std::chrono::milliseconds(900);
        EXPECT_EQ(read(ends[0], &byte, 1), 0) << "it is closed";
        close(ends[0]);
    }
    EXPECT_TRUE(at_once);
}

} // namespace

int __wrap_clock_gettime(clockid_t clock, struct timespec *ts)
{
    int err = __real_clock_gettime(clock, ts);
    if (is_set_back && clock == CLOCK_REALTIME)
        ts->tv_sec += kHour;
    return err;
}

int __wrap_close(int fd)
{
    int expected = fd;
    if (blocking.compare_exchange_strong(expected, -1))
        sleep(30);
    return __real_close(fd);
}
