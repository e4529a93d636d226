/* SPDX-License-Identifier: BSD-2-Clause */
/* tune.gpunvme at the command line. */
#include <filesystem>
#include <sys/mount.h>

#include "tests/mkfs/mkfs_rig.h"

namespace
{

class Tune : public ToolTest
{
  protected:
    void SetUp() override
    {
        ASSERT_EQ(run({MKFS, "-q", "-s", "32M", "-L", "old", path("img")}).status, 0);
    }
    Result tune(std::vector<std::string> args)
    {
        args.insert(args.begin(), TUNE);
        args.push_back(path("img"));
        return run(args);
    }
    void refused(const Result &r, int status, const std::string &text)
    {
        EXPECT_EQ(r.status, status);
        EXPECT_EQ(r.out, "");
        EXPECT_NE(r.err.find(text), std::string::npos) << r.err;
        EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
        EXPECT_EQ(run({FSCK, "-n", path("img")}).status, 0);
    }
};

TEST_F(Tune, TheLabelChanges)
{
    Result r = tune({"-L", "new"});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(r.out, "Label: new\nSize: 33554432\n");
    EXPECT_EQ(run({FSCK, "-n", path("img")}).status, 0);
    EXPECT_EQ(tune({"--label="}).out, "Label: \nSize: 33554432\n");
}

TEST_F(Tune, AFileGrows)
{
    Result r = tune({"-s", "300M", "-L", "both"});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(r.out, "Label: both\nSize: 314572800\n");
    EXPECT_EQ(std::filesystem::file_size(path("img")), 314572800u);
    EXPECT_EQ(run({FSCK, "-n", path("img")}).status, 0);
    std::filesystem::resize_file(path("img"), 400u << 20);
    EXPECT_EQ(tune({"--size=max"}).out, "Label: both\nSize: 419430400\n");
    EXPECT_EQ(run({FSCK, "-n", path("img")}).status, 0);
}

TEST_F(Tune, AFileShrinks)
{
    EXPECT_EQ(tune({"-s", "200M"}).status, 0);
    Result r = tune({"-s", "20M"});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(r.out, "Label: old\nSize: 20971520\n");
    EXPECT_EQ(std::filesystem::file_size(path("img")), 20971520u);
    EXPECT_EQ(run({FSCK, "-n", path("img")}).status, 0);
    EXPECT_EQ(tune({"-s", "300M"}).status, 0);
    EXPECT_EQ(run({FSCK, "-n", path("img")}).status, 0);
}

TEST_F(Tune, InvalidArgumentsAreRefused)
{
    refused(tune({}), 2, "nothing to change");
    refused(tune({"-s", "x"}), 2, "is no size");
    refused(tune({"-L", std::string(64, 'x')}), 1, "at most 63 bytes");
    refused(tune({"-s", "15M"}), 1, "give 16777216 bytes or more");
    refused(tune({"-s", "33558528"}), 1, "give 33562624 bytes or more");
    write_file(path("img"), std::string(1 << 20, 'x'));
    EXPECT_EQ(tune({"-L", "x"}).status, 1);
    write_file(path("img"), "");
    EXPECT_NE(tune({"-L", "x"}).err.find("too small to hold a file system"), std::string::npos);
}

TEST_F(Tune, AFullDiskLeavesTheFileUnchanged)
{
    const std::string small = path("small"), img = small + "/img";
    ASSERT_TRUE(std::filesystem::create_directory(small));
    if (mount("none", small.c_str(), "tmpfs", 0, "size=16m") != 0)
        GTEST_SKIP() << "only root mounts a small file system";
    EXPECT_EQ(run({MKFS, "-q", "-s", "32M", img}).status, 0);
    Result r = run({TUNE, "-s", "2T", img});
    EXPECT_EQ(r.status, 1);
    EXPECT_NE(r.err.find("no space under it for the new bitmaps, 68177920 bytes"),
              std::string::npos)
        << r.err;
    EXPECT_EQ(std::filesystem::file_size(img), 33554432u);
    EXPECT_LT(std::filesystem::space(small).capacity / 2, std::filesystem::space(small).available);
    EXPECT_EQ(run({FSCK, "-n", img}).status, 0);
    EXPECT_EQ(umount(small.c_str()), 0);
}

} // namespace
