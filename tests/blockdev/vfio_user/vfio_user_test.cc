/* SPDX-License-Identifier: BSD-2-Clause */
/* The vfio-user client with a server that behaves. */
#include <gtest/gtest.h>
#include <nvme/types.h>

#include <atomic>

#include <fcntl.h>

#include "tests/blockdev/vfio_user/vfio_user_rig.h"
#include "tests/threads.h"

namespace
{

TEST_F(VfioUser, OpensAndCloses)
{
    open();
    EXPECT_STREQ(t->ops->name, "vfio-user");
    EXPECT_FALSE(t->doorbells_are_mmio);
    EXPECT_EQ(t->doorbells_len, 0x1000u);
}

TEST_F(VfioUser, HasTheIdsOfTheServersFunction)
{
    const uint8_t ids[] = {0xb1, 0x1b, 0x00, 0x01};
    memcpy(server.config, ids, sizeof(ids));
    open();
    EXPECT_EQ(t->pci_vendor, 0x1bb1);
    EXPECT_EQ(t->pci_device, 0x0100);
}

TEST_F(VfioUser, ProposesItsVersionAndCapabilitiesFirst)
{
    open();
    Message m = server.seen().at(0);
    EXPECT_EQ(m.h.command, VFIO_USER_VERSION);
    EXPECT_EQ(m.h.flags, 0u);
    auto v = first<vfio_user_version>(m.payload);
    EXPECT_EQ(v.major, 0);
    EXPECT_EQ(v.minor, 1);
    std::string text(m.payload.begin() + sizeof(v), m.payload.end());
    EXPECT_STREQ(text.c_str(),
                 "{\"capabilities\":{\"max_msg_fds\":8,\"max_data_xfer_size\":1048576}}");
    EXPECT_EQ(text.size(), strlen(text.c_str()) + 1) << "ends with a 0 byte";
}

TEST_F(VfioUser, EnablesBusMasteringBeforeItAccessesARegister)
{
    open();
    t->ops->write(t, NVME_REG_CC, 1, 4);
    auto writes = server.seen(VFIO_USER_REGION_WRITE);
    ASSERT_EQ(writes.size(), 2u);
    auto a = first<vfio_user_region_access>(writes[0].payload);
    EXPECT_EQ(a.region, 7u);
    EXPECT_EQ(a.offset, 4u);
    EXPECT_EQ(a.count, 2u);
    EXPECT_EQ(writes[0].payload.size(), sizeof(a) + 2);
    EXPECT_EQ(server.config[4] | server.config[5] << 8, 0x0406);
    for (auto &m : server.seen(VFIO_USER_REGION_READ))
        EXPECT_EQ(first<vfio_user_region_access>(m.payload).region, 7u);
}

TEST_F(VfioUser, EveryCommandHasADifferentId)
{
    open();
    uint16_t last = 0;
    for (int i = 0; i < 100; i++)
        t->ops->read(t, NVME_REG_CSTS, 4);
    for (auto &m : server.seen()) {
        EXPECT_EQ(m.h.id, static_cast<uint16_t>(last + 1));
        last = m.h.id;
    }
}

TEST_F(VfioUser, RegistersAreReadAndWrittenWhole)
{
    open();
    server.reg<uint64_t>(NVME_REG_CAP) = 0x0123456789abcdef;
    server.reg<uint32_t>(NVME_REG_VS) = 0x00010400;
    EXPECT_EQ(t->ops->read(t, NVME_REG_CAP, 8), 0x0123456789abcdefu);
    EXPECT_EQ(t->ops->read(t, NVME_REG_VS, 4), 0x00010400u);
    t->ops->write(t, NVME_REG_ASQ, 0xfedcba9876543000, 8);
    t->ops->write(t, NVME_REG_CC, 0x00460001, 4);
    EXPECT_EQ(server.reg<uint64_t>(NVME_REG_ASQ), 0xfedcba9876543000u);
    EXPECT_EQ(server.reg<uint32_t>(NVME_REG_CC), 0x00460001u);
    EXPECT_EQ(server.seen(VFIO_USER_REGION_WRITE).size(), 3u) << "one message a register";
}

TEST_F(VfioUser, ARegisterThatIsRefusedReadsAllOnes)
{
    open_with([](Server &s, const Message &m) {
        bool cap = m.h.command == VFIO_USER_REGION_READ &&
                   first<vfio_user_region_access>(m.payload).region == 0 &&
                   first<vfio_user_region_access>(m.payload).offset == NVME_REG_CAP;
        if (cap)
            s.refuse(m, EINVAL);
        return cap;
    });
    server.reg<uint32_t>(NVME_REG_CSTS) = 1;
    EXPECT_EQ(t->ops->read(t, NVME_REG_CAP, 8), UINT64_MAX);
    EXPECT_EQ(t->ops->read(t, NVME_REG_CSTS, 4), 1u) << "the connection is as good as before";
}

TEST_F(VfioUser, DoorbellsAreTheServersPage)
{
    open();
    t->doorbells[0] = 7;
    t->doorbells[0x3ff] = 9;
    uint32_t at_start = 0, at_end = 0;
    ASSERT_EQ(pread(server.doorbells, &at_start, 4, 0x1000), 4);
    ASSERT_EQ(pread(server.doorbells, &at_end, 4, 0x1ffc), 4);
    EXPECT_EQ(at_start, 7u);
    EXPECT_EQ(at_end, 9u);
}

/* Positions of the doorbells, and the part of them that is mapped. */
struct Layout {
    const char *name;
    std::vector<vfio_region_sparse_mmap_area> areas;
    size_t len;
};

class DoorbellLayout : public VfioUser, public ::testing::WithParamInterface<Layout>
{
};

TEST_P(DoorbellLayout, IsMapped)
{
    server.areas = GetParam().areas;
    open();
    EXPECT_EQ(t->doorbells_len, GetParam().len);
    t->doorbells[1] = 5;
    uint32_t value = 0;
    ASSERT_EQ(pread(server.doorbells, &value, 4, 0x1004), 4);
    EXPECT_EQ(value, 5u);
}

INSTANTIATE_TEST_SUITE_P(
    All, DoorbellLayout,
    ::testing::Values(Layout{"AllOfBar0", {{0, 0x4000}}, 0x3000},
                      Layout{"FromTheirStart", {{0x1000, 0x2000}}, 0x2000},
                      Layout{"OnePage", {{0x1000, 0x1000}}, 0x1000},
                      Layout{"AnUnevenEnd", {{0x1000, 0x1f00}}, 0x1000},
                      Layout{"AnUnevenStart", {{0x800, 0x1800}}, 0x1000},
                      Layout{"TheSecondArea", {{0x3000, 0x1000}, {0x1000, 0x1000}}, 0x1000}),
    [](const auto &info) { return std::string(info.param.name); });

TEST_F(VfioUser, EachAreaMayHaveASeparateDescriptor)
{
    server.areas = {{0x3000, 0x1000}, {0x1000, 0x1000}};
    int other = memfd_create("other", MFD_CLOEXEC);
    ASSERT_EQ(ftruncate(other, Server::BAR0), 0);
    open_with([other](Server &s, const Message &m) {
        bool bar0 = !s.answer_fds(m).empty();
        if (bar0)
            s.reply(m, s.answer(m), {other, s.doorbells});
        return bar0;
    });
    t->doorbells[0] = 3;
    uint32_t value = 0;
    ASSERT_EQ(pread(server.doorbells, &value, 4, 0x1000), 4);
    EXPECT_EQ(value, 3u);
    close(other);
}

// If the server truncated the file, accesses of another process would fault.
TEST_F(VfioUser, OnlyDoorbellsThatCannotShrinkAreForOthers)
{
    open();
    EXPECT_EQ(t->doorbells_fd, -1) << "the server's memfd has no seals";
    for (int seal : {F_SEAL_GROW, F_SEAL_SHRINK}) {
        close_transport();
        server.stop();
        int fd = memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        ASSERT_EQ(ftruncate(fd, Server::BAR0), 0);
        ASSERT_EQ(fcntl(fd, F_ADD_SEALS, seal), 0);
        open_with([fd](Server &s, const Message &m) {
            bool bar0 = !s.answer_fds(m).empty();
            if (bar0)
                s.reply(m, s.answer(m), {fd});
            return bar0;
        });
        EXPECT_EQ(t->doorbells_fd >= 0, seal == F_SEAL_SHRINK);
        close(fd);
    }
}

TEST_F(VfioUser, ARegionThatIsMappableWholeNeedsNoList)
{
    server.bar0.flags &= ~VFIO_REGION_INFO_FLAG_CAPS;
    open();
    EXPECT_EQ(t->doorbells_len, 0x3000u);
}

TEST_F(VfioUser, DoorbellsOfAHugeRegionAreCut)
{
    uint64_t size = 1ull << 40;
    ASSERT_EQ(ftruncate(server.doorbells, static_cast<off_t>(size)), 0);
    server.bar0.size = size;
    server.areas = {{0, size}};
    open();
    EXPECT_EQ(t->doorbells_len, 1u << 20);
}

TEST_F(VfioUser, MemoryIsSharedByItsDescriptor)
{
    std::vector<uint8_t> by_server(0x2000);
    open_with([&](Server &, const Message &m) {
        if (m.h.command == VFIO_USER_DMA_MAP && m.fds.size() == 1) {
            auto map = first<vfio_user_dma_map>(m.payload);
            EXPECT_EQ(pread(m.fds[0], by_server.data(), 0x2000, static_cast<off_t>(map.offset)),
                      0x2000);
        }
        return false;
    });
    memset(mem.at(0x1000), 0x5a, 0x2000);
    uint64_t iova = 0;
    nvme_mem piece = mem.piece(0x1000, 0x2000);
    ASSERT_EQ(t->ops->map(t, &piece, &iova), 0);
    auto maps = server.seen(VFIO_USER_DMA_MAP);
    ASSERT_EQ(maps.size(), 1u);
    auto map = first<vfio_user_dma_map>(maps[0].payload);
    EXPECT_EQ(maps[0].payload.size(), 32u);
    EXPECT_EQ(map.argsz, 32u);
    EXPECT_EQ(map.flags, 3u);
    EXPECT_EQ(map.offset, 0x1000u);
    EXPECT_EQ(map.addr, iova);
    EXPECT_EQ(map.size, 0x2000u);
    EXPECT_EQ(maps[0].fds.size(), 1u);
    EXPECT_EQ(by_server, std::vector<uint8_t>(0x2000, 0x5a));
    EXPECT_NE(iova, 0u);
    EXPECT_EQ(iova % 4096, 0u);
}

TEST_F(VfioUser, UnmapNamesTheMapExactly)
{
    open();
    uint64_t a = 0, b = 0;
    nvme_mem first_half = mem.piece(0, 0x2000), second_half = mem.piece(0x2000, 0x2000);
    ASSERT_EQ(t->ops->map(t, &first_half, &a), 0);
    ASSERT_EQ(t->ops->map(t, &second_half, &b), 0);
    EXPECT_EQ(t->ops->unmap(t, a + 0x1000), -ENOENT);
    EXPECT_EQ(t->ops->unmap(t, a), 0);
    EXPECT_EQ(t->ops->unmap(t, a), -ENOENT);
    auto unmaps = server.seen(VFIO_USER_DMA_UNMAP);
    ASSERT_EQ(unmaps.size(), 1u);
    auto unmap = first<vfio_user_dma_unmap>(unmaps[0].payload);
    EXPECT_EQ(unmap.argsz, 24u);
    EXPECT_EQ(unmap.flags, 0u);
    EXPECT_EQ(unmap.addr, a);
    EXPECT_EQ(unmap.size, 0x2000u);
    EXPECT_EQ(t->ops->unmap(t, b), 0);
}

TEST_F(VfioUser, MemoryThatCannotBeSharedIsRefusedWithoutAMessage)
{
    open();
    uint64_t iova;
    nvme_mem no_fd = mem.piece(0, 0x1000), device = no_fd, uneven = no_fd, empty = no_fd;
    nvme_mem uneven_fd = no_fd;
    no_fd.fd = -1;
    device.addr = nullptr;
    device.device = 0x10000;
    uneven.addr = mem.at(16);
    empty.len = 0;
    uneven_fd.fd_offset = 512;
    EXPECT_EQ(t->ops->map(t, &no_fd, &iova), -EFAULT);
    EXPECT_EQ(t->ops->map(t, &device, &iova), -EFAULT);
    EXPECT_EQ(t->ops->map(t, &uneven, &iova), -EINVAL);
    EXPECT_EQ(t->ops->map(t, &empty, &iova), -EINVAL);
    EXPECT_EQ(t->ops->map(t, &uneven_fd, &iova), -EINVAL);
    EXPECT_TRUE(server.seen(VFIO_USER_DMA_MAP).empty());
}

TEST_F(VfioUser, MapsAreLimitedToTheServersMaximum)
{
    server.version_data = std::string("{\"capabilities\":{\"max_dma_maps\":2}}\0", 36);
    open();
    nvme_mem page = mem.piece(0, 0x1000);
    uint64_t a, b, c;
    ASSERT_EQ(t->ops->map(t, &page, &a), 0);
    ASSERT_EQ(t->ops->map(t, &page, &b), 0);
    EXPECT_EQ(t->ops->map(t, &page, &c), -ENOSPC);
    EXPECT_EQ(t->ops->unmap(t, a), 0);
    EXPECT_EQ(t->ops->map(t, &page, &c), 0);
}

TEST_F(VfioUser, ARefusedMapIsAnErrorAndNothingElse)
{
    std::atomic<uint32_t> error{ENOSPC};
    open_with([&error](Server &s, const Message &m) {
        bool refused = m.h.command == VFIO_USER_DMA_MAP && error;
        if (refused)
            s.refuse(m, error);
        return refused;
    });
    nvme_mem page = mem.piece(0, 0x1000);
    uint64_t iova;
    EXPECT_EQ(t->ops->map(t, &page, &iova), -ENOSPC);
    error = ENOMEM;
    EXPECT_EQ(t->ops->map(t, &page, &iova), -ENOMEM);
    error = EINVAL;
    EXPECT_EQ(t->ops->map(t, &page, &iova), -EFAULT);
    error = 0;
    EXPECT_EQ(t->ops->map(t, &page, &iova), 0);
}

TEST_F(VfioUser, ResetEnablesBusMasteringAgain)
{
    open_with([](Server &s, const Message &m) {
        if (m.h.command == VFIO_USER_DEVICE_RESET) {
            s.config[4] = s.config[5] = 0;
            s.reg<uint32_t>(NVME_REG_CC) = 0;
        }
        return false;
    });
    t->ops->write(t, NVME_REG_CC, 1, 4);
    EXPECT_EQ(t->ops->reset(t), 0);
    EXPECT_EQ(server.seen(VFIO_USER_DEVICE_RESET).size(), 1u);
    EXPECT_EQ(server.config[4] | server.config[5] << 8, 0x0406);
}

TEST_F(VfioUser, AResetThatResetsNothingIsAnError)
{
    open();
    t->ops->write(t, NVME_REG_CC, 1, 4);
    EXPECT_EQ(t->ops->reset(t), -EIO);
}

TEST_F(VfioUser, AServerMayHaveNoReset)
{
    server.device.flags = VFIO_DEVICE_FLAGS_PCI;
    open();
    EXPECT_EQ(t->ops->reset(t), -ENOTSUP);
    EXPECT_TRUE(server.seen(VFIO_USER_DEVICE_RESET).empty());
}

/* Servers of before the command became part of a reply. */
TEST_F(VfioUser, RepliesMayOmitTheCommand)
{
    open_with([](Server &s, const Message &m) {
        Message unnamed = m;
        unnamed.h.command = 0;
        s.reply(unnamed, s.answer(m), s.answer_fds(m));
        return true;
    });
}

TEST_F(VfioUser, UnexpectedDescriptorsAreClosed)
{
    open_with([](Server &s, const Message &m) {
        s.reply(m, s.answer(m), {s.doorbells, s.doorbells, s.doorbells});
        return true;
    });
    const auto before = open_fds();
    for (int i = 0; i < 100; i++)
        t->ops->read(t, NVME_REG_CSTS, 4);
    EXPECT_EQ(open_fds(), before);
}

TEST_F(VfioUser, RepliesMayComeByteByByte)
{
    open_with([](Server &s, const Message &m) {
        vfio_user_header h = m.h;
        Bytes payload = s.answer(m);
        h.flags = VFIO_USER_TYPE_REPLY;
        h.size = static_cast<uint32_t>(sizeof(h) + payload.size());
        std::vector<int> fds = s.answer_fds(m);
        for (uint8_t b : bytes_of(h) + payload) {
            send_raw(s.fd, Bytes{b}, fds);
            fds.clear();
        }
        return true;
    });
    server.reg<uint32_t>(NVME_REG_VS) = 0x00020000;
    EXPECT_EQ(t->ops->read(t, NVME_REG_VS, 4), 0x00020000u);
}

/* A server may ask for memory in between; nothing of that is taken for an answer. */
TEST_F(VfioUser, CommandsOfTheServerAreRefused)
{
    std::atomic<int> asked{0};
    open_with([&asked](Server &s, const Message &m) {
        if (m.h.command != VFIO_USER_REGION_READ || asked++)
            return false;
        Bytes body(16 + (1 << 20));
        vfio_user_header read{m.h.id, VFIO_USER_DMA_READ, 32, 0, 0};
        vfio_user_header write{77, VFIO_USER_DMA_WRITE, static_cast<uint32_t>(16 + body.size()), 0,
                               0};
        vfio_user_header quiet{78, 99, 16, VFIO_USER_NO_REPLY, 0};
        send_raw(s.fd, bytes_of(read) + Bytes(16), {s.doorbells});
        send_raw(s.fd, bytes_of(write) + body);
        send_raw(s.fd, bytes_of(quiet));
        return false;
    });
    EXPECT_EQ(t->ops->read(t, NVME_REG_VS, 4), 0u);
    std::vector<Message> refusals;
    for (auto &m : server.seen())
        if (m.h.flags & VFIO_USER_TYPE_REPLY)
            refusals.push_back(m);
    ASSERT_EQ(refusals.size(), 2u);
    EXPECT_EQ(refusals[0].h.command, VFIO_USER_DMA_READ);
    EXPECT_EQ(refusals[1].h.command, VFIO_USER_DMA_WRITE);
    EXPECT_EQ(refusals[1].h.id, 77);
    for (auto &m : refusals) {
        EXPECT_EQ(m.h.flags, VFIO_USER_TYPE_REPLY | VFIO_USER_ERROR);
        EXPECT_EQ(m.h.error, static_cast<uint32_t>(EOPNOTSUPP));
        EXPECT_EQ(m.h.size, 16u);
    }
}

TEST_F(VfioUser, ManyThreadsShareTheConnection)
{
    open();
    for (uint32_t i = 0; i < 8; i++)
        server.reg<uint32_t>(0x100 + 4 * i) = 1000 + i;
    std::atomic<int> wrong{0};
    in_threads(8, [&](uint32_t i) {
        nvme_mem page = mem.piece(0, 0x1000);
        for (int n = 0; n < 50; n++) {
            uint64_t iova;
            wrong += t->ops->read(t, 0x100 + 4 * i, 4) != 1000 + i;
            wrong += t->ops->map(t, &page, &iova) != 0;
            wrong += t->ops->unmap(t, iova) != 0;
        }
    });
    EXPECT_EQ(wrong, 0);
}

} // namespace
