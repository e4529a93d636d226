/* SPDX-License-Identifier: BSD-2-Clause */
// Remounts.
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "tests/e2e/posix.h"

namespace
{

class Remount : public MountedTest
{
  protected:
    void set_up() override
    {
        if (geteuid() != 0)
            GTEST_SKIP() << "only root remounts";
        mounted_ = std::make_unique<Mounted>(64u << 20);
    }
    // What the second gpunvmefs said; "" when it succeeded.
    std::string remount(const std::string &options, int failure = 32)
    {
        std::string said;
        int status = run_program(
            {GPUNVME_DAEMON, mounted_->image(), mounted_->mountpoint(), "-o", "remount," + options},
            &said);
        EXPECT_EQ(status, said.empty() ? 0 : failure);
        return said;
    }
    unsigned long flags() const
    {
        struct statvfs st = {};
        EXPECT_EQ(statvfs(mounted_->mountpoint().c_str(), &st), 0);
        return st.f_flag;
    }
    int make(const std::string &name)
    {
        return open(mounted_->path(name).c_str(), O_RDWR | O_CREAT, 0644);
    }
    bool a_read_counts(const std::string &name)
    {
        struct stat before = {}, after = {};
        char c;
        usleep(2000);
        EXPECT_EQ(stat(mounted_->path(name).c_str(), &before), 0);
        int fd = open(mounted_->path(name).c_str(), O_RDONLY);
        EXPECT_EQ(read(fd, &c, 1), 1);
        close(fd);
        EXPECT_EQ(stat(mounted_->path(name).c_str(), &after), 0);
        return later(after.st_atim, before.st_atim);
    }
};

TEST_F(Remount, SwitchesToReadOnlyAndBack)
{
    ASSERT_TRUE(mounted_->mount("noexec,strictatime,nodiratime")) << mounted_->log();
    EXPECT_FALSE(flags() & ST_RELATIME);
    EXPECT_TRUE(flags() & ST_NODIRATIME);
    int fd = make("f");
    ASSERT_EQ(write(fd, "text", 4), 4);
    EXPECT_NE(remount("ro").find("open for writing"), std::string::npos);
    close(fd);
    EXPECT_TRUE(a_read_counts("f"));
    ASSERT_EQ(remount("ro"), "");
    EXPECT_TRUE(flags() & ST_RDONLY);
    EXPECT_TRUE(flags() & ST_NOEXEC) << "flags that are not named stay";
    EXPECT_REFUSED(make("g"), EROFS);
    EXPECT_FALSE(a_read_counts("f"));
    ASSERT_EQ(remount("rw,exec"), "");
    EXPECT_FALSE(flags() & (ST_RDONLY | ST_NOEXEC | ST_RELATIME));
    fd = make("g");
    EXPECT_GE(fd, 0);
    close(fd);
    EXPECT_TRUE(a_read_counts("f"));
}

// mount(8) hands over its whole list, in which exec and async are what is left out.
TEST_F(Remount, AcceptsTheCompleteListOfTheMountHelper)
{
    ASSERT_TRUE(mounted_->mount("noexec,sync")) << mounted_->log();
    ASSERT_EQ(remount("rw,noexec,relatime,dev,suid"), "");
    EXPECT_TRUE(flags() & ST_NOEXEC);
    EXPECT_FALSE(flags() & ST_SYNCHRONOUS);
    ASSERT_EQ(remount("rw,relatime,nodev,nosuid"), "");
    EXPECT_FALSE(flags() & ST_NOEXEC);
    EXPECT_TRUE(flags() & ST_NODEV);
}

// util-linux 2.38: what /proc/mounts says, of a mount with these flags.
TEST_F(Remount, AcceptsTheOptionsOfMount)
{
    constexpr unsigned long kNoSymFollow = 0x2000;
    ASSERT_TRUE(mounted_->mount()) << mounted_->log();
    ASSERT_EQ(remount("nosymfollow"), "");
    EXPECT_TRUE(flags() & kNoSymFollow);
    ASSERT_EQ(remount("ro"), "");
    EXPECT_TRUE(flags() & kNoSymFollow) << "flags that are not named stay";
    ASSERT_EQ(remount("rw,nosuid,nodev,noatime,nodiratime,nosymfollow,lazytime,seclabel,user_id=0,"
                      "group_id=0,default_permissions,allow_other,max_read=1048576,blksize=4096,"
                      "gpu=off,nofail"),
              "");
    EXPECT_TRUE(flags() & kNoSymFollow);
    EXPECT_TRUE(flags() & ST_NOATIME);
    ASSERT_EQ(remount("symfollow"), "");
    EXPECT_FALSE(flags() & kNoSymFollow);
}

// On either type of mount, where libfuse 3.14 does not know the option.
TEST_F(Remount, AMountFollowsNoSymbolicLinks)
{
    for (const char *options : {"nosymfollow", "nosymfollow,noblkdev"}) {
        ASSERT_TRUE(mounted_->mount(options)) << mounted_->log();
        close(make("file"));
        EXPECT_EQ(symlink("file", mounted_->path("link").c_str()), 0);
        EXPECT_EQ(open(mounted_->path("link").c_str(), O_RDONLY), -1) << options;
        EXPECT_EQ(errno, ELOOP);
        unlink(mounted_->path("link").c_str());
        EXPECT_TRUE(mounted_->unmount()) << mounted_->log();
    }
}

// The image as a device without the right to write, for root as well.
class WriteProtected
{
  public:
    explicit WriteProtected(const std::string &image) : image_(image)
    {
        const char *i = image_.c_str();
        EXPECT_EQ(::mount(i, i, nullptr, MS_BIND, nullptr), 0);
        EXPECT_EQ(::mount(nullptr, i, nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr), 0);
    }
    ~WriteProtected() { EXPECT_EQ(umount(image_.c_str()), 0); }

  private:
    std::string image_;
};

TEST_F(Remount, AWriteProtectedDeviceIsMountedReadOnly)
{
    ASSERT_TRUE(mounted_->mount()) << mounted_->log();
    close(make("file"));
    EXPECT_TRUE(mounted_->unmount()) << mounted_->log();
    for (const char *options : {"rw", "rw,noblkdev"}) {
        WriteProtected image(mounted_->image());
        ASSERT_TRUE(mounted_->mount(options)) << mounted_->log();
        EXPECT_TRUE(flags() & ST_RDONLY) << options;
        EXPECT_EQ(access(mounted_->path("file").c_str(), F_OK), 0);
        EXPECT_NE(mounted_->log().find("write-protected, mounting read-only"), std::string::npos);
        EXPECT_TRUE(mounted_->unmount()) << mounted_->log();
    }
}

TEST_F(Remount, UnknownOptionsAreRefused)
{
    ASSERT_TRUE(mounted_->mount()) << mounted_->log();
    for (const char *options : {"ro,bogus", "bogus=1,ro", "user_id=0,ro,uid=5"}) {
        const std::string said = remount(options, 1);
        EXPECT_NE(said.find("unknown option"), std::string::npos) << options << ": " << said;
        EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
        EXPECT_FALSE(flags() & ST_RDONLY) << options;
    }
}

TEST_F(Remount, ReadOnlyMakesEverythingDurable)
{
    ASSERT_TRUE(mounted_->mount("commit=3600")) << mounted_->log();
    close(make("f"));
    ASSERT_EQ(remount("ro"), "");
    kill(mounted_->pid(), SIGKILL);
    mounted_->ended();
    umount2(mounted_->mountpoint().c_str(), MNT_DETACH);
    ASSERT_TRUE(mounted_->mount()) << mounted_->log();
    EXPECT_EQ(access(mounted_->path("f").c_str(), F_OK), 0);
}

TEST_F(Remount, ATooSmallCacheLosesNoFile)
{
    // 375 blocks of inodes, and their names, in 256 blocks.
    ASSERT_TRUE(mounted_->mount("cache=1")) << mounted_->log();
    for (int i = 0; i < 3000; i++) {
        Fd fd = make(std::to_string(i));
        ASSERT_GE(fd, 0) << i;
    }
    ASSERT_TRUE(mounted_->unmount());
    ASSERT_TRUE(mounted_->mount("cache=1")) << mounted_->log();
    for (int i = 0; i < 3000; i++)
        ASSERT_EQ(access(mounted_->path(std::to_string(i)).c_str(), F_OK), 0) << i;
    EXPECT_TRUE(mounted_->unmount());
    EXPECT_FALSE(mounted_->mount("cache=0"));
}

TEST_F(Remount, AccessTimesAndCommitsChange)
{
    ASSERT_TRUE(mounted_->mount("commit=3600")) << mounted_->log();
    int fd = make("f");
    ASSERT_EQ(write(fd, "text", 4), 4);
    close(fd);
    ASSERT_EQ(remount("noatime"), "");
    EXPECT_TRUE(flags() & ST_NOATIME);
    EXPECT_FALSE(a_read_counts("f"));
    ASSERT_EQ(remount("strictatime"), "");
    EXPECT_FALSE(flags() & ST_NOATIME);
    EXPECT_TRUE(a_read_counts("f"));
    ASSERT_EQ(remount("commit=1"), "");
    EXPECT_TRUE(a_read_counts("f")) << "options that are not named stay";
    close(make("committed"));
    sleep(3);
    kill(mounted_->pid(), SIGKILL);
    mounted_->ended();
    umount2(mounted_->mountpoint().c_str(), MNT_DETACH);
    ASSERT_TRUE(mounted_->mount()) << mounted_->log();
    EXPECT_EQ(access(mounted_->path("committed").c_str(), F_OK), 0);
}

TEST_F(Remount, AReadOnlyDaemonDoesNotWrite)
{
    ASSERT_TRUE(mounted_->mount("ro")) << mounted_->log();
    EXPECT_NE(remount("rw").find("was mounted read-only"), std::string::npos);
    EXPECT_TRUE(flags() & ST_RDONLY);
    EXPECT_EQ(remount("ro"), "");
}

} // namespace
