/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * gpunvme-sim with the messages and commands of other clients: QEMU's
 * vfio-user-pci with Linux's driver behind it, and SPDK's initiator.
 */
#include <gtest/gtest.h>
#include <linux/pci_regs.h>
#include <nvme/types.h>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve_rig.h"

namespace
{

struct Strangers : ::testing::Test {
    Server server = Server({"--strict"});
    Client c = Client(server.path);
};

/* QEMU maps the guest's memory, which begins at address 0. */
TEST_F(Strangers, MemoryAtAddressZeroIsReached)
{
    EnabledDriver d(c);
    Fd fd = make_memfd(1 << 20);
    ASSERT_EQ(c.map(0, 1 << 20, fd), 0);
    EXPECT_EQ(d.identify(10000, 0), 0);
    char serial[7] = {};
    EXPECT_EQ(pread(fd, serial, sizeof(serial), 4), 7);
    EXPECT_EQ(memcmp(serial, "SIM0001", 7), 0);
    d.disable();
    EXPECT_EQ(c.unmap(0, 1 << 20), 0);
}

/* SPDK sends the descriptor of the memory with DMA_UNMAP, too. */
TEST_F(Strangers, UnmapWithADescriptorIsAccepted)
{
    Fd fd = make_memfd(1 << 20);
    Holdings before = server.holdings();
    ASSERT_EQ(c.map(0x100000, 1 << 20, fd), 0);
    struct vfio_user_dma_unmap u = {sizeof(u), 0, 0x100000, 1 << 20};
    EXPECT_EQ(c.call(VFIO_USER_DMA_UNMAP, bytes_of(u), {fd}).error(), 0);
    EXPECT_EQ(server.holdings().fds, before.fds);
    EXPECT_EQ(server.holdings().maps, before.maps);
}

TEST_F(Strangers, OneUnmapRemovesAllMappings)
{
    Fd fd = make_memfd(1 << 20);
    size_t before = server.holdings().maps;
    for (uint64_t at : {0, 0x100000, 0x300000})
        ASSERT_EQ(c.map(at, 1 << 20, fd), 0);
    struct vfio_user_dma_unmap u = {sizeof(u), VFIO_DMA_UNMAP_FLAG_ALL, 0, 0};
    EXPECT_EQ(c.call(VFIO_USER_DMA_UNMAP, bytes_of(u)).error(), 0);
    EXPECT_EQ(server.holdings().maps, before);
    EXPECT_EQ(c.map(0, 1 << 20, fd), 0);
    EXPECT_EQ(c.unmap(0, 1 << 20), 0);
}

/* QEMU maps ROMs, which have no descriptor and are read-only. */
TEST_F(Strangers, MemoryThatCannotBeReachedIsRecorded)
{
    Fd fd = make_memfd(1 << 20);
    size_t before = server.holdings().maps;
    EXPECT_EQ(c.map(0xfffc0000, 0x40000, -1, 0, 1), 0);
    EXPECT_EQ(c.map(0xc0000, 0x20000, fd, 0, 1), 0);
    EXPECT_EQ(server.holdings().maps, before);
    EXPECT_EQ(c.unmap(0xfffc0000, 0x40000), 0);
    EXPECT_EQ(c.unmap(0xc0000, 0x20000), 0);
    EXPECT_EQ(c.map(0xc0000, 0x20000, fd), 0);
    EXPECT_EQ(server.holdings().maps, before + 1);
}

/* Linux and SPDK leave CC.EN set after a shutdown, and take the memory away. */
TEST_F(Strangers, AfterAShutdownTheDriverMayLeave)
{
    EnabledDriver d(c);
    struct nvme_sqe event = {};
    event.opcode = NVME_ADMIN_ASYNC_EVENT;
    EXPECT_EQ(d.run(0, event, 20), 0xffff) << "outstanding";
    c.write32(NVME_REG_CC, c.read32(NVME_REG_CC) | NVME_CC_SHN_ORDERLY);
    ASSERT_EQ(c.read32(NVME_REG_CSTS) & NVME_CSTS_SHST_BITS, NVME_CSTS_SHST_COMPLETE);
    EXPECT_EQ(c.bus_master(false), 0);
    EXPECT_EQ(c.unmap(Driver::IOVA, Driver::BYTES), 0);
}

/* A virtual machine resets a function by its configuration space. */
TEST_F(Strangers, AFunctionLevelResetDisablesTheController)
{
    const uint64_t express = 0x50;
    const uint32_t config = VFIO_PCI_CONFIG_REGION_INDEX;
    EnabledDriver d(c);
    auto offered = c.read(config, express + PCI_EXP_DEVCAP, 4)
                       .as<uint32_t>(sizeof(struct vfio_user_region_access));
    EXPECT_TRUE(offered & PCI_EXP_DEVCAP_FLR);
    uint16_t control = PCI_EXP_DEVCTL_BCR_FLR;
    ASSERT_EQ(c.write(config, express + PCI_EXP_DEVCTL, bytes_of(control)), 0);
    EXPECT_EQ(c.read32(NVME_REG_CC), 0u);
    EXPECT_EQ(c.read32(NVME_REG_CSTS), 0u);
    EXPECT_EQ(c.read(config, express + PCI_EXP_DEVCTL, 2)
                  .as<uint16_t>(sizeof(struct vfio_user_region_access)),
              0);
    ASSERT_EQ(d.enable(), NVME_CSTS_READY);
    EXPECT_EQ(d.identify(), 0);
    d.disable();
}

/* A CQ with interrupts, which is number 1, and its eventfds. */
struct Interrupts : Strangers {
    static constexpr uint32_t VECTORS = VFIO_PCI_MSIX_IRQ_INDEX;

    Interrupts()
    {
        for (int &e : events)
            e = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        c.bus_master();
        EXPECT_EQ(d.enable(), NVME_CSTS_READY);
    }
    ~Interrupts() override
    {
        d.disable();
        for (int e : events)
            close(e);
    }
    int set(uint32_t start, const std::vector<int> &fds, uint32_t count,
            uint32_t flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER)
    {
        struct vfio_irq_set s = {sizeof(s), flags, VECTORS, start, count};
        return c.call(VFIO_USER_DEVICE_SET_IRQS, bytes_of(s), fds).error();
    }
    uint16_t create_cq(uint32_t vector)
    {
        struct nvme_sqe s = {};
        s.opcode = NVME_ADMIN_CREATE_CQ;
        s.prp1 = Driver::IOVA + 0x18000;
        s.cdw10 = 1 | (Driver::DEPTH - 1) << 16;
        s.cdw11 = 1 | 2 | vector << 16;
        return d.run(0, s);
    }
    uint16_t create_sq()
    {
        struct nvme_sqe s = {};
        s.opcode = NVME_ADMIN_CREATE_SQ;
        s.prp1 = Driver::IOVA + 0x10000;
        s.cdw10 = 1 | (Driver::DEPTH - 1) << 16;
        s.cdw11 = 1 | 1 << 16;
        return d.run(0, s);
    }
    /* Returns true if the eventfd is signalled within the time; its count is cleared. */
    static bool signalled(int event, int wait_ms = 10000)
    {
        struct pollfd p = {event, POLLIN, 0};
        eventfd_t n;
        return poll(&p, 1, wait_ms) == 1 && eventfd_read(event, &n) == 0;
    }

    Driver d{c};
    int events[3];
};

TEST_F(Interrupts, CapabilityAndTableDescribeTheVectors)
{
    const size_t head = sizeof(struct vfio_user_region_access);
    Reply space = c.read(VFIO_PCI_CONFIG_REGION_INDEX, 0, 256);
    unsigned at = space.data[head + 0x34];
    while (at && space.data[head + at] != PCI_CAP_ID_MSIX)
        at = space.data[head + at + 1];
    ASSERT_NE(at, 0u) << "no capability for MSI-X";
    EXPECT_EQ(space.as<uint16_t>(head + at + PCI_MSIX_FLAGS), 112) << "112 queues and the admin's";
    uint32_t table = space.as<uint32_t>(head + at + PCI_MSIX_TABLE);
    uint32_t bits = space.as<uint32_t>(head + at + PCI_MSIX_PBA);
    EXPECT_EQ(table & PCI_MSIX_TABLE_BIR, bits & PCI_MSIX_PBA_BIR);
    uint32_t bar = table & PCI_MSIX_TABLE_BIR;
    uint64_t bytes = c.region_info(bar).as<struct vfio_region_info>().size;
    EXPECT_EQ(table & PCI_MSIX_TABLE_OFFSET, 0u);
    EXPECT_GE(bits & PCI_MSIX_PBA_OFFSET, 113u * PCI_MSIX_ENTRY_SIZE);
    EXPECT_GE(bytes, (bits & PCI_MSIX_PBA_OFFSET) + 16u);
    EXPECT_EQ(c.read(bar, 12, 4).as<uint32_t>(head), 1u) << "masked at first";
    ASSERT_EQ(c.write(bar, 112 * 16, Bytes(16, 0x5a)), 0);
    EXPECT_EQ(c.read(bar, 112 * 16 + 8, 4).as<uint32_t>(head), 0x5a5a5a5au);
    ASSERT_EQ(c.write(bar, bits & PCI_MSIX_PBA_OFFSET, Bytes(8, 0xff)), 0);
    EXPECT_EQ(c.read(bar, bits & PCI_MSIX_PBA_OFFSET, 4).as<uint32_t>(head), 0u) << "read-only";
}

TEST_F(Interrupts, CompletionsSignalTheVectorOfTheirQueue)
{
    ASSERT_EQ(set(0, {events[0], events[1], events[2]}, 3), 0);
    EXPECT_EQ(d.identify(), 0);
    EXPECT_TRUE(signalled(events[0])) << "the admin queue has vector 0";
    ASSERT_EQ(create_cq(2), 0);
    ASSERT_EQ(create_sq(), 0);
    while (signalled(events[0], 50))
        ;
    for (int i = 0; i < 20; i++) {
        ASSERT_EQ(d.rw(NVME_IO_READ, 0), 0);
        ASSERT_TRUE(signalled(events[2])) << i;
    }
    EXPECT_FALSE(signalled(events[0], 0));
    EXPECT_FALSE(signalled(events[1], 0));
}

TEST_F(Interrupts, VectorsCanBeReplacedAndRemoved)
{
    size_t before = server.holdings().fds;
    ASSERT_EQ(set(0, {events[0]}, 1), 0);
    ASSERT_EQ(set(0, {events[1]}, 1), 0);
    EXPECT_EQ(server.holdings().fds, before + 1);
    EXPECT_EQ(d.identify(), 0);
    EXPECT_TRUE(signalled(events[1]));
    EXPECT_FALSE(signalled(events[0], 0));
    ASSERT_EQ(set(0, {}, 1), 0) << "no descriptor: removed";
    EXPECT_EQ(server.holdings().fds, before);
    EXPECT_EQ(d.identify(), 0);
    EXPECT_FALSE(signalled(events[1], 50));
    ASSERT_EQ(set(110, {events[0], events[1], events[2]}, 3), 0);
    ASSERT_EQ(set(0, {}, 0, VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER), 0);
    EXPECT_EQ(server.holdings().fds, before) << "no vectors: all are removed";
}

TEST_F(Interrupts, AClientCanTriggerThem)
{
    ASSERT_EQ(set(5, {events[0], events[1]}, 2), 0);
    ASSERT_EQ(set(6, {}, 1, VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER), 0);
    EXPECT_TRUE(signalled(events[1]));
    struct vfio_irq_set s = {sizeof(s) + 2, VFIO_IRQ_SET_DATA_BOOL | VFIO_IRQ_SET_ACTION_TRIGGER,
                             VECTORS, 5, 2};
    Bytes m = bytes_of(s);
    m.insert(m.end(), {1, 0});
    ASSERT_EQ(c.call(VFIO_USER_DEVICE_SET_IRQS, m).error(), 0);
    EXPECT_TRUE(signalled(events[0]));
    EXPECT_FALSE(signalled(events[1], 0));
}

TEST_F(Interrupts, AClientThatLeavesTakesItsVectorsAlong)
{
    size_t before = server.holdings().fds;
    ASSERT_EQ(set(0, {events[0]}, 1), 0);
    d.disable();
    shutdown(c.sock, SHUT_RDWR);
    Client next(server.path);
    EXPECT_EQ(server.holdings().fds, before);
}

TEST(InterruptMistakes, AreRefused)
{
    Server server;
    Client c(server.path);
    EnabledDriver d(c);
    Fd event = eventfd(0, EFD_CLOEXEC);
    struct vfio_irq_set s = {sizeof(s), VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER,
                             VFIO_PCI_MSIX_IRQ_INDEX, 0, 2};
    EXPECT_EQ(c.call(VFIO_USER_DEVICE_SET_IRQS, bytes_of(s), {event}).error(), EINVAL);
    int file = make_memfd(4096);
    EXPECT_EQ(c.call(VFIO_USER_DEVICE_SET_IRQS, bytes_of(s), {event, file}).error(), EINVAL)
        << "a descriptor that is no eventfd";
    close(file);
    s.start = 112;
    EXPECT_EQ(c.call(VFIO_USER_DEVICE_SET_IRQS, bytes_of(s), {event, event}).error(), EINVAL);
    s = {sizeof(s), VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_MASK, VFIO_PCI_MSIX_IRQ_INDEX, 0,
         1};
    EXPECT_EQ(c.call(VFIO_USER_DEVICE_SET_IRQS, bytes_of(s)).error(), EINVAL);
    struct nvme_sqe cq = {};
    cq.opcode = NVME_ADMIN_CREATE_CQ;
    cq.prp1 = Driver::IOVA + 0x18000;
    cq.cdw10 = 1 | (Driver::DEPTH - 1) << 16;
    cq.cdw11 = 1 | 2 | 113 << 16;
    EXPECT_EQ(d.run(0, cq), 0x108) << "no such vector";
    cq.cdw11 = 1 | 1 << 16;
    EXPECT_EQ(d.run(0, cq), 0x108) << "a vector without interrupts";
    cq.cdw11 = 1 | 4;
    EXPECT_EQ(d.run(0, cq), NVME_ERR_INVALID_FIELD) << "a reserved bit";
    d.disable();
}

/* An eventfd that a client has filled delays nobody but its interrupts. */
TEST_F(Interrupts, AFullEventDelaysNoCommand)
{
    Fd full = eventfd(0, EFD_CLOEXEC);
    ASSERT_EQ(eventfd_write(full, UINT64_MAX - 1), 0);
    ASSERT_EQ(set(0, {full}, 1), 0);
    for (int i = 0; i < 20; i++)
        ASSERT_EQ(d.identify(), 0);
    ASSERT_EQ(set(0, {events[0]}, 1), 0) << "the waiting write ends";
    EXPECT_EQ(d.identify(), 0);
    EXPECT_TRUE(signalled(events[0]));
    ASSERT_EQ(set(0, {full}, 1), 0);
    EXPECT_EQ(d.identify(), 0);
}

} // namespace
