/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The driver with a controller of another process: the vfio-user client,
 * recovery, and the death of the other process.
 */
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <gtest/gtest.h>
#include <memory>
#include <numeric>

#include "blockdev/bdev.h"
#include "blockdev/nvme/nvme.h"
#include "blockdev/vfio_user/vfio_user.h"
#include "serve_rig.h"
#include "tests/threads.h"

namespace
{

using Clock = std::chrono::steady_clock;
constexpr size_t MIB = 1 << 20;
/* Longer than an admin command on a busy machine; only lost ones exceed it. */
constexpr unsigned ADMIN_MS = 1500;

Bytes pattern(size_t len, unsigned seed)
{
    Bytes v(len);
    for (size_t i = 0; i < len; i++)
        v[i] = static_cast<unsigned char>((i * 2654435761u + seed * 40503u) >> 11);
    return v;
}

/* Server, transport, controller and device, closed in that order's reverse. */
struct Remote {
    explicit Remote(std::vector<std::string> args, unsigned timeout_ms = 10000)
    {
        args.push_back("--strict"); /* ~Server() expects exit status 0 */
        server = std::make_unique<Server>(args);
        open(timeout_ms);
    }
    ~Remote()
    {
        close();
    }
    void open(unsigned timeout_ms)
    {
        struct nvme_transport *t = nullptr;
        struct nvme_opts opts = {};
        struct vfio_user_opts message = {};
        message.timeout_ms = 2000;
        char why[256] = "";
        opts.why = why;
        opts.why_len = sizeof(why);
        opts.io_timeout_ms = timeout_ms;
        opts.admin_timeout_ms = std::max(timeout_ms, ADMIN_MS);
        ASSERT_EQ(vfio_user_open(server->path.c_str(), &message, &t, why, sizeof(why)), 0) << why;
        ASSERT_EQ(nvme_ctrlr_open(t, &opts, &c), 0) << why;
        ASSERT_EQ(bd_nvme_open(c, 1, 2, 16, &dev), 0);
    }
    void close()
    {
        if (dev)
            bd_close(dev);
        if (c)
            nvme_ctrlr_close(c);
        dev = nullptr;
        c = nullptr;
    }
    void expect_same(uint64_t offset, const Bytes &want)
    {
        Bytes got(want.size());
        ASSERT_EQ(bd_read(dev, offset, got.data(), got.size()), 0);
        EXPECT_TRUE(got == want);
    }
    /* Writes and reads back: it works. */
    void expect_works(unsigned seed)
    {
        Bytes data = pattern(MIB, seed);
        ASSERT_EQ(bd_write(dev, 4 * MIB, data.data(), data.size(), 0), 0);
        ASSERT_EQ(bd_flush(dev), 0);
        expect_same(4 * MIB, data);
    }
    std::unique_ptr<Server> server;
    struct nvme_ctrlr *c = nullptr;
    struct bd_dev *dev = nullptr;
};

struct Shape {
    const char *name;
    std::vector<std::string> args;
    enum { MAY, MUST, MUST_NOT } reset = MAY; /* expected for a fault: a controller reset */
};

struct RemoteShape : ::testing::TestWithParam<Shape> {
};

TEST_P(RemoteShape, KeepsEveryByte)
{
    Remote r(GetParam().args);
    ASSERT_NE(r.dev, nullptr);
    EXPECT_STREQ(nvme_ctrlr_transport(r.c)->ops->name, "vfio-user");
    Bytes data = pattern(5 * MIB + 4096, 1);
    ASSERT_EQ(bd_write(r.dev, 8192, data.data(), data.size(), 0), 0);
    ASSERT_EQ(bd_flush(r.dev), 0);
    r.expect_same(8192, data);
    /* A new driver on the same drive. */
    r.close();
    r.open(10000);
    r.expect_same(8192, data);
}

INSTANTIATE_TEST_SUITE_P(
    All, RemoteShape,
    ::testing::Values(Shape{"Plain", {}}, Shape{"Lba512", {"--lba=512"}},
                      Shape{"SmallTransfers", {"--mdts=8K", "--no-sgl"}},
                      Shape{"ShallowQueues", {"--max-depth=4", "--latency-us=100"}},
                      Shape{"Stride", {"--doorbell-stride=3", "--threads=2"}},
                      Shape{"OutOfOrder", {"--reorder", "--seed=9", "--threads=2"}},
                      Shape{"SlowToStart", {"--ready-ms=100", "--namespaces=3"}}),
    [](const auto &p) { return p.param.name; });

/* Several threads, each on its own part. */
TEST(RemoteThreads, DoNotMixTheirData)
{
    Remote r({"--threads=2", "--reorder"});
    ASSERT_NE(r.dev, nullptr);
    std::atomic<int> wrong{0};
    in_threads(4, [&](unsigned i) {
        Bytes data = pattern(256 << 10, i), got(data.size());
        for (unsigned round = 0; round < 5; round++) {
            uint64_t at = (i * 5 + round) * data.size();
            wrong += bd_write(r.dev, at, data.data(), data.size(), 0) != 0;
            wrong += bd_read(r.dev, at, got.data(), got.size()) != 0 || got != data;
        }
    });
    EXPECT_EQ(wrong, 0);
}

/* All steps of recovery, with a controller in another process. */
struct RemoteFault : ::testing::TestWithParam<Shape> {
};

TEST_P(RemoteFault, IsRecoveredFrom)
{
    Remote r(GetParam().args, 300);
    ASSERT_NE(r.dev, nullptr);
    unsigned epoch = nvme_ctrlr_epoch(r.c);
    auto start = Clock::now();
    for (unsigned i = 0; i < 4; i++)
        r.expect_works(i);
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(30));
    bool was_reset = nvme_ctrlr_epoch(r.c) != epoch;
    EXPECT_TRUE(GetParam().reset == Shape::MAY || was_reset == (GetParam().reset == Shape::MUST));
}

INSTANTIATE_TEST_SUITE_P(
    All, RemoteFault,
    ::testing::Values(
        Shape{"PassingError",
              {"--fault=status,op=read,status=0x006,skip=2,times=1"},
              Shape::MUST_NOT},
        Shape{"LostCommand", {"--fault=lose,op=write,skip=3,times=1"}, Shape::MUST_NOT},
        Shape{"LostAndNoAbort", {"--fault=lose,op=write,skip=3,times=1", "--no-abort"}},
        Shape{"LateCommand", {"--fault=late,op=read,ms=900,skip=3,times=1", "--no-abort"}},
        Shape{"LostDeletion",
              {"--fault=lose,op=write,skip=3,times=1", "--no-abort",
               "--fault=lose,op=delete-sq,times=1"},
              Shape::MUST},
        Shape{"ShortHang", {"--fault=hang,op=write,ms=500,skip=3,times=1"}},
        Shape{"HangUntilReset", {"--fault=hang,op=write,skip=3,times=1"}, Shape::MUST},
        Shape{"Fatal", {"--fault=fatal,op=read,skip=3,times=1"}, Shape::MUST},
        Shape{"FatalTwice",
              {"--fault=fatal,op=write,skip=5,times=2,one-in=3", "--seed=5"},
              Shape::MUST}),
    [](const auto &p) { return p.param.name; });

/* Only DEVICE_RESET helps against a controller that ignores CC. */
TEST(RemoteStuck, IsRecoveredByADeviceReset)
{
    Remote r({"--fault=hang,op=write,skip=3,times=1"}, 300);
    ASSERT_NE(r.dev, nullptr);
    r.expect_works(0);
    kill(r.server->pid, SIGUSR1);
    nvme_ctrlr_alive(r.c); /* a message: the server has handled the signal */
    for (unsigned i = 1; i < 4; i++)
        r.expect_works(i);
}

/*
 * A fault without recovery ends with -EIO in bounded time, and the next open
 * works.
 */
void expect_given_up(Remote &r)
{
    Bytes data = pattern(MIB, 1);
    auto start = Clock::now();
    EXPECT_EQ(bd_write(r.dev, 0, data.data(), data.size(), 0), -EIO);
    EXPECT_EQ(bd_flush(r.dev), -EIO);
    EXPECT_EQ(bd_read(r.dev, 0, data.data(), data.size()), -EIO);
    EXPECT_FALSE(nvme_ctrlr_alive(r.c));
    r.close();
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(30));
}

TEST(RemoteGone, ARemovedDriveEndsAllTransfers)
{
    Remote r({}, 300);
    ASSERT_NE(r.dev, nullptr);
    r.expect_works(0);
    kill(r.server->pid, SIGUSR2);
    nvme_ctrlr_alive(r.c);
    expect_given_up(r);
    r.open(10000);
    ASSERT_NE(r.dev, nullptr);
    r.expect_same(4 * MIB, pattern(MIB, 0)); /* flushed data is kept */
}

/* Unusable servers are refused with a reason, in bounded time. */
int refused(const std::string &path, std::string *said)
{
    struct nvme_transport *t = nullptr;
    struct vfio_user_opts opts = {};
    char why[256] = "";
    opts.timeout_ms = 300;
    int rc = vfio_user_open(path.c_str(), &opts, &t, why, sizeof(why));
    *said = why;
    if (rc == 0)
        t->ops->close(t);
    return rc;
}

TEST(RemoteRefused, ADriveNeedsMappableDoorbells)
{
    Server server({"--no-mmap", "--strict"});
    std::string why;
    EXPECT_EQ(refused(server.path, &why), -ENOTSUP);
    EXPECT_NE(why, "");
}

TEST(RemoteRefused, ASecondClientIsRefused)
{
    Server server({"--strict"});
    Client first(server.path);
    std::string why;
    EXPECT_LT(refused(server.path, &why), 0);
    EXPECT_NE(why, "");
}

TEST(RemoteRefused, ASecondClientMayWait)
{
    Server server({"--strict", "--second-client=wait"});
    Client first(server.path);
    std::string why;
    auto start = Clock::now();
    EXPECT_EQ(refused(server.path, &why), -ETIMEDOUT);
    EXPECT_NE(why, "");
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
}

TEST(RemoteRefused, AControllerThatIsNeverReadyIsRefused)
{
    Server server({"--strict", "--stuck", "--no-reset"});
    struct nvme_transport *t = nullptr;
    struct nvme_opts opts = {};
    struct nvme_ctrlr *c;
    char why[256] = "";
    ASSERT_EQ(vfio_user_open(server.path.c_str(), nullptr, &t, why, sizeof(why)), 0) << why;
    opts.why = why;
    opts.why_len = sizeof(why);
    EXPECT_EQ(nvme_ctrlr_open(t, &opts, &c), -ETIMEDOUT);
    EXPECT_NE(std::string(why), "");
    t->ops->close(t);
}

} // namespace
