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
    void shows(const Result &r, const std::string &label, uint64_t size)
    {
        EXPECT_EQ(r.out.rfind("Label: " + label + "\nUUID: ", 0), 0u) << r.out;
        EXPECT_NE(r.out.find("\nSize: " + std::to_string(size) + " bytes ("), std::string::npos)
            << r.out;
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
    Result r = expect_exit(tune({"-L", "new"}), 0);
    shows(r, "new", 33554432);
    EXPECT_EQ(run({FSCK, "-n", path("img")}).status, 0);
    shows(tune({"--label="}), "", 33554432);
}

TEST_F(Tune, TheUuidChanges)
{
    const std::string uuid = "8d0e2f5c-1b7a-4c11-9a53-1f6f0e6a7b10";
    expect_exit(tune({"-U", uuid}), 0, "UUID: " + uuid + "\n");
    std::string before = run({DUMP, "-l", path("img")}).out;
    EXPECT_NE(before.find("  uuid: " + uuid + "\n"), std::string::npos) << before;
    EXPECT_EQ(run({FSCK, "-f", "-n", path("img")}).status, 0);
    EXPECT_EQ(tune({"-U", "random"}).status, 0);
    std::string after = run({DUMP, "-l", path("img")}).out;
    EXPECT_EQ(after.find("  uuid: " + uuid + "\n"), std::string::npos) << after;
    size_t at = before.find("sealing_uuid");
    EXPECT_EQ(before.substr(at, 50), after.substr(after.find("sealing_uuid"), 50));
    refused(tune({"-U", "1234"}), 2, "is not a UUID");
    refused(tune({"-U", "00000000-0000-0000-0000-000000000000"}), 2, "is not a UUID");
}

TEST_F(Tune, AFileGrows)
{
    Result r = expect_exit(tune({"-s", "300M", "-L", "both"}), 0);
    shows(r, "both", 314572800);
    EXPECT_EQ(std::filesystem::file_size(path("img")), 314572800u);
    EXPECT_EQ(run({FSCK, "-n", path("img")}).status, 0);
    std::filesystem::resize_file(path("img"), 400u << 20);
    shows(tune({"--size=max"}), "both", 419430400);
    EXPECT_EQ(run({FSCK, "-n", path("img")}).status, 0);
}

TEST_F(Tune, AFileShrinks)
{
    EXPECT_EQ(tune({"-s", "200M"}).status, 0);
    Result r = expect_exit(tune({"-s", "20M"}), 0);
    shows(r, "old", 20971520);
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
    write_file(path("img"), std::string(1 << 20, 'x'));
    EXPECT_EQ(tune({"-L", "x"}).status, 1);
    write_file(path("img"), "");
    EXPECT_NE(tune({"-L", "x"}).err.find("too small to hold a file system"), std::string::npos);
}

TEST_F(Tune, AGrowthHasRoomForTheNewBitmapsAndChecksums)
{
    EXPECT_EQ(run({MKFS, "-f", "-q", "-O", "data_csum", "-s", "32M", path("img")}).status, 0);
    refused(tune({"-s", "33591296"}), 1, "give 33599488 bytes or more");
    EXPECT_EQ(tune({"-s", "33599488"}).status, 0);
    EXPECT_EQ(run({FSCK, "-f", "-n", path("img")}).status, 0);
}

TEST_F(Tune, AFullDiskLeavesTheFileUnchanged)
{
    const std::string small = path("small"), img = small + "/img";
    ASSERT_TRUE(std::filesystem::create_directory(small));
    if (mount("none", small.c_str(), "tmpfs", 0, "size=16m") != 0)
        GTEST_SKIP() << "only root mounts a small file system";
    EXPECT_EQ(run({MKFS, "-q", "-s", "32M", img}).status, 0);
    expect_exit(run({TUNE, "-s", "2T", img}), 1, "",
                "no space under it for the new bitmaps, 68177920 bytes");
    EXPECT_EQ(std::filesystem::file_size(img), 33554432u);
    EXPECT_LT(std::filesystem::space(small).capacity / 2, std::filesystem::space(small).available);
    EXPECT_EQ(run({FSCK, "-n", img}).status, 0);
    EXPECT_EQ(umount(small.c_str()), 0);
}

} // namespace
