/* SPDX-License-Identifier: BSD-2-Clause */
/* The driver over vfio-user, with the simulated controller in a process of its own. */
#include <fcntl.h>
#include <gtest/gtest.h>
#include <nvme/types.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "blockdev/bdev.h"
#include "blockdev/nvme/nvme.h"
#include "blockdev/vfio_user/vfio_user.h"

namespace
{

using Bytes = std::vector<uint8_t>;

constexpr uint64_t MIB = 1 << 20;
/* On top of a bound that is measured: a busy machine, with sanitizers. */
constexpr double SLACK_S = 20;

double now_s()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

/* gpunvme-sim, from the time on when it listens. */
class Process
{
  public:
    Process(const std::string &socket, const std::vector<std::string> &options)
    {
        int out[2];
        EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
        pid = fork();
        if (pid == 0)
            run(socket, options, out[1]);
        ::close(out[1]);
        char line[512];
        EXPECT_GT(::read(out[0], line, sizeof(line)), 0) << "the server does not listen";
        ::close(out[0]);
    }

    ~Process()
    {
        if (pid > 0)
            stop(SIGKILL);
    }

    Process(const Process &) = delete;
    Process &operator=(const Process &) = delete;

    /* Exit status, or minus the signal it died of. */
    int stop(int signal)
    {
        int status = 0;
        kill(pid, signal);
        EXPECT_EQ(waitpid(pid, &status, 0), pid);
        pid = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }

    pid_t pid;

  private:
    [[noreturn]] static void run(const std::string &socket, std::vector<std::string> args, int out)
    {
        std::vector<char *> argv;
        args.insert(args.begin(), GPUNVME_SIM);
        args.push_back(socket);
        for (auto &a : args)
            argv.push_back(a.data());
        argv.push_back(nullptr);
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that is killed leaves no server behind */
        /* A group with a stopped member is hung up, tests included, when its shell ends. */
        setpgid(0, 0);
        dup2(out, STDOUT_FILENO);
        execv(argv[0], argv.data());
        _exit(127);
    }
};

class VfioUserE2e : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        char pattern[] = "/tmp/vfio-user-XXXXXX";
        ASSERT_NE(mkdtemp(pattern), nullptr);
        folder = pattern;
        socket = folder + "/socket";
    }

    void TearDown() override
    {
        close();
        server.reset();
        std::filesystem::remove_all(folder);
    }

    void serve(std::vector<std::string> options = {})
    {
        server.reset();
        server = std::make_unique<Process>(socket, options);
    }

    int connect()
    {
        vfio_user_opts o = {};
        o.timeout_ms = message_ms;
        o.silence_ms = silence_ms;
        return vfio_user_open(socket.c_str(), &o, &t, why, sizeof(why));
    }

    void open()
    {
        ASSERT_EQ(connect(), 0) << why;
        attach();
    }

    void attach()
    {
        nvme_opts o{};
        o.io_timeout_ms = o.admin_timeout_ms = command_ms;
        o.why = why;
        o.why_len = sizeof(why);
        ASSERT_EQ(nvme_ctrlr_open(t, &o, &c), 0) << why;
        t = nullptr;
        ASSERT_EQ(bd_nvme_open(c, 1, 2, 32, &dev), 0);
    }

    void close()
    {
        if (dev)
            bd_close(dev);
        if (c)
            nvme_ctrlr_close(c);
        if (t)
            t->ops->close(t);
        dev = nullptr;
        c = nullptr;
        t = nullptr;
    }

    /* Random writes and reads of random lengths, compared with a copy. */
    void verify_random(unsigned rounds, uint64_t seed)
    {
        std::mt19937_64 rng(seed);
        uint64_t lba = dev->info.lba_size;
        Bytes copy(4 * MIB);
        ASSERT_EQ(bd_write(dev, 0, copy.data(), copy.size(), 0), 0);
        for (unsigned i = 0; i < rounds; i++) {
            uint64_t len = (1 + rng() % (512 * 1024 / lba)) * lba;
            uint64_t offset = rng() % ((copy.size() - len) / lba + 1) * lba;
            if (rng() % 2) {
                for (uint64_t at = offset; at < offset + len; at++)
                    copy[at] = static_cast<uint8_t>(rng());
                ASSERT_EQ(bd_write(dev, offset, &copy[offset], len, 0), 0);
            } else {
                Bytes back(len);
                ASSERT_EQ(bd_read(dev, offset, back.data(), len), 0);
                ASSERT_EQ(memcmp(back.data(), &copy[offset], len), 0) << offset << " + " << len;
            }
        }
        Bytes all(copy.size());
        ASSERT_EQ(bd_read(dev, 0, all.data(), all.size()), 0);
        ASSERT_EQ(all, copy);
    }

    std::string folder, socket;
    unsigned message_ms = 30000, command_ms = 30000, silence_ms = 0;
    std::unique_ptr<Process> server;
    nvme_transport *t = nullptr;
    nvme_ctrlr *c = nullptr;
    bd_dev *dev = nullptr;
    char why[256] = "";
};

class LbaSize : public VfioUserE2e, public ::testing::WithParamInterface<const char *>
{
};

TEST_P(LbaSize, DataIsReadBack)
{
    serve({"--strict", "--reorder", std::string("--lba=") + GetParam()});
    ASSERT_NO_FATAL_FAILURE(open());
    EXPECT_EQ(dev->info.lba_size, static_cast<uint32_t>(atoi(GetParam())));
    EXPECT_EQ(nvme_ctrlr_info(c)->max_transfer, 128u << 10);
    verify_random(60, 1);
    EXPECT_EQ(bd_flush(dev), 0);
    close();
    EXPECT_EQ(server->stop(SIGTERM), 0) << "mistakes of the driver";
}

INSTANTIATE_TEST_SUITE_P(All, LbaSize, ::testing::Values("512", "4096"),
                         [](const auto &info) { return std::string("Of") + info.param; });

TEST_F(VfioUserE2e, DataOutlivesClientAndServer)
{
    std::string image = folder + "/image";
    int fd = ::open(image.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_EQ(ftruncate(fd, 8 * MIB), 0);
    ::close(fd);
    Bytes data(MIB, 0xa5), back(MIB);
    serve({"--strict", "--image=" + image});
    ASSERT_NO_FATAL_FAILURE(open());
    ASSERT_EQ(bd_write(dev, MIB, data.data(), MIB, 0), 0);
    ASSERT_EQ(bd_flush(dev), 0);
    close();
    ASSERT_NO_FATAL_FAILURE(open());
    ASSERT_EQ(bd_read(dev, MIB, back.data(), MIB), 0);
    EXPECT_EQ(back, data) << "of another client";
    close();
    EXPECT_EQ(server->stop(SIGTERM), 0);
    serve({"--strict", "--image=" + image});
    ASSERT_NO_FATAL_FAILURE(open());
    back.assign(MIB, 0);
    ASSERT_EQ(bd_read(dev, MIB, back.data(), MIB), 0);
    EXPECT_EQ(back, data) << "of another server";
    close();
    EXPECT_EQ(server->stop(SIGTERM), 0);
}

TEST_F(VfioUserE2e, DeviceResetDisablesTheController)
{
    serve();
    ASSERT_NO_FATAL_FAILURE(open());
    nvme_transport *inside = nvme_ctrlr_transport(c);
    EXPECT_EQ(inside->ops->reset(inside), 0);
    EXPECT_EQ(inside->ops->read32(inside, NVME_REG_CC) & NVME_CC_ENABLE, 0u);
    EXPECT_EQ(nvme_ctrlr_reset(c, nvme_ctrlr_epoch(c)), 0);
    verify_random(5, 2);
}

TEST_F(VfioUserE2e, DeviceResetRecoversAStuckController)
{
    serve({"--stuck"});
    ASSERT_EQ(connect(), 0) << why;
    EXPECT_EQ(t->ops->reset(t), 0);
    ASSERT_NO_FATAL_FAILURE(attach());
    verify_random(5, 6);
}

/* Threads at work, of which each call must end. */
class Load
{
  public:
    explicit Load(bd_dev *dev)
    {
        for (unsigned i = 0; i < 4; i++)
            threads.emplace_back([this, dev, i] {
                Bytes data(256 << 10, static_cast<uint8_t>(i));
                while (!stopping && error_of(dev, i, data) == 0)
                    rounds++;
                ended++;
            });
    }

    /* The longest time until a call of any thread has failed. */
    double wait_all()
    {
        double from = now_s();
        for (auto &thread : threads)
            thread.join();
        return now_s() - from;
    }

    /* n more, unless a call fails. */
    void wait_rounds(unsigned n)
    {
        unsigned until = rounds + n;
        while (rounds < until && ended == 0)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }

    /* False: a call has failed. */
    bool stop()
    {
        stopping = true;
        bool good = ended == 0;
        wait_all();
        return good;
    }

  private:
    static int error_of(bd_dev *dev, unsigned i, Bytes &data)
    {
        int rc = bd_write(dev, i * MIB, data.data(), data.size(), 0);
        return rc ? rc : bd_read(dev, i * MIB, data.data(), data.size());
    }

    std::atomic<bool> stopping{false};
    std::atomic<unsigned> rounds{0}, ended{0};
    std::vector<std::thread> threads;
};

class ServerEnds : public VfioUserE2e
{
  protected:
    /* Whatever the server does from then on: calls end, so does closing, and a new one serves. */
    void survive(int signal)
    {
        command_ms = 1000;
        message_ms = 1000;
        serve();
        ASSERT_NO_FATAL_FAILURE(open());
        Load load(dev);
        load.wait_rounds(20);
        kill(server->pid, signal);
        double bound = command_ms / 1000.0 + nvme_ctrlr_reset_ms(c) / 1000.0 + SLACK_S;
        EXPECT_LT(load.wait_all(), bound);
        Bytes page(4096);
        EXPECT_EQ(bd_read(dev, 0, page.data(), page.size()), -EIO);
        EXPECT_EQ(bd_write(dev, 0, page.data(), page.size(), 0), -EIO);
        EXPECT_EQ(bd_flush(dev), -EIO);
        EXPECT_FALSE(nvme_ctrlr_alive(c));
        double from = now_s();
        close();
        EXPECT_LT(now_s() - from, SLACK_S);
        server.reset();
        command_ms = message_ms = 30000;
        serve({"--strict"});
        ASSERT_NO_FATAL_FAILURE(open());
        verify_random(5, 3);
        close();
        EXPECT_EQ(server->stop(SIGTERM), 0);
    }
};

TEST_F(ServerEnds, AKilledServerIsSurvived)
{
    survive(SIGKILL);
}

TEST_F(ServerEnds, AStoppedServerIsSurvived)
{
    survive(SIGSTOP);
}

// No request of the load fails, however long the server is silent within the time that is given.
TEST_F(ServerEnds, AServerThatContinuesIsNotGone)
{
    command_ms = message_ms = 500;
    silence_ms = 60000;
    serve();
    ASSERT_NO_FATAL_FAILURE(open());
    Load load(dev);
    load.wait_rounds(20);
    kill(server->pid, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::seconds(5));
    kill(server->pid, SIGCONT);
    load.wait_rounds(20);
    EXPECT_TRUE(load.stop());
    verify_random(5, 3);
}

TEST_F(ServerEnds, SilenceIsLimitedByTheOption)
{
    command_ms = message_ms = 500;
    silence_ms = 1000;
    serve();
    ASSERT_NO_FATAL_FAILURE(open());
    Load load(dev);
    load.wait_rounds(20);
    kill(server->pid, SIGSTOP);
    EXPECT_LT(load.wait_all(), 15) << "not the default, of 20 s";
    close();
}

TEST_F(VfioUserE2e, AKilledServerIsReportedAsARemoval)
{
    serve();
    ASSERT_NO_FATAL_FAILURE(open());
    pollfd p{nvme_ctrlr_transport(c)->removal_fd, POLLIN, 0};
    EXPECT_EQ(poll(&p, 1, 0), 0);
    server->stop(SIGKILL);
    EXPECT_EQ(poll(&p, 1, 10000), 1);
}

TEST_F(VfioUserE2e, ASecondClientWaitsNoLongerThanItsDeadline)
{
    serve({"--second-client=wait"});
    ASSERT_NO_FATAL_FAILURE(open());
    message_ms = 300;
    double from = now_s();
    EXPECT_EQ(connect(), -ETIMEDOUT);
    EXPECT_LT(now_s() - from, SLACK_S);
    EXPECT_NE(strstr(why, "busy"), nullptr) << why;
    verify_random(2, 4);
}

TEST_F(VfioUserE2e, ASecondClientIsRefusedWithAMessage)
{
    serve({"--second-client=refuse"});
    ASSERT_NO_FATAL_FAILURE(open());
    EXPECT_LT(connect(), 0);
    EXPECT_NE(strlen(why), 0u);
    verify_random(2, 5);
}

TEST_F(VfioUserE2e, ADriveWithoutDoorbellsIsRefused)
{
    serve({"--no-mmap"});
    EXPECT_EQ(connect(), -ENOTSUP);
    EXPECT_NE(strstr(why, "no doorbells that can be mapped"), nullptr) << why;
}

} // namespace
