/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A hostile or faulty client of gpunvme-sim: the server does not crash, hang or
 * leak.
 */
#include <chrono>
#include <csignal>
#include <gtest/gtest.h>
#include <nvme/types.h>
#include <random>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve_rig.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

namespace
{

constexpr uint64_t MIB = 1 << 20;

/*
 * After each test a well-behaved client is served, and no resource is leaked.
 */
struct Hostile : ::testing::Test {
    Hostile()
    {
        Client c(server.path);
        before = server.holdings();
    }
    void TearDown() override
    {
        ASSERT_TRUE(server.alive()) << server.err();
        Client c(server.path);
        EXPECT_EQ(c.read32(NVME_REG_VS), 0x20000u);
        EXPECT_EQ(c.read32(NVME_REG_CC), 0u);
        Holdings after = server.holdings();
        EXPECT_EQ(after.fds, before.fds);
        EXPECT_EQ(after.maps, before.maps);
    }
    Server server;
    Holdings before;
};

/* A header alone; its size may be wrong. */
Bytes header(uint16_t command, uint32_t size, uint32_t flags = 0)
{
    struct vfio_user_header h = {};
    h.command = command;
    h.size = size;
    h.flags = flags;
    return bytes_of(h);
}

TEST_F(Hostile, InvalidSizesEndTheConnection)
{
    for (uint32_t size : {0u, 1u, 15u, 1u << 20, 0x7fffffffu, UINT32_MAX}) {
        Client c(server.path);
        c.send(header(VFIO_USER_DEVICE_GET_INFO, size));
        EXPECT_EQ(c.receive().error(), EPROTO) << size;
        EXPECT_TRUE(c.receive().closed) << size;
    }
}

TEST_F(Hostile, ShortPayloadsAreRefused)
{
    Client c(server.path);
    for (uint16_t command : {VFIO_USER_DMA_MAP, VFIO_USER_DMA_UNMAP, VFIO_USER_DEVICE_GET_INFO,
                             VFIO_USER_DEVICE_GET_REGION_INFO, VFIO_USER_DEVICE_GET_IRQ_INFO,
                             VFIO_USER_DEVICE_SET_IRQS, VFIO_USER_REGION_READ,
                             VFIO_USER_REGION_WRITE, VFIO_USER_VERSION})
        for (size_t len : {0, 1, 3, 15})
            EXPECT_EQ(c.call(command, Bytes(len)).error(), EINVAL) << command << " " << len;
}

TEST_F(Hostile, WrongCountsAreRefused)
{
    Client c(server.path);
    for (uint32_t count : {0u, 3u, 5u, 8u, 65535u, UINT32_MAX}) {
        struct vfio_user_region_access a = {NVME_REG_AQA, VFIO_PCI_BAR0_REGION_INDEX, count};
        Bytes payload = bytes_of(a);
        payload.resize(payload.size() + 4);
        EXPECT_EQ(c.call(VFIO_USER_REGION_WRITE, payload).error(), EINVAL) << count;
    }
    struct vfio_user_device_info small = {15, 0, 0, 0};
    EXPECT_EQ(c.call(VFIO_USER_DEVICE_GET_INFO, bytes_of(small)).error(), EINVAL);
}

TEST_F(Hostile, OnlyCommandsAreAccepted)
{
    Client c(server.path);
    for (uint32_t flags : {VFIO_USER_TYPE_REPLY, 2u, VFIO_USER_ERROR, 15u})
        EXPECT_EQ(c.call(VFIO_USER_DEVICE_RESET, {}, {}, flags).error(), EINVAL) << flags;
}

TEST_F(Hostile, NothingWorksBeforeTheVersion)
{
    for (uint16_t command : {0, 2, 4, 5, 9, 13, 77}) {
        Client c(server.path, false);
        EXPECT_EQ(c.call(command, Bytes(32)).error(), EINVAL);
        EXPECT_TRUE(c.receive().closed);
    }
}

TEST_F(Hostile, InvalidVersionsAreRefused)
{
    const struct {
        uint16_t major;
        const char *json;
        bool nul;
    } cases[] = {
        {1, "{}", true},
        {0, "{}", false},
        {0, "{", true},
        {0, "[]", true},
        {0, "nonsense", true},
        {0, "{\"capabilities\":7}", true},
        {0, "{\"capabilities\":{\"max_msg_fds\":\"many\"}}", true},
        {0, "{\"capabilities\":{\"max_msg_fds\":-1}}", true},
    };
    for (const auto &k : cases) {
        Client c(server.path, false);
        EXPECT_EQ(c.version(k.major, 1, k.json, k.nul).error(), EINVAL) << k.json;
        EXPECT_TRUE(c.receive().closed);
    }
    Client deep(server.path, false);
    EXPECT_EQ(deep.version(0, 1, std::string(60000, '[')).error(), EINVAL);
    Client twice(server.path);
    EXPECT_EQ(twice.version(0, 1, "{}").error(), EINVAL);
    EXPECT_EQ(twice.read32(NVME_REG_VS), 0x20000u);
}

TEST_F(Hostile, UnexpectedDescriptorsAreClosed)
{
    Fd fd = make_memfd(MIB);
    Client c(server.path);
    Holdings now = server.holdings();
    struct vfio_user_device_info in = {sizeof(in), 0, 0, 0};
    for (unsigned n : {1, 8, 9, 60}) {
        std::vector<int> fds(n, fd);
        EXPECT_EQ(c.call(VFIO_USER_DEVICE_GET_INFO, bytes_of(in), fds).error(), EINVAL) << n;
        struct vfio_user_dma_map m = {sizeof(m), 3, 0, 4096, 4096};
        EXPECT_EQ(c.call(VFIO_USER_DMA_MAP, bytes_of(m), fds).error(), n == 1 ? 0 : EINVAL) << n;
        EXPECT_EQ(c.call(999, {}, fds).error(), ENOTSUP);
    }
    EXPECT_EQ(server.holdings().fds, now.fds);
}

/*
 * Descriptors with each byte of a message: they count together, and all are
 * closed.
 */
TEST_F(Hostile, DescriptorsInEveryPieceDoNoHarm)
{
    Fd fd = make_memfd(MIB);
    Client c(server.path);
    size_t before = server.holdings().maps;
    struct vfio_user_dma_map m = {sizeof(m), 3, 0, 4096, 4096};
    for (unsigned char byte : message(VFIO_USER_DMA_MAP, bytes_of(m)))
        c.send({byte}, {fd});
    EXPECT_EQ(c.receive().error(), EINVAL);
    for (unsigned char byte : message(VFIO_USER_DMA_MAP, bytes_of(m)))
        c.send({byte});
    EXPECT_EQ(c.receive().error(), 0) << "no descriptor, for those before are gone";
    EXPECT_EQ(server.holdings().maps, before);
}

TEST_F(Hostile, InvalidMappingsAreRefused)
{
    int fd = make_memfd(MIB), pipes[2];
    ASSERT_EQ(pipe(pipes), 0);
    int read_only = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    const uint64_t at = 0x40000000;
    Client c(server.path);
    ASSERT_EQ(c.map(at, MIB, fd), 0);
    const struct {
        uint64_t iova, size;
        int fd;
        uint64_t offset;
        uint32_t flags;
        int error;
    } cases[] = {
        {at, MIB, fd, 0, 3, EEXIST},
        {at + MIB - 4096, 4096, fd, 0, 3, EEXIST},
        {at - 4096, 8192, fd, 0, 3, EEXIST},
        {at + 1, 4096, fd, 0, 3, EINVAL},
        {8 * at, 0, fd, 0, 3, EINVAL},
        {8 * at, 4095, fd, 0, 3, EINVAL},
        {8 * at, 4096, fd, 1, 3, EINVAL},
        {8 * at, 2 * MIB, fd, 0, 3, EINVAL},
        {8 * at, 4096, fd, MIB, 3, EINVAL},
        {8 * at, MIB, fd, UINT64_MAX - 4095, 3, EINVAL},
        {8 * at, 1ull << 63, fd, 0, 3, EINVAL},
        {8 * at, UINT64_MAX - 4095, fd, 4096, 3, EINVAL},
        {UINT64_MAX - 4095, 4096, fd, 0, 3, EINVAL},
        {1ull << 63, 8192, fd, 0, 3, EINVAL},
        {8 * at, 4096, pipes[0], 0, 3, EINVAL},
        {8 * at, 4096, read_only, 0, 3, EACCES},
        {UINT64_MAX - 4095, 8192, -1, 0, 3, EINVAL},
        {at + 4096, 4096, -1, 0, 3, EEXIST},
        {at + 4096, 4096, fd, 0, 1, EEXIST},
        {8 * at, 4096, fd, 0, 7, EINVAL},
    };
    for (const auto &k : cases)
        EXPECT_EQ(c.map(k.iova, k.size, k.fd, k.offset, k.flags), k.error)
            << std::hex << k.iova << " " << k.size << " " << k.offset << " " << k.flags;
    for (auto [iova, size] : {std::pair<uint64_t, uint64_t>{at, 4096},
                              {at + 4096, MIB - 4096},
                              {at, 2 * MIB},
                              {0, 0},
                              {at, 0},
                              {0, UINT64_MAX}})
        EXPECT_EQ(c.unmap(iova, size), ENOENT);
    struct vfio_user_dma_unmap u = {sizeof(u), VFIO_DMA_UNMAP_FLAG_ALL, at, MIB};
    EXPECT_EQ(c.call(VFIO_USER_DMA_UNMAP, bytes_of(u)).error(), EINVAL) << "all, and a range";
    u.flags = 0;
    EXPECT_EQ(c.call(VFIO_USER_DMA_UNMAP, bytes_of(u), {fd, fd}).error(), EINVAL);
    EXPECT_EQ(c.unmap(at, MIB), 0);
    EXPECT_EQ(c.unmap(at, MIB), ENOENT);
    for (int open_fd : {fd, pipes[0], pipes[1], read_only})
        close(open_fd);
}

/* A sparse file of any size is accepted; mapping it costs no memory. */
TEST_F(Hostile, AnEnormousFileDoesNoHarm)
{
    Fd fd = make_memfd(0);
    Client c(server.path);
    ASSERT_EQ(ftruncate(fd, INT64_MAX & ~4095ll), 0);
    int rc = c.map(4096, (1ull << 52) - 4096 * 20, fd);
    EXPECT_TRUE(rc == ENOMEM || rc == EINVAL) << rc;
    EXPECT_EQ(c.read32(NVME_REG_VS), 0x20000u);
}

TEST_F(Hostile, MappingsAreLimited)
{
    Fd fd = make_memfd(4096);
    Client c(server.path);
    int rc = 0;
    unsigned n = 0;
    for (uint64_t i = 1; rc == 0 && n < 5000; i++, n += rc == 0)
        rc = c.map(i * 4096, 4096, fd);
    EXPECT_EQ(rc, ENOSPC);
    EXPECT_EQ(n, 4096u) << "as max_dma_maps says";
    EXPECT_EQ(c.unmap(4096, 4096), 0);
    EXPECT_EQ(c.map(4096 * 5000, 4096, fd), 0);
}

/* The memory of the rings is removed while the controller uses it. */
TEST_F(Hostile, AFileThatShrinksDoesNoHarm)
{
    {
        Client c(server.path);
        EnabledDriver d(c);
        ASSERT_EQ(d.identify(), 0);
        ASSERT_EQ(ftruncate(d.fd, 0), 0);
        d.doorbell(0, 5);
        EXPECT_TRUE(c.receive().closed) << "and the client is sent away";
    }
    ASSERT_TRUE(server.alive());
    EXPECT_NE(server.err().find("a file shrank while it was mapped"), std::string::npos);
}

TEST_F(Hostile, RingsFullOfGarbageDoNoHarm)
{
    std::mt19937_64 rng(7);
    Client c(server.path);
    Driver d(c);
    c.bus_master();
    for (int round = 0; round < 20; round++) {
        ASSERT_EQ(d.enable(), NVME_CSTS_READY);
        for (size_t i = 0; i < 0x4000; i += 8) {
            uint64_t v = rng();
            if (i % 64 == 0) /* half of the opcodes exist */
                v = (v & ~0xc0ffull) | (rng() % 16);
            if (i % 64 == 24 && v % 2)
                v = Driver::IOVA + v % Driver::BYTES;
            memcpy(d.memory + i, &v, 8);
        }
        for (unsigned bell = 0; bell < 6; bell++)
            d.doorbell(bell, static_cast<uint32_t>(rng() % 20));
        c.read32(NVME_REG_CSTS);
        d.disable();
    }
}

TEST_F(Hostile, EveryRegisterTakesAnyValue)
{
    std::mt19937_64 rng(11);
    Client c(server.path);
    Driver d(c, false);
    for (int i = 0; i < 3000; i++) {
        uint64_t offset = rng() % 0x4000, v = rng();
        uint32_t n = 1u << rng() % 5;
        Bytes data(n);
        memcpy(data.data(), &v, n < 8 ? n : 8);
        c.write(rng() % 8 ? VFIO_PCI_BAR0_REGION_INDEX : VFIO_PCI_CONFIG_REGION_INDEX, offset,
                data);
        c.read(VFIO_PCI_BAR0_REGION_INDEX, rng() % 64, n);
    }
    for (uint32_t reg = 0; reg < 0x40; reg += 4)
        EXPECT_EQ(c.write32(reg, UINT32_MAX), 0);
}

TEST_F(Hostile, HangingUpAtAnyByteDoesNoHarm)
{
    Fd fd = make_memfd(MIB);
    struct vfio_user_dma_map m = {sizeof(m), 3, 0, 4096, 4096};
    Bytes whole = message(VFIO_USER_DMA_MAP, bytes_of(m));
    for (size_t n = 1; n <= whole.size(); n++) {
        Client c(server.path);
        c.send(Bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(n)), {fd});
    }
}

TEST_F(Hostile, HangingUpAtOnceDoesNoHarm)
{
    for (int i = 0; i < 50; i++)
        Client c(server.path, false);
}

TEST_F(Hostile, ASilentClientIsDisconnected)
{
    Client silent(server.path, false);
    EXPECT_TRUE(silent.receive().closed);
    EXPECT_NE(server.err().find("no whole message"), std::string::npos);
}

TEST_F(Hostile, AnUnfinishedMessageEndsTheConnection)
{
    Client c(server.path);
    c.send(header(VFIO_USER_REGION_WRITE, 4096));
    c.send(Bytes(100));
    EXPECT_TRUE(c.receive().closed);
}

/*
 * Replies fill the socket: the server disconnects the client and continues to
 * serve.
 */
TEST_F(Hostile, UnreadRepliesEndTheConnection)
{
    Client c(server.path);
    int small = 4096;
    setsockopt(c.sock, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
    struct vfio_user_region_access a = {0, VFIO_PCI_CONFIG_REGION_INDEX, 4096};
    Bytes one = message(VFIO_USER_REGION_READ, bytes_of(a));
    int sent = 0;
    auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (std::chrono::steady_clock::now() < end) {
        ssize_t n = ::send(c.sock, one.data(), one.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        sent += n > 0;
        if (n < 0 && errno != EAGAIN)
            break;
        if (n < 0)
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_EQ(errno, EPIPE);
    EXPECT_GT(sent, 10);
}

TEST_F(Hostile, RandomBytesDoNoHarm)
{
    std::mt19937_64 rng(23);
    Fd fd = make_memfd(MIB);
    for (int round = 0; round < 200; round++) {
        Client c(server.path, rng() % 4 != 0);
        Bytes junk(rng() % 200);
        for (unsigned char &b : junk)
            b = static_cast<unsigned char>(rng());
        if (junk.size() >= 16 && rng() % 2) { /* a valid header */
            uint32_t size = static_cast<uint32_t>(junk.size()), flags = 0;
            uint16_t command = static_cast<uint16_t>(rng() % 16);
            memcpy(junk.data() + 2, &command, 2);
            memcpy(junk.data() + 4, &size, 4);
            memcpy(junk.data() + 8, &flags, 4);
        }
        if (!junk.empty())
            c.send(junk, std::vector<int>(rng() % 4, fd));
    }
}

/* The fuzzer's entry with random inputs, so that every build executes it. */
TEST(HostileFuzz, RandomMessagesDoNoHarm)
{
    std::mt19937_64 rng(31);
    for (int round = 0; round < 3000; round++) {
        Bytes input(rng() % 400);
        for (unsigned char &b : input)
            b = static_cast<unsigned char>(rng() % 3 ? rng() % 16 : rng());
        LLVMFuzzerTestOneInput(input.data(), input.size());
    }
}

} // namespace
