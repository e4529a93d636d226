/* SPDX-License-Identifier: BSD-2-Clause */
// Tests which mount a path has, in a table as the kernel writes it.
#include <unistd.h>

#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "support/mount_find.h"

namespace
{

class MountFind : public ::testing::Test
{
  protected:
    void write(const std::string &text) { std::ofstream(table_) << text; }
    std::string source_of(const std::string &path)
    {
        mount_found m;
        return mount_find(table_.c_str(), path.c_str(), &m) ? m.entry.mnt_fsname : "none";
    }
    void TearDown() override { unlink(table_.c_str()); }

    const std::string table_ = ::testing::TempDir() + "mounts-" + std::to_string(getpid());
};

TEST_F(MountFind, TakesTheLongestMountPoint)
{
    write("long /a/b ext4 rw 0 0\n"
          "root / ext4 rw 0 0\n"
          "short /a ext4 rw 0 0\n"
          "space /a\\040b ext4 rw 0 0\n");
    EXPECT_EQ(source_of("/a/b/c"), "long");
    EXPECT_EQ(source_of("/a/b"), "long");
    EXPECT_EQ(source_of("/a/bc"), "short");
    EXPECT_EQ(source_of("/a b/c"), "space");
    EXPECT_EQ(source_of("/ab"), "root");
    EXPECT_EQ(source_of("/"), "root");
}

TEST_F(MountFind, TakesTheLastOfMountsOnOnePoint)
{
    write("below /a ext4 rw 0 0\nabove /a ext4 rw 0 0\n");
    EXPECT_EQ(source_of("/a/b"), "above");
    EXPECT_EQ(source_of("/b"), "none");
}

TEST_F(MountFind, FindsNoneWithoutATable)
{
    EXPECT_EQ(source_of("/a"), "none");
}

} // namespace
