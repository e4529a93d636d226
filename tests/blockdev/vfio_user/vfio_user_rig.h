/* SPDX-License-Identifier: BSD-2-Clause */
/* A client, a fake server, and what must hold after every test: nothing leaks. */
#ifndef TESTS_BLOCKDEV_VFIO_USER_VFIO_USER_RIG_H
#define TESTS_BLOCKDEV_VFIO_USER_VFIO_USER_RIG_H

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <string>

#include "blockdev/vfio_user/vfio_user.h"
#include "blockdev/vfio_user/vfio_user_internal.h"
#include "tests/blockdev/vfio_user/vfio_user_fake.h"

using namespace vfio_user_fake;

inline size_t entries(const char *folder)
{
    size_t n = 0;

    for (auto &entry : std::filesystem::directory_iterator(folder))
        n += !entry.path().empty();
    return n;
}

/* What each open descriptor refers to. */
inline std::map<std::string, std::string> open_fds()
{
    std::map<std::string, std::string> all;

    for (auto &entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code gone;
        std::filesystem::path target = std::filesystem::read_symlink(entry.path(), gone);
        /* The descriptor of this very listing is closed by the end. */
        if (!gone && target.string().find("/fd") == std::string::npos)
            all[entry.path().filename()] = target;
    }
    return all;
}

/* Memory as the driver has it: a memfd, mapped. */
class Memory
{
  public:
    explicit Memory(size_t bytes) : len(bytes), fd(memfd_create("memory", MFD_CLOEXEC))
    {
        EXPECT_EQ(ftruncate(fd, static_cast<off_t>(len)), 0);
        base = mmap(nullptr, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        EXPECT_NE(base, MAP_FAILED);
    }
    ~Memory()
    {
        munmap(base, len);
        close(fd);
    }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;

    void *at(size_t offset) { return static_cast<char *>(base) + offset; }

    nvme_mem piece(size_t offset, size_t bytes)
    {
        nvme_mem m{};
        m.addr = at(offset);
        m.len = bytes;
        m.fd = fd;
        m.fd_offset = offset;
        return m;
    }

  private:
    size_t len;
    int fd;
    void *base;
};

/* Deadlines that are missed on purpose, and how long that may take on a busy machine. */
constexpr unsigned DEADLINE_MS = 100;
constexpr double BOUND_S = 10;

/* A deadline that no test of something else runs into, however busy the machine. */
constexpr unsigned PATIENT_MS = 30000;

class VfioUser : public ::testing::Test
{
  protected:
    void TearDown() override
    {
        close_transport();
        server.stop();
        EXPECT_EQ(open_fds(), fds_before) << "descriptors leaked";
        EXPECT_TRUE(threads_settle()) << "threads leaked";
    }

    void close_transport()
    {
        if (t)
            t->ops->close(t);
        t = nullptr;
    }

    int start(unsigned timeout_ms = PATIENT_MS)
    {
        auto from = std::chrono::steady_clock::now();
        int rc = vfio_user_start(server.connect(), timeout_ms, &t, &why);
        took = std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
        return rc;
    }

    void open() { ASSERT_EQ(start(), 0) << why.text; }

    void open_with(Server::Hook hook)
    {
        server.hook = std::move(hook);
        open();
    }

    /* Seconds that f() takes. */
    template <typename F> static double seconds(F f)
    {
        auto from = std::chrono::steady_clock::now();
        f();
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
    }

    /* Of the commands to come, and how long a server may be silent beyond it. */
    void set_timeout(unsigned ms, unsigned silence_ms = 0)
    {
        reinterpret_cast<vfio_user *>(t)->conn.timeout_ms = ms;
        reinterpret_cast<vfio_user *>(t)->conn.silence_ms = silence_ms;
    }

    Server server;
    Memory mem{0x4000};
    nvme_transport *t = nullptr;
    struct reason why = {};
    double took = 0;

  private:
    /* A thread that has been joined may still be listed for a moment. */
    bool threads_settle() const
    {
        for (int i = 0; i < 1000; i++) {
            if (entries("/proc/self/task") <= threads_before)
                return true;
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        return false;
    }

    /* A sanitizer's own thread comes with the first of ours. */
    static size_t count_threads()
    {
        std::thread([] {}).join();
        return entries("/proc/self/task");
    }

    std::map<std::string, std::string> fds_before = open_fds();
    size_t threads_before = count_threads();
};

#endif
