/* SPDX-License-Identifier: BSD-2-Clause */
// Two controllers of one namespace: two servers of one image. One mount may write.
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include <gtest/gtest.h>

#include "tests/e2e/served_rig.h"

namespace
{

class TwoControllers : public Served
{
  protected:
    void set_up() override { start({"--shared"}); }
    void start(std::vector<std::string> options)
    {
        ASSERT_NO_FATAL_FAILURE(Served::set_up());
        if (reserves_)
            options.insert(options.end(), {"--reservations", dir_ + "/reservations"});
        serve(options);
        options.insert(options.end(), {"--no-prp-chains", "--strict"});
        other_server_ = std::make_unique<Server>(options, image_, dir_ + "/other");
        ASSERT_TRUE(other_server_->ready());
        other_ = "vfio-user:" + dir_ + "/other";
        there_ = dir_ + "/there";
        mkdir(there_.c_str(), 0755);
    }
    void TearDown() override
    {
        if (other_server_) {
            EXPECT_EQ(other_server_->stop(SIGTERM), 0) << "mistakes of the driver";
        }
        Served::TearDown();
    }
    // Mounts the other controller in the background; returns the exit status.
    int mount_other(const std::string &options = "executor=cpu")
    {
        return run_program({GPUNVME_DAEMON, other_, there_, "-o", options}, &output_);
    }
    // A mount of the type fuseblk: the daemon has ended when this returns.
    int unmount_other() { return umount(there_.c_str()); }
    bool said(const std::string &what) { return output_.find(what) != std::string::npos; }
    void write_durably(const std::string &path, uint64_t seed)
    {
        int fd = write_content(path, seed);
        ASSERT_EQ(fsync(fd), 0);
        close(fd); // a program that is started closes it, and would wait for a stopped daemon
    }
    void mount_with_file(Mounted *m, const std::string &options = "executor=cpu")
    {
        ASSERT_TRUE(m->mount(options)) << m->log();
        write_durably(m->path("file"), 1);
    }
    static void kill_daemon(Mounted *m)
    {
        kill(m->pid(), SIGKILL);
        umount2(m->mountpoint().c_str(), MNT_DETACH);
        EXPECT_FALSE(m->ended());
    }
    // Unmounts both, of which the other one has taken over and has written the file "new".
    void expect_taken_over(Mounted *m, const std::string &why)
    {
        EXPECT_EQ(umount(m->mountpoint().c_str()), 0) << strerror(errno);
        EXPECT_FALSE(m->ended());
        EXPECT_NE(m->log().find(why), std::string::npos) << m->log();
        EXPECT_TRUE(has_content(there_ + "/new", 2));
        EXPECT_EQ(unmount_other(), 0);
        expect_good_end(m);
        ASSERT_EQ(mount_other("ro,executor=cpu"), 0) << output_;
        EXPECT_TRUE(has_content(there_ + "/file", 1));
        EXPECT_TRUE(has_content(there_ + "/new", 2));
        EXPECT_EQ(unmount_other(), 0);
    }

    bool reserves_ = false;
    std::unique_ptr<Server> other_server_;
    std::string other_, there_, output_;
};

// The controllers have reservations, too.
class TwoHosts : public TwoControllers
{
  protected:
    void set_up() override
    {
        reserves_ = true;
        TwoControllers::set_up();
    }
};

TEST_F(TwoControllers, TheSecondWriterIsRefused)
{
    Mounted m(kImage);
    mount_with_file(&m);
    EXPECT_EQ(mount_other(), 32);
    EXPECT_TRUE(said("in use by host ")) << output_;
    EXPECT_TRUE(said("unmount it there first")) << output_;
    EXPECT_EQ(run_program({GPUNVME_MKFS, "-q", "-f", other_}, &output_), 1);
    EXPECT_TRUE(said("in use by host ")) << output_;
    EXPECT_EQ(run_program({GPUNVME_FSCK, "-y", other_}, &output_), 8);
    EXPECT_TRUE(said("in use by host ")) << output_;
    EXPECT_EQ(run_program({GPUNVME_TUNE, "-L", "name", other_}, &output_), 1);
    EXPECT_TRUE(said("in use by host ")) << output_;
    ASSERT_EQ(mount_other("ro,executor=cpu"), 0) << output_;
    EXPECT_TRUE(has_content(there_ + "/file", 1));
    EXPECT_EQ(unmount_other(), 0);
    EXPECT_TRUE(m.unmount()) << m.log();
    ASSERT_EQ(mount_other(), 0) << output_;
    EXPECT_FALSE(said("waiting")) << output_;
    EXPECT_TRUE(has_content(there_ + "/file", 1));
    EXPECT_EQ(unmount_other(), 0);
    expect_good_end(&m);
}

// As a host that hangs, and goes on when another one has taken over.
TEST_F(TwoControllers, AStoppedWriterThatGoesOnWritesNothing)
{
    Mounted m(kImage);
    mount_with_file(&m, "executor=cpu,commit=1");
    kill(m.pid(), SIGSTOP);
    ASSERT_EQ(mount_other(), 0) << output_;
    EXPECT_TRUE(said("waiting up to ")) << output_;
    write_durably(there_ + "/new", 2);
    kill(m.pid(), SIGCONT);
    int fd = open(m.path("file").c_str(), O_RDWR | O_CLOEXEC);
    EXPECT_TRUE(pwrite(fd, "x", 1, 0) != 1 || fsync(fd) != 0);
    close(fd);
    expect_taken_over(&m, "multi-mount protection: now in use by host ");
}

TEST_F(TwoHosts, TheSecondHostIsRefusedWithAWayOut)
{
    Mounted m(kImage);
    mount_with_file(&m);
    EXPECT_EQ(mount_other(), 32);
    EXPECT_TRUE(said("reserved by the host with the identifier ")) << output_;
    EXPECT_TRUE(said("reservation=preempt if that host is dead")) << output_;
    EXPECT_EQ(run_program({GPUNVME_MKFS, "-q", "-f", other_}, &output_), 1);
    EXPECT_TRUE(said("reserved by the host ")) << output_;
    EXPECT_EQ(run_program({GPUNVME_FSCK, "-y", other_}, &output_), 8);
    EXPECT_TRUE(said("reserved by the host ")) << output_;
    // Without a reservation of its own it is stopped by its first write.
    EXPECT_EQ(mount_other("executor=cpu,nommp,reservation=off"), 32) << output_;
    // A reader is not stopped, since it flushes nothing either.
    ASSERT_EQ(mount_other("ro,executor=cpu"), 0) << output_;
    int there = open((there_ + "/file").c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(fsync(there), 0) << strerror(errno);
    close(there);
    there = open(there_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    EXPECT_EQ(fsync(there), 0) << strerror(errno);
    close(there);
    EXPECT_TRUE(has_content(there_ + "/file", 1));
    EXPECT_EQ(unmount_other(), 0);
    EXPECT_TRUE(m.unmount()) << m.log();
    ASSERT_EQ(mount_other("executor=cpu,reservation=require"), 0) << output_;
    EXPECT_TRUE(has_content(there_ + "/file", 1));
    EXPECT_EQ(unmount_other(), 0);
    expect_good_end(&m);
}

TEST_F(TwoHosts, ADeadDaemonsReservationIsItsSuccessors)
{
    Mounted m(kImage);
    mount_with_file(&m);
    kill_daemon(&m);
    EXPECT_EQ(mount_other(), 32);
    EXPECT_TRUE(said("reserved by the host ")) << output_;
    ASSERT_TRUE(m.mount("executor=cpu")) << m.log();
    EXPECT_TRUE(has_content(m.path("file"), 1));
    EXPECT_TRUE(m.unmount()) << m.log();
    expect_good_end(&m);
}

TEST_F(TwoHosts, AWriterWhoseReservationIsTakenWritesNothing)
{
    Mounted m(kImage);
    mount_with_file(&m, "executor=cpu,commit=1,nommp");
    ASSERT_EQ(mount_other("executor=cpu,nommp,reservation=preempt"), 0) << output_;
    write_durably(there_ + "/new", 2);
    int fd = open(m.path("file").c_str(), O_RDWR | O_CLOEXEC);
    EXPECT_TRUE(fd < 0 || pwrite(fd, "x", 1, 0) != 1 || fsync(fd) != 0);
    if (fd >= 0)
        close(fd);
    expect_taken_over(&m, "another host has reserved the namespace");
}

} // namespace
