/* SPDX-License-Identifier: BSD-2-Clause */
// The examples in C, on a mount whose queues the CPU executor runs.
#include <unistd.h>

#include <cstdio>

#include "tests/examples/examples_rig.h"

namespace
{

constexpr size_t kBytes = (17u << 20) + 1234; // more than one chunk of read.c, not whole blocks

class ExamplesInC : public Examples
{
  protected:
    void SetUp() override { start("executor=cpu,direct=root", kBytes); }

    // A place outside the mount.
    std::string outside() { return mount_->mountpoint() + "-copy"; }

    void TearDown() override
    {
        if (mount_)
            unlink(outside().c_str());
        Examples::TearDown();
    }
};

unsigned commands_of(const std::string &output)
{
    unsigned count = 0;
    size_t comma = output.find(", ");
    EXPECT_NE(comma, std::string::npos) << output;
    EXPECT_EQ(sscanf(output.c_str() + comma, ", %u NVMe commands", &count), 1) << output;
    return count;
}

TEST_F(ExamplesInC, ReadCopiesTheFileByCommandsOfTheExecutor)
{
    std::string output = run({EXAMPLE_READ, data(), outside()});
    EXPECT_EQ(bytes_of(outside()), content_);
    EXPECT_EQ(output.find(std::to_string(kBytes) + " bytes, "), 0u) << output;
    EXPECT_GE(commands_of(output), 17u); // of 1 MiB each
}

TEST_F(ExamplesInC, ReadvReadsWhatPreadReads)
{
    std::string output = run({EXAMPLE_READV, data(), "3000", "512"});
    EXPECT_EQ(output.find("3000 pieces, "), 0u) << output;
    EXPECT_GE(commands_of(output), 3000u);
}

TEST_F(ExamplesInC, WriteMakesTheSameFile)
{
    std::string output = run({EXAMPLE_WRITE, data(), mount_->path("written")});
    EXPECT_EQ(output, std::to_string(kBytes) + " bytes\n");
    EXPECT_EQ(bytes_of(mount_->path("written")), content_);
}

TEST_F(ExamplesInC, DirectReadsEveryBlock)
{
    std::string output = run({EXAMPLE_DIRECT, data()});
    EXPECT_EQ(output.find(std::to_string((kBytes + 4095) / 4096) + " reads, "), 0u) << output;
}

TEST_F(ExamplesInC, EachReportsItsErrors)
{
    EXPECT_EQ(run({EXAMPLE_READ}, 2), "usage: example_read FILE COPY\n");
    EXPECT_EQ(run({EXAMPLE_READV, data(), "0", "512"}, 2),
              "usage: example_readv FILE COUNT SIZE\n");
    std::string missing = mount_->path("missing");
    EXPECT_EQ(run({EXAMPLE_DIRECT, missing}, 1),
              "example_direct: " + missing + ": No such file or directory\n");
    // Outside a mount there are no leases, and the library gives the reason.
    std::string output = run({EXAMPLE_DIRECT, "/proc/self/exe"}, 1);
    EXPECT_NE(output.find("not on a gpunvmefs mount"), std::string::npos) << output;
    run({EXAMPLE_READ, EXAMPLE_READ, outside()}, 0); // any file can be read
    EXPECT_TRUE(bytes_of(outside()) == bytes_of(EXAMPLE_READ));
}

} // namespace
