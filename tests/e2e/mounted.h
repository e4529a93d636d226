/* SPDX-License-Identifier: BSD-2-Clause */
// A formatted image and a running daemon, for tests over a mount.
#ifndef TESTS_E2E_MOUNTED_H
#define TESTS_E2E_MOUNTED_H

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/fd.h"

// A bound on the run of one program, not an expectation: sanitizers on a busy machine.
constexpr int kProgramSeconds = 120;

// Runs a program and returns its exit status; -1 if it had to be killed after that many seconds.
int run_program(const std::vector<std::string> &argv, std::string *output = nullptr,
                int seconds = kProgramSeconds);

// The reason why this machine cannot mount; empty when it can.
std::string why_no_mount();

// Returns true if GPUNVME_CPU_MEMORY names a device whose memory acts as GPU
// memory, with a drive in GPUNVME_TEST_DEVICE.
inline bool has_peer_memory()
{
    return getenv("GPUNVME_TEST_DEVICE") && getenv("GPUNVME_CPU_MEMORY");
}

class Mounted
{
  public:
    // Makes the image; `bytes` is its size. GPUNVME_TEST_DEVICE in the environment names a device
    // to be used, and overwritten, instead: a string as gpunvmefs takes it. GPUNVME_TEST_NOIOMMU
    // says that no IOMMU guards it. `format`: further arguments of mkfs.gpunvme.
    explicit Mounted(uint64_t bytes, const std::vector<std::string> &format = {});
    ~Mounted();
    Mounted(const Mounted &) = delete;
    Mounted &operator=(const Mounted &) = delete;

    // Starts the daemon in the foreground and waits until it serves. `input` becomes its standard
    // input.
    bool mount(const std::string &options = "", int input = -1);
    // The program to start instead of gpunvmefs.
    void use_program(const std::string &program) { program_ = program; }
    // Unmounts, which open files may delay for ten seconds, and waits for the daemon: true when
    // nothing was open any more and it ended with status 0.
    bool unmount();
    // After a signal to it: waits for the daemon, true when it ended with status 0.
    bool ended();
    // The daemon's exit status, after unmount() or ended(); -1: it was killed.
    int status() const { return status_; }
    pid_t pid() const { return daemon_; }
    // fsck.gpunvme -n of the image: its exit status.
    int fsck(std::string *output);

    std::string path(const std::string &name) const;
    const std::string &mountpoint() const { return mountpoint_; }
    const std::string &image() const { return image_; }
    // The daemon's standard error.
    std::string log() const;
    // Unmounts by umount(2), and does not wait for the daemon.
    bool let_go();

  private:
    bool serving() const;

    std::string dir_, image_, mountpoint_, program_;
    bool own_image_ = true;
    bool noiommu_ = getenv("GPUNVME_TEST_NOIOMMU") != nullptr;
    pid_t daemon_ = -1;
    int status_ = -1;
};

// At the end of a test: unmounts a mount that is there, and fsck finds nothing.
inline void expect_good_end(Mounted *m)
{
    std::string output;

    if (m->pid() > 0) {
        EXPECT_TRUE(m->unmount()) << m->log();
    }
    EXPECT_EQ(m->fsck(&output), 0) << output;
}

// Skips the test where this machine cannot mount. A class of tests with parameters inherits
// ::testing::WithParamInterface as well.
class MountingTest : public ::testing::Test
{
  protected:
    void SetUp() final
    {
        std::string why = why_not();
        if (!why.empty())
            GTEST_SKIP() << why;
        set_up();
    }
    virtual void set_up() {}
    // Returns the reason why this machine cannot run the test, or "".
    virtual std::string why_not() { return why_no_mount(); }
};

// MountedTest also has a mount. It closes fd_ before the mount ends, and expects no error of that.
class MountedTest : public MountingTest
{
  protected:
    void mount(const std::string &options = "", uint64_t bytes = 64u << 20)
    {
        mounted_ = std::make_unique<Mounted>(bytes);
        ASSERT_TRUE(mounted_->mount(options)) << mounted_->log();
    }
    // Creates a file whose bytes are on the drive, and leaves it open at fd_.
    void create_file(const std::string &name, const void *bytes, size_t len)
    {
        fd_ = open(mounted_->path(name).c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        ASSERT_GE(fd_, 0) << strerror(errno);
        ASSERT_EQ(pwrite(fd_, bytes, len, 0), static_cast<ssize_t>(len)) << strerror(errno);
        ASSERT_EQ(fsync(fd_), 0);
    }
    void TearDown() override
    {
        let_go();
        if (fd_ >= 0)
            close(fd_);
        if (mounted_)
            expect_good_end(mounted_.get());
    }
    // Closes the other files that the test has opened.
    virtual void let_go() {}

    std::unique_ptr<Mounted> mounted_;
    int fd_ = -1;
};

#endif
