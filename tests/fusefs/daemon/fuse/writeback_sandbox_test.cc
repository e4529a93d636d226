/* SPDX-License-Identifier: BSD-2-Clause */
// A daemon in the full sandbox may make the calls that writeback_cache needs. It is a program of
// its own because it must run without sanitizers; the other cases run with them.
#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/fusefs/daemon/fuse/writeback_rig.h"
#include "tests/rounds.h"

namespace
{

class SandboxedWritebackTest : public WritebackTest
{
    void set_up() override
    {
        if (kSanitized)
            GTEST_SKIP() << "a sanitizer makes calls of its own";
        WritebackTest::set_up();
    }
    const char *options() const override { return "executor=cpu,sandbox=full,writeback_cache"; }
};

TEST_F(SandboxedWritebackTest, GpuReadSeesWritesAndSeekData)
{
    Fd fd = make("file");
    ASSERT_EQ(pwrite(fd, "content", 7, 8192), 7);
    EXPECT_EQ(lseek(fd, 0, SEEK_DATA), 8192);
    ASSERT_EQ(pwrite(fd, "C", 1, 8192), 1);
    EXPECT_EQ(gpu_read(fd).substr(8192), "Content");
}

} // namespace
