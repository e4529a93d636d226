/* SPDX-License-Identifier: BSD-2-Clause */
// Tests the stay of a thread on a NUMA node, with a sysfs of the test's own.
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "support/numa.h"

namespace
{

class Numa : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        std::string path = std::filesystem::temp_directory_path() / "numa-XXXXXX";
        top_ = mkdtemp(path.data());
        ASSERT_EQ(sched_getaffinity(0, sizeof(before_), &before_), 0);
        while (!CPU_ISSET(first_, &before_))
            first_++;
    }
    void TearDown() override { std::filesystem::remove_all(top_); }
    void node(int number, const std::string &cpus) const
    {
        std::string folder = top_ + "/sys/devices/system/node/node" + std::to_string(number);
        std::filesystem::create_directories(folder);
        std::ofstream(folder + "/cpulist") << cpus << "\n";
    }
    int processors(int number) const
    {
        cpu_set_t found;
        return numa_processors(top_.c_str(), number, &found);
    }
    static int allowed()
    {
        cpu_set_t now;
        EXPECT_EQ(sched_getaffinity(0, sizeof(now), &now), 0);
        return CPU_COUNT(&now);
    }
    static int policy()
    {
        int now = MPOL_DEFAULT;
        // Some sandboxes of containers refuse the call.
        return syscall(SYS_get_mempolicy, &now, nullptr, 0ul, nullptr, 0ul) ? -1 : now;
    }

    std::string top_;
    cpu_set_t before_;
    int first_ = 0; // processor that this thread may use
};

TEST_F(Numa, ANodeHasTheProcessorsOfItsListThatTheThreadMayUse)
{
    node(0, "0-" + std::to_string(CPU_SETSIZE - 1));
    node(1, std::to_string(first_) + "," + std::to_string(CPU_SETSIZE + 7));
    node(2, "");
    node(3, "x");
    EXPECT_EQ(processors(0), CPU_COUNT(&before_));
    EXPECT_EQ(processors(1), 1);
    EXPECT_EQ(processors(2), 0);
    EXPECT_EQ(processors(3), 0);
    EXPECT_EQ(processors(4), 0) << "it does not exist";
    EXPECT_EQ(processors(-1), 0) << "it is not reported";
}

TEST_F(Numa, AThreadAndThoseThatItStartsStayOnTheNodeUntilItLeaves)
{
    numa_stay stay;
    int of_other = 0;

    node(0, std::to_string(first_));
    numa_enter(top_.c_str(), 0, 1, &stay);
    EXPECT_TRUE(stay.entered);
    EXPECT_EQ(allowed(), 1);
    if (stay.prefers) {
        EXPECT_EQ(policy(), MPOL_PREFERRED);
    }
    std::thread([&] { of_other = allowed(); }).join();
    EXPECT_EQ(of_other, 1);
    numa_leave(&stay);
    EXPECT_EQ(allowed(), CPU_COUNT(&before_));
    EXPECT_NE(policy(), MPOL_PREFERRED);
}

TEST_F(Numa, ANodeWithTooFewProcessorsIsNotEntered)
{
    numa_stay stay;

    node(0, std::to_string(first_));
    numa_enter(top_.c_str(), 0, 2, &stay);
    EXPECT_FALSE(stay.entered || stay.prefers);
    EXPECT_EQ(allowed(), CPU_COUNT(&before_));
    numa_leave(&stay);
    EXPECT_EQ(allowed(), CPU_COUNT(&before_));
}

} // namespace
