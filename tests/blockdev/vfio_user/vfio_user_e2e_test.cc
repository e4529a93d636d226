/* SPDX-License-Identifier: BSD-2-Clause */
/* The driver over vfio-user, with the simulated controller in a process of its own. */
#include <gtest/gtest.h>
#include <nvme/types.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "blockdev/bdev.h"
#include "blockdev/nvme/nvme.h"
#include "blockdev/vfio_user/vfio_user.h"
#include "tests/blockdev/load.h"
#include "tests/sim/server.h"

namespace
{

using Bytes = std::vector<unsigned char>;

constexpr uint64_t MIB = 1 << 20;
/* On top of a bound that is measured: a busy machine, with sanitizers. */
constexpr double SLACK_S = 20;
/* Only a lost admin command takes longer than this, even on a busy machine. */
constexpr unsigned ADMIN_MS = 1500;

double now_s()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

class VfioUserE2e : public ::testing::Test
{
  protected:
    void TearDown() override
    {
        close();
        end_server();
    }

    /* A server that the test has not killed reports no mistakes of the driver. */
    void end_server()
    {
        if (server && server->pid > 0) {
            EXPECT_EQ(server->stop(), 0) << "mistakes of the driver";
        }
        server.reset();
    }

    /* Starts a new server, which reports mistakes of the driver by its exit status. */
    void serve(std::vector<std::string> options = {})
    {
        options.push_back("--strict");
        end_server();
        server = std::make_unique<Server>(options);
    }

    int connect()
    {
        bd_open_opts o = {};
        o.deadline_ms = message_ms;
        o.silence_ms = silence_ms;
        return vfio_user_open(server->path.c_str(), &o, &t, &why);
    }

    int start()
    {
        nvme_opts o{};
        o.io_timeout_ms = command_ms;
        o.admin_timeout_ms = std::max(command_ms, ADMIN_MS);
        o.why = &why;
        int err = nvme_ctrlr_open(t, &o, &c);
        if (!err)
            t = nullptr;
        return err;
    }

    void attach()
    {
        ASSERT_EQ(start(), 0) << why.text;
        ASSERT_EQ(bd_nvme_open(c, 1, 2, 32, &dev), 0);
    }

    void open()
    {
        ASSERT_EQ(connect(), 0) << why.text;
        attach();
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

    void expect_same(uint64_t offset, const Bytes &want)
    {
        Bytes got(want.size());
        ASSERT_EQ(bd_read(dev, offset, got.data(), got.size()), 0);
        EXPECT_TRUE(got == want) << offset;
    }

    /* Writes and reads at random, compares with a copy, and returns the copy. */
    Bytes verify_random(unsigned rounds)
    {
        std::mt19937_64 rng(rounds);
        uint64_t lba = dev->info.lba_size;
        Bytes copy(4 * MIB);
        EXPECT_EQ(bd_write(dev, 0, copy.data(), copy.size(), 0), 0);
        for (unsigned i = 0; i < rounds && !HasFailure(); i++) {
            uint64_t len = (1 + rng() % (512 * 1024 / lba)) * lba;
            uint64_t offset = rng() % ((copy.size() - len) / lba + 1) * lba;
            Bytes part(&copy[offset], &copy[offset] + len);
            if (rng() % 2) {
                std::generate(part.begin(), part.end(),
                              [&] { return static_cast<unsigned char>(rng()); });
                EXPECT_EQ(bd_write(dev, offset, part.data(), len, 0), 0);
                std::copy(part.begin(), part.end(), &copy[offset]);
            } else {
                expect_same(offset, part);
            }
        }
        EXPECT_EQ(bd_flush(dev), 0);
        expect_same(0, copy);
        return copy;
    }

    /* Writes, flushes and reads back; the time is bounded. */
    void expect_works(unsigned char seed)
    {
        double from = now_s();
        Bytes data(MIB);
        for (size_t i = 0; i < data.size(); i++)
            data[i] = static_cast<unsigned char>((i * 2654435761u >> 11) + seed);
        ASSERT_EQ(bd_write(dev, 4 * MIB, data.data(), data.size(), 0), 0);
        ASSERT_EQ(bd_flush(dev), 0);
        expect_same(4 * MIB, data);
        EXPECT_LT(now_s() - from, 30);
        durable = data;
    }

    unsigned message_ms = 30000, command_ms = 30000, silence_ms = 0;
    std::unique_ptr<Server> server;
    nvme_transport *t = nullptr;
    nvme_ctrlr *c = nullptr;
    bd_dev *dev = nullptr;
    struct reason why = {};
    Bytes durable; /* what expect_works() has left on the drive */
};

/* --- Data ------------------------------------------------------------------------------------ */

struct Shape {
    const char *name;
    std::vector<std::string> options;
    uint32_t lba = 4096, max_transfer = 128 << 10;
};

class Shapes : public VfioUserE2e, public ::testing::WithParamInterface<Shape>
{
};

TEST_P(Shapes, KeepEveryByte)
{
    serve(GetParam().options);
    ASSERT_NO_FATAL_FAILURE(open());
    EXPECT_STREQ(nvme_ctrlr_transport(c)->ops->name, "vfio-user");
    EXPECT_EQ(dev->info.lba_size, GetParam().lba);
    EXPECT_EQ(nvme_ctrlr_info(c)->max_transfer, GetParam().max_transfer);
    Bytes data = verify_random(60);
    close();
    ASSERT_NO_FATAL_FAILURE(open());
    expect_same(0, data);
}

INSTANTIATE_TEST_SUITE_P(
    All, Shapes,
    ::testing::Values(Shape{"Plain", {}}, Shape{"Lba512", {"--lba=512", "--reorder"}, 512},
                      Shape{"SmallTransfers", {"--mdts=8K", "--no-sgl"}, 4096, 8 << 10},
                      Shape{"ShallowQueues", {"--max-depth=4", "--latency-us=100"}},
                      Shape{"Stride", {"--doorbell-stride=3", "--threads=2"}},
                      Shape{"OutOfOrder", {"--reorder", "--seed=9", "--threads=2"}},
                      Shape{"SlowToStart", {"--ready-ms=100", "--namespaces=3"}}),
    [](const auto &info) { return info.param.name; });

TEST_F(VfioUserE2e, DataOutlivesTheServer)
{
    const std::string image = ::testing::TempDir() + "vfio-user-" + std::to_string(getpid());
    std::ofstream(image).close();
    std::filesystem::resize_file(image, 8 * MIB);
    serve({"--image=" + image});
    ASSERT_NO_FATAL_FAILURE(open());
    expect_works(1);
    close();
    serve({"--image=" + image});
    ASSERT_NO_FATAL_FAILURE(open());
    expect_same(4 * MIB, durable);
    std::filesystem::remove(image);
}

TEST_F(VfioUserE2e, ThreadsDoNotMixTheirData)
{
    serve({"--threads=2", "--reorder"});
    ASSERT_NO_FATAL_FAILURE(open());
    Load load(dev, 4);
    load.wait_rounds(40);
    EXPECT_TRUE(load.stop()) << load.text();
}

/* --- Faults, and all steps of recovery ------------------------------------------------------- */

struct Fault {
    const char *name;
    std::vector<std::string> options;
    enum { MAY, MUST, MUST_NOT } reset = MAY; /* of the controller */
};

class Faults : public VfioUserE2e, public ::testing::WithParamInterface<Fault>
{
};

TEST_P(Faults, AreRecoveredFrom)
{
    command_ms = 300;
    serve(GetParam().options);
    ASSERT_NO_FATAL_FAILURE(open());
    unsigned epoch = nvme_ctrlr_epoch(c);
    for (unsigned char i = 0; i < 4; i++)
        expect_works(i);
    bool was_reset = nvme_ctrlr_epoch(c) != epoch;
    EXPECT_TRUE(GetParam().reset == Fault::MAY || was_reset == (GetParam().reset == Fault::MUST));
}

INSTANTIATE_TEST_SUITE_P(
    All, Faults,
    ::testing::Values(
        Fault{"PassingError",
              {"--fault=status,op=read,status=0x006,skip=2,times=1"},
              Fault::MUST_NOT},
        Fault{"LostCommand", {"--fault=lose,op=write,skip=3,times=1"}, Fault::MUST_NOT},
        Fault{"LostAndNoAbort", {"--fault=lose,op=write,skip=3,times=1", "--no-abort"}},
        Fault{"LateCommand", {"--fault=late,op=read,ms=900,skip=3,times=1", "--no-abort"}},
        Fault{"LostDeletion",
              {"--fault=lose,op=write,skip=3,times=1", "--no-abort",
               "--fault=lose,op=delete-sq,times=1"},
              Fault::MUST},
        Fault{"ShortHang", {"--fault=hang,op=write,ms=500,skip=3,times=1"}},
        Fault{"HangUntilReset", {"--fault=hang,op=write,skip=3,times=1"}, Fault::MUST},
        Fault{"Fatal", {"--fault=fatal,op=read,skip=3,times=1"}, Fault::MUST},
        Fault{"FatalTwice",
              {"--fault=fatal,op=write,skip=5,times=2,one-in=3", "--seed=5"},
              Fault::MUST}),
    [](const auto &info) { return info.param.name; });

TEST_F(VfioUserE2e, DeviceResetDisablesTheController)
{
    serve();
    ASSERT_NO_FATAL_FAILURE(open());
    nvme_transport *inside = nvme_ctrlr_transport(c);
    EXPECT_EQ(inside->ops->reset(inside), 0);
    EXPECT_EQ(inside->ops->read(inside, NVME_REG_CC, 4) & NVME_CC_ENABLE, 0u);
    EXPECT_EQ(nvme_ctrlr_reset(c, nvme_ctrlr_epoch(c)), 0);
    expect_works(1);
}

/* Only DEVICE_RESET helps against a controller that ignores CC, before it is opened or later. */
TEST_F(VfioUserE2e, DeviceResetRecoversAStuckController)
{
    command_ms = 300;
    serve({"--stuck", "--fault=hang,op=write,skip=20,times=1"});
    ASSERT_EQ(connect(), 0) << why.text;
    EXPECT_EQ(t->ops->reset(t), 0);
    ASSERT_NO_FATAL_FAILURE(attach());
    expect_works(0);
    kill(server->pid, SIGUSR1);
    nvme_ctrlr_alive(c); /* a message: the server has handled the signal */
    for (unsigned char i = 1; i < 4; i++)
        expect_works(i);
}

class ServerEnds : public VfioUserE2e
{
  protected:
    void begin()
    {
        serve();
        ASSERT_NO_FATAL_FAILURE(open());
        expect_works(0);
        load = std::make_unique<Load>(dev, 4);
        load->wait_rounds(20);
    }

    /* Calls and closing end whatever the server does from then on, and the next server works. */
    void survive(int signal)
    {
        command_ms = message_ms = 1000;
        ASSERT_NO_FATAL_FAILURE(begin());
        kill(server->pid, signal);
        double bound = command_ms / 1000.0 + nvme_ctrlr_reset_ms(c) / 1000.0 + SLACK_S;
        EXPECT_LT(load->seconds_until_errors(), bound);
        Bytes page(4096);
        EXPECT_EQ(bd_read(dev, 0, page.data(), page.size()), -EIO);
        EXPECT_EQ(bd_write(dev, 0, page.data(), page.size(), 0), -EIO);
        EXPECT_EQ(bd_flush(dev), -EIO);
        EXPECT_FALSE(nvme_ctrlr_alive(c));
        double from = now_s();
        close();
        EXPECT_LT(now_s() - from, SLACK_S);
        command_ms = message_ms = 30000;
    }

    void expect_the_next_server_works(int signal)
    {
        ASSERT_NO_FATAL_FAILURE(survive(signal));
        server->stop(SIGKILL);
        serve();
        ASSERT_NO_FATAL_FAILURE(open());
        expect_works(1);
    }

    std::unique_ptr<Load> load;
};

TEST_F(ServerEnds, AKilledServerIsSurvived)
{
    expect_the_next_server_works(SIGKILL);
}

TEST_F(ServerEnds, AStoppedServerIsSurvived)
{
    expect_the_next_server_works(SIGSTOP);
}

TEST_F(ServerEnds, ARemovedDriveKeepsFlushedDataForTheNextDriver)
{
    ASSERT_NO_FATAL_FAILURE(survive(SIGUSR2));
    ASSERT_NO_FATAL_FAILURE(open());
    expect_same(4 * MIB, durable);
    expect_works(1);
}

// No request of the load fails, however long the server is silent within the time that is given.
TEST_F(ServerEnds, AServerThatContinuesIsNotGone)
{
    command_ms = message_ms = 500;
    silence_ms = 60000;
    ASSERT_NO_FATAL_FAILURE(begin());
    server->pause();
    std::this_thread::sleep_for(std::chrono::seconds(5));
    server->go_on();
    load->wait_rounds(20);
    EXPECT_TRUE(load->stop()) << load->text();
    expect_works(1);
}

TEST_F(ServerEnds, SilenceIsLimitedByTheOption)
{
    command_ms = message_ms = 500;
    silence_ms = 1000;
    ASSERT_NO_FATAL_FAILURE(begin());
    server->pause();
    EXPECT_LT(load->seconds_until_errors(), 15) << "not the default, of 20 s";
    close();
    server->stop(SIGKILL);
}

// The memory remains allocated, as after a late unmap, until the transport is gone.
TEST_F(VfioUserE2e, MemoryThatIsStillAllocatedEndsWithTheController)
{
    nvme_dma dma;
    unsigned char resident;

    serve();
    ASSERT_NO_FATAL_FAILURE(open());
    ASSERT_EQ(nvme_dma_alloc(c, NVME_PAGE_SIZE, &dma), 0);
    close();
    EXPECT_EQ(mincore(dma.addr, NVME_PAGE_SIZE, &resident), -1);
    EXPECT_EQ(errno, ENOMEM) << "it is still mapped";
    server->stop(SIGKILL);
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

/* --- Servers that are refused with a reason, in bounded time --------------------------------- */

TEST_F(VfioUserE2e, ASecondClientWaitsNoLongerThanItsDeadline)
{
    serve({"--second-client=wait"});
    ASSERT_NO_FATAL_FAILURE(open());
    message_ms = 300;
    double from = now_s();
    EXPECT_EQ(connect(), -ETIMEDOUT);
    EXPECT_LT(now_s() - from, SLACK_S);
    EXPECT_NE(strstr(why.text, "busy"), nullptr) << why.text;
    expect_works(1);
}

TEST_F(VfioUserE2e, ASecondClientIsRefusedWithAMessage)
{
    serve({"--second-client=refuse"});
    ASSERT_NO_FATAL_FAILURE(open());
    EXPECT_LT(connect(), 0);
    EXPECT_NE(strlen(why.text), 0u);
    expect_works(1);
}

TEST_F(VfioUserE2e, ADriveWithoutDoorbellsIsRefused)
{
    serve({"--no-mmap"});
    EXPECT_EQ(connect(), -ENOTSUP);
    EXPECT_NE(strstr(why.text, "no doorbells that can be mapped"), nullptr) << why.text;
}

TEST_F(VfioUserE2e, AControllerThatIsNeverReadyIsRefused)
{
    serve({"--stuck", "--no-reset"});
    ASSERT_EQ(connect(), 0) << why.text;
    EXPECT_EQ(start(), -ETIMEDOUT);
    EXPECT_NE(strlen(why.text), 0u);
}

} // namespace
