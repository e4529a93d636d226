/* SPDX-License-Identifier: BSD-2-Clause */
/* Namespaces that change while they are in use. */
#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <thread>

#include "tests/blockdev/nvme/nvme_sim_rig.h"

namespace
{

class Watch : public ::testing::Test
{
  protected:
    int write(uint64_t offset, uint8_t byte)
    {
        Bytes data(4096, byte);
        return bd_write(rig.dev, offset, data.data(), data.size(), 0);
    }

    unsigned resets()
    {
        nvme_counters n;
        nvme_ctrlr_counters(rig.c, &n);
        return (unsigned)n.resets;
    }

    Rig rig;
};

TEST_F(Watch, NothingIsWrittenToANamespaceThatWasReplaced)
{
    rig.open();
    ASSERT_EQ(write(0, 1), 0);
    ASSERT_EQ(sim_change_ns(rig.sim, 1, true), 0);
    EXPECT_EQ(write(0, 2), -EIO);
    Bytes got(4096);
    EXPECT_EQ(bd_read(rig.dev, 0, got.data(), got.size()), -EIO);
    EXPECT_EQ(rig.peek(0, 4096), Bytes(4096, 1));
    EXPECT_TRUE(nvme_ctrlr_replaced(rig.c));
}

TEST_F(Watch, AChangeThatLeavesTheNamespaceAsItWasDisturbsNobody)
{
    rig.open();
    for (uint8_t round = 1; round <= 20; round++) {
        ASSERT_EQ(sim_change_ns(rig.sim, 1, false), 0);
        ASSERT_EQ(write(0, round), 0);
        ASSERT_EQ(rig.peek(0, 4096), Bytes(4096, round));
    }
    EXPECT_EQ(resets(), 0u);
    EXPECT_FALSE(nvme_ctrlr_replaced(rig.c));
    ASSERT_EQ(sim_change_ns(rig.sim, 1, true), 0);
    EXPECT_EQ(write(0, 99), -EIO);
}

TEST_F(Watch, AReplacementIsNoticedAfterAResetToo)
{
    rig.open();
    ASSERT_EQ(nvme_ctrlr_reset(rig.c, nvme_ctrlr_epoch(rig.c)), 0);
    ASSERT_EQ(write(0, 1), 0);
    ASSERT_EQ(sim_change_ns(rig.sim, 1, true), 0);
    EXPECT_EQ(write(0, 2), -EIO);
    EXPECT_EQ(rig.peek(0, 4096), Bytes(4096, 1));
}

TEST_F(Watch, AnotherNamespaceOfTheControllerMayChange)
{
    rig.cfg.namespaces = 2;
    rig.cfg.ns[1] = rig.cfg.ns[0];
    rig.open();
    ASSERT_EQ(sim_change_ns(rig.sim, 2, true), 0);
    EXPECT_EQ(write(0, 1), 0);
    EXPECT_EQ(resets(), 0u);
}

TEST_F(Watch, ANamespaceThatGrowsIsKept)
{
    char path[] = "/tmp/watch-XXXXXX";
    int fd = mkstemp(path);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(ftruncate(fd, 8 * MIB), 0);
    rig.cfg.ns[0].path = path;
    rig.cfg.ns[0].bytes = 0;
    rig.open();
    ASSERT_EQ(ftruncate(fd, 16 * MIB), 0);
    ASSERT_EQ(sim_change_ns(rig.sim, 1, false), 0);
    EXPECT_EQ(write(0, 1), 0);
    EXPECT_EQ(bd_refresh(rig.dev), 0);
    EXPECT_EQ(bd_bytes(rig.dev), 16 * MIB);
    close(fd);
    unlink(path);
}

/* Each thread writes its own LBA until it gets an error. */
TEST_F(Watch, WritesThatBeginAfterTheReportDoNotLand)
{
    rig.open(4);
    std::atomic<bool> changed{false};
    std::vector<std::thread> writers;
    for (unsigned i = 0; i < 4; i++) {
        writers.emplace_back([&, i] {
            for (int rc = 0; rc == 0;) {
                bool late = changed;
                rc = write(i * 4096, late ? 2 : 1);
                EXPECT_TRUE(rc == 0 || rc == -EIO) << rc;
                EXPECT_FALSE(late && rc == 0);
            }
        });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ASSERT_EQ(sim_change_ns(rig.sim, 1, true), 0);
    changed = true;
    for (auto &w : writers)
        w.join();
    Bytes media = rig.peek(0, 4 * 4096);
    EXPECT_EQ(std::count(media.begin(), media.end(), 2), 0);
}

TEST_F(Watch, ALostAdminCommandDuringTheComparisonEndsInAResetThatCompares)
{
    rig.opts.admin_timeout_ms = 200;
    rig.open();
    sim_fault f = lose_fault(NVME_ADMIN_GET_LOG_PAGE, 1);
    f.admin = true;
    rig.fault(f);
    ASSERT_EQ(sim_change_ns(rig.sim, 1, false), 0);
    EXPECT_EQ(write(0, 1), 0);
    EXPECT_EQ(resets(), 1u);
    ASSERT_EQ(sim_change_ns(rig.sim, 1, true), 0);
    EXPECT_EQ(write(0, 2), -EIO);
    EXPECT_EQ(rig.peek(0, 4096), Bytes(4096, 1));
}

TEST_F(Watch, AControllerThatDoesNotAnswerTheRequestForEventsIsNotOpened)
{
    struct reason why = {};
    ASSERT_EQ(sim_create(&rig.cfg, &rig.sim, &rig.t), 0);
    sim_fault f = lose_fault(NVME_ADMIN_SET_FEATURES, 1);
    f.admin = true;
    f.skip = 1; /* the number of queues */
    rig.fault(f);
    rig.opts.admin_timeout_ms = 200;
    rig.opts.why = &why;
    EXPECT_NE(nvme_ctrlr_open(rig.t, &rig.opts, &rig.c), 0);
    EXPECT_NE(std::string(why.text).find("Asynchronous Events"), std::string::npos) << why.text;
    rig.t->ops->close(rig.t);
}

} // namespace
