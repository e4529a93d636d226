/* SPDX-License-Identifier: BSD-2-Clause */
// The end of a mount: the mount that is unmounted, and the data that the drive has then.
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include <gtest/gtest.h>

#include "tests/e2e/mounted.h"

namespace
{

constexpr uint64_t kImage = 64u << 20;

class UnmountTest : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        if (!why_no_mount().empty())
            GTEST_SKIP() << why_no_mount();
    }
};

dev_t device_of(const std::string &path)
{
    struct stat st = {};
    return stat(path.c_str(), &st) == 0 ? st.st_dev : 0;
}

// The directory above a mountpoint, renamed, with a symbolic link to another mount in its place.
class SwappedParent
{
  public:
    explicit SwappedParent(const std::string &mountpoint)
        : parent_(mountpoint.substr(0, mountpoint.rfind('/'))), moved_(parent_ + ".moved"),
          other_(parent_ + ".other")
    {
        other_mount_ = other_ + mountpoint.substr(mountpoint.rfind('/'));
        EXPECT_EQ(mkdir(other_.c_str(), 0700), 0);
        EXPECT_EQ(mkdir(other_mount_.c_str(), 0700), 0);
        EXPECT_EQ(mount("other", other_mount_.c_str(), "tmpfs", 0, nullptr), 0);
        EXPECT_EQ(rename(parent_.c_str(), moved_.c_str()), 0);
        EXPECT_EQ(symlink(other_.c_str(), parent_.c_str()), 0);
    }
    ~SwappedParent()
    {
        umount2(other_mount_.c_str(), MNT_DETACH);
        rmdir(other_mount_.c_str());
        rmdir(other_.c_str());
        unlink(parent_.c_str());
        EXPECT_EQ(rename(moved_.c_str(), parent_.c_str()), 0);
    }
    bool other_is_mounted() const
    {
        return device_of(other_mount_) != device_of(other_);
    }

  private:
    std::string parent_, moved_, other_, other_mount_;
};

TEST_F(UnmountTest, ASignalUnmountsNoOtherMount)
{
    Mounted m(kImage);
    ASSERT_TRUE(m.mount()) << m.log();
    {
        SwappedParent swapped(m.mountpoint());
        ASSERT_TRUE(swapped.other_is_mounted());
        ASSERT_EQ(kill(m.pid(), SIGTERM), 0);
        EXPECT_TRUE(m.ended());
        EXPECT_TRUE(swapped.other_is_mounted());
    }
    EXPECT_EQ(device_of(m.mountpoint()), device_of(m.mountpoint() + "/.."));
    EXPECT_EQ(m.fsck(nullptr), 0);
}

TEST_F(UnmountTest, ASignalUnmountsNothingThatIsMountedAbove)
{
    Mounted m(kImage);
    ASSERT_TRUE(m.mount()) << m.log();
    ASSERT_EQ(mount("above", m.mountpoint().c_str(), "tmpfs", 0, nullptr), 0);
    dev_t above = device_of(m.mountpoint());
    ASSERT_EQ(kill(m.pid(), SIGTERM), 0);
    EXPECT_TRUE(m.ended());
    EXPECT_EQ(device_of(m.mountpoint()), above);
    EXPECT_EQ(umount(m.mountpoint().c_str()), 0);
    umount2(m.mountpoint().c_str(), MNT_DETACH);
    EXPECT_EQ(m.fsck(nullptr), 0);
}

} // namespace
