/* SPDX-License-Identifier: BSD-2-Clause */
// Tests which mount a path has, in a table as the kernel writes it.
#include <sys/wait.h>
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
    static std::string line(int id, int parent, const std::string &point, const std::string &source)
    {
        return std::to_string(id) + " " + std::to_string(parent) + " 8:1 / " + point +
               " rw shared:1 master:2 - ext4 " + source + " rw,data=ordered\n";
    }
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
    write(line(2, 3, "/a/b", "long") + line(1, 0, "/", "root") + line(3, 1, "/a", "short") +
          line(4, 1, "/a\\040b", "space") + "broken\n");
    EXPECT_EQ(source_of("/a/b/c"), "long");
    EXPECT_EQ(source_of("/a/b"), "long");
    EXPECT_EQ(source_of("/a/bc"), "short");
    EXPECT_EQ(source_of("/a b/c"), "space");
    EXPECT_EQ(source_of("/ab"), "root");
    EXPECT_EQ(source_of("/"), "root");
}

TEST_F(MountFind, TakesTheUppermostOfMountsOnOnePoint)
{
    write(line(7, 5, "/a", "above") + line(5, 1, "/a", "below") + line(8, 7, "/a/c", "inside"));
    EXPECT_EQ(source_of("/a/b"), "above");
    EXPECT_EQ(source_of("/a/c"), "inside");
    EXPECT_EQ(source_of("/b"), "none");
}

TEST_F(MountFind, TakesNoMountThatOneOverAParentDirectoryHides)
{
    write(line(1, 1, "/", "root") + line(2, 1, "/a/b", "hidden") + line(3, 2, "/a/b/c", "inside") +
          line(4, 1, "/a", "over"));
    EXPECT_EQ(source_of("/a/b"), "over");
    EXPECT_EQ(source_of("/a/b/c/d"), "over");
}

TEST_F(MountFind, FindsNoneWithoutATable)
{
    EXPECT_EQ(source_of("/a"), "none");
}

// The root of the child has neither a mount of its own nor /proc.
TEST_F(MountFind, ComparesFilesInAChroot)
{
    write("");
    const std::string link = table_ + ".link", other = table_ + ".other";
    ASSERT_EQ(::link(table_.c_str(), link.c_str()), 0);
    std::ofstream(other) << "";
    pid_t child = fork();
    if (child == 0) {
        auto below = [](const std::string &path) { return path.substr(path.rfind('/')); };
        if (chroot(::testing::TempDir().c_str()) != 0)
            _exit(99);
        _exit((mount_same_file(below(table_).c_str(), below(link).c_str()) ? 0 : 1) |
              (mount_same_file(below(table_).c_str(), below(other).c_str()) ? 2 : 0));
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    unlink(link.c_str());
    unlink(other.c_str());
    if (status == 99 << 8)
        GTEST_SKIP() << "CAP_SYS_CHROOT is needed";
    EXPECT_EQ(status, 0);
}

} // namespace
