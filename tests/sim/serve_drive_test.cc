/* SPDX-License-Identifier: BSD-2-Clause */
/* A controller behind gpunvme-sim: I/O, faults, resets, successive clients. */
#include <chrono>
#include <csignal>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <memory>
#include <nvme/types.h>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include "serve_rig.h"

namespace
{

constexpr uint32_t BAR0 = VFIO_PCI_BAR0_REGION_INDEX;

struct Drive : ::testing::Test {
    /* Enables a controller, writes, reads back, disables it. */
    static void exercise(Client &c, bool mapped = true)
    {
        Driver d(c, mapped);
        ASSERT_EQ(c.bus_master(), 0);
        ASSERT_EQ(d.enable(), NVME_CSTS_READY);
        ASSERT_EQ(d.identify(), 0);
        EXPECT_EQ(memcmp(d.memory + Driver::DATA + 4, "SIM0001", 7), 0);
        d.create_io_queue();
        memset(d.memory + Driver::DATA, 0x5a, 4096);
        for (uint64_t lba = 0; lba < 40; lba++)
            ASSERT_EQ(d.rw(NVME_IO_WRITE, lba), 0);
        memset(d.memory + Driver::DATA, 0, 4096);
        ASSERT_EQ(d.rw(NVME_IO_READ, 39), 0);
        EXPECT_EQ(d.memory[Driver::DATA + 4095], 0x5a);
        EXPECT_EQ(d.disable(), 0u);
        EXPECT_EQ(c.unmap(Driver::IOVA, Driver::BYTES), 0);
    }
};

TEST_F(Drive, WorksThroughMappedDoorbells)
{
    Server server({"--strict"});
    Client c(server.path);
    exercise(c);
}

TEST_F(Drive, WorksWithMessagesOnly)
{
    Server server({"--strict", "--no-mmap"});
    Client c(server.path);
    Reply r = c.region_info(BAR0);
    EXPECT_EQ(r.as<struct vfio_region_info>().flags & VFIO_REGION_INFO_FLAG_MMAP, 0u);
    EXPECT_EQ(r.fd, -1);
    exercise(c, false);
}

TEST_F(Drive, OptionsReachTheController)
{
    Server server({"--strict", "--threads=2", "--latency-us=200", "--max-depth=16", "--no-sgl",
                   "--namespaces=3", "--size=1M", "--mdts=8K", "--ready-ms=20", "--reorder",
                   "--seed=3", "--no-volatile-cache", "--io-queues=2"});
    Client c(server.path);
    EXPECT_EQ(NVME_CAP_MQES(c.read64(NVME_REG_CAP)), 15u);
    exercise(c);
    Driver d(c);
    ASSERT_EQ(d.enable(), NVME_CSTS_READY);
    ASSERT_EQ(d.identify(), 0);
    unsigned char *id = d.memory + Driver::DATA;
    EXPECT_EQ(id[77], 1) << "MDTS: two pages";
    EXPECT_EQ(id[516], 3) << "namespaces";
    EXPECT_EQ(id[525], 0) << "no volatile cache";
    EXPECT_EQ(id[536], 0) << "no SGLs";
    d.disable();
}

TEST_F(Drive, ImageKeepsWrittenData)
{
    std::string image = ::testing::TempDir() + "gpunvme-serve-" + std::to_string(getpid());
    std::ofstream(image) << std::string(1 << 20, '\0');
    {
        Server server({"--strict", "--image=" + image, "--lba=4096"});
        Client c(server.path);
        exercise(c);
    }
    std::ifstream in(image, std::ios::binary);
    std::string data((std::istreambuf_iterator<char>(in)), {});
    ASSERT_EQ(data.size(), 1u << 20);
    EXPECT_EQ(data.substr(0, 40 * 4096), std::string(40 * 4096, 0x5a));
    unlink(image.c_str());
}

TEST_F(Drive, WithoutBusMasteringTheControllerFails)
{
    Server server({"--strict"});
    {
        Client c(server.path);
        Driver d(c);
        EXPECT_EQ(d.enable(), NVME_CSTS_FATAL);
        EXPECT_EQ(d.disable(), 0u) << "CC.EN to 0 heals";
        ASSERT_EQ(c.bus_master(), 0);
        EXPECT_EQ(d.enable(), NVME_CSTS_READY);
        EXPECT_EQ(d.identify(), 0);
        ASSERT_EQ(c.bus_master(false), 0);
        EXPECT_TRUE(c.read32(NVME_REG_CSTS) & NVME_CSTS_FATAL);
        EXPECT_TRUE(c.read32(NVME_REG_CC) & NVME_CC_ENABLE);
        EXPECT_EQ(d.disable(), 0u);
    }
    EXPECT_EQ(server.stop(), 3);
    EXPECT_NE(server.err().find("CC.EN set while bus mastering is off"), std::string::npos);
}

TEST_F(Drive, StrictReportsTheRecordedMistakes)
{
    Server server({"--strict"});
    {
        Client c(server.path);
        EnabledDriver d(c);
        d.doorbell(6, 1);
        for (int i = 0; i < 10; i++) { /* an idle thread sweeps all doorbells */
            EXPECT_EQ(d.identify(), 0);
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        d.disable();
    }
    EXPECT_EQ(server.stop(), 3);
    EXPECT_NE(server.err().find("DB_INVALID_QUEUE"), std::string::npos) << server.err();
}

TEST_F(Drive, DeviceResetDisablesAndKeepsTheMap)
{
    Server server({"--strict", "--fault=hang,op=identify,times=1"});
    Client c(server.path);
    EnabledDriver d(c);
    EXPECT_EQ(d.identify(50), 0xffff);
    EXPECT_EQ(c.call(VFIO_USER_DEVICE_RESET).error(), 0);
    EXPECT_EQ(c.read32(NVME_REG_CC), 0u);
    EXPECT_EQ(c.read32(NVME_REG_CSTS), 0u);
    ASSERT_EQ(d.enable(), NVME_CSTS_READY);
    EXPECT_EQ(d.identify(), 0);
    d.disable();
}

TEST_F(Drive, DeviceResetRecoversAStuckController)
{
    Server server({"--stuck"});
    Client c(server.path);
    Driver d(c);
    c.bus_master();
    c.write32(NVME_REG_CC, NVME_CC_ENABLE);
    EXPECT_EQ(c.read32(NVME_REG_CSTS), 0u);
    c.write32(NVME_REG_CC, 0);
    ASSERT_EQ(c.call(VFIO_USER_DEVICE_RESET).error(), 0);
    EXPECT_EQ(d.enable(), NVME_CSTS_READY);
    /* The same by a signal. */
    kill(server.pid, SIGUSR1);
    c.read32(NVME_REG_VS); /* two messages: the signal is handled between them at the latest */
    c.write32(NVME_REG_CC, 0);
    EXPECT_EQ(c.read32(NVME_REG_CSTS), NVME_CSTS_READY);
}

TEST_F(Drive, AMissingResetIsReportedAndRefused)
{
    Server server({"--no-reset"});
    Client c(server.path);
    struct vfio_user_device_info in = {sizeof(in), 0, 0, 0};
    Reply r = c.call(VFIO_USER_DEVICE_GET_INFO, bytes_of(in));
    EXPECT_EQ(r.as<struct vfio_user_device_info>().flags & VFIO_DEVICE_FLAGS_RESET, 0u);
    EXPECT_EQ(c.call(VFIO_USER_DEVICE_RESET).error(), ENOTSUP);
    EnabledDriver d(c);
    uint16_t control = 0x8000; /* Initiate Function Level Reset */
    EXPECT_EQ(c.write(VFIO_PCI_CONFIG_REGION_INDEX, 0x58, bytes_of(control)), 0);
    EXPECT_EQ(c.read32(NVME_REG_CSTS), NVME_CSTS_READY);
}

TEST_F(Drive, AfterRemovalItReadsAllOnesUntilTheNextClient)
{
    Server server({"--strict"});
    {
        Client c(server.path);
        EnabledDriver d(c);
        kill(server.pid, SIGUSR2);
        c.read32(NVME_REG_VS);
        EXPECT_EQ(c.read32(NVME_REG_CSTS), UINT32_MAX);
        EXPECT_EQ(c.read64(NVME_REG_CAP), UINT64_MAX);
        d.doorbell(0, 1);
        EXPECT_EQ(c.call(VFIO_USER_DEVICE_RESET).error(), EIO);
        EXPECT_EQ(c.unmap(Driver::IOVA, Driver::BYTES), 0);
    }
    /*
     * A reset request to a removed drive is refused and is no mistake of the
     * protocol.
     */
    Client again(server.path);
    exercise(again);
}

TEST_F(Drive, FaultsAreInjected)
{
    Server server({"--strict", "--fault=status,op=read,lba=7+2,status=0x281,times=1",
                   "--fault=lose,op=write,lba=9,times=1"});
    Client c(server.path);
    EnabledDriver d(c);
    d.create_io_queue();
    EXPECT_EQ(d.rw(NVME_IO_READ, 6), 0);
    EXPECT_EQ(d.rw(NVME_IO_READ, 8), NVME_ERR_UNRECOVERED_READ);
    EXPECT_EQ(d.rw(NVME_IO_READ, 8), 0);
    EXPECT_EQ(d.rw(NVME_IO_WRITE, 9, 50), 0xffff);
    EXPECT_EQ(d.rw(NVME_IO_WRITE, 9), 0);
    d.disable();
}

/*
 * A client is killed with commands in flight: the next one gets a controller in
 * the state after power-on.
 */
TEST_F(Drive, AKilledClientLeavesNothing)
{
    Server server({"--strict", "--latency-us=20000"});
    Holdings before = {};
    {
        Client c(server.path);
        before = server.holdings();
    }
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        Client c(server.path);
        Driver d(c);
        c.bus_master();
        bool ok = d.enable() == NVME_CSTS_READY;
        d.create_io_queue();
        d.rw(NVME_IO_READ, 0, 0); /* in flight */
        char byte = ok;
        if (::write(ready[1], &byte, 1) == 1)
            pause();
        _exit(1);
    }
    char byte = 0;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    EXPECT_EQ(byte, 1);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    close(ready[0]);
    close(ready[1]);
    Client c(server.path);
    EXPECT_EQ(c.read32(NVME_REG_CC), 0u);
    EXPECT_EQ(c.read32(NVME_REG_AQA), 0u);
    EXPECT_EQ(c.read32(NVME_REG_DOORBELLS), 0u);
    Holdings after = server.holdings();
    EXPECT_EQ(after.fds, before.fds);
    EXPECT_EQ(after.maps, before.maps);
    exercise(c);
}

/*
 * A former client can store to doorbells that it has mapped: they belong to no
 * queue.
 */
TEST_F(Drive, OldDoorbellsHaveNoEffect)
{
    Server server({"--strict"});
    auto first = std::make_unique<Client>(server.path);
    Driver d(*first);
    first.reset();
    Client c(server.path);
    for (unsigned i = 0; i < 32; i++)
        d.doorbells[i] = 5;
    exercise(c);
    EXPECT_EQ(c.read32(NVME_REG_DOORBELLS + 8), 0u);
}

} // namespace
