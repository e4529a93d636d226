/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * gpunvme-sim with the messages and commands of other clients: QEMU's
 * vfio-user-pci with Linux's driver behind it, and SPDK's initiator.
 */
#include <gtest/gtest.h>
#include <nvme/types.h>

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
    Driver d(c);
    int fd = make_memfd(1 << 20);
    ASSERT_EQ(c.map(0, 1 << 20, fd), 0);
    c.bus_master();
    ASSERT_EQ(d.enable(), NVME_CSTS_READY);
    struct nvme_sqe s = {};
    s.opcode = NVME_ADMIN_IDENTIFY;
    s.cdw10 = NVME_CNS_CTRL; /* PRP1 is 0 */
    EXPECT_EQ(d.run(0, s), 0);
    char serial[7] = {};
    EXPECT_EQ(pread(fd, serial, sizeof(serial), 4), 7);
    EXPECT_EQ(memcmp(serial, "SIM0001", 7), 0);
    d.disable();
    EXPECT_EQ(c.unmap(0, 1 << 20), 0);
    close(fd);
}

/* SPDK sends the descriptor of the memory with DMA_UNMAP, too. */
TEST_F(Strangers, UnmapWithADescriptorIsAccepted)
{
    int fd = make_memfd(1 << 20);
    Holdings before = server.holdings();
    ASSERT_EQ(c.map(0x100000, 1 << 20, fd), 0);
    struct vfio_user_dma_unmap u = {sizeof(u), 0, 0x100000, 1 << 20};
    EXPECT_EQ(c.call(VFIO_USER_DMA_UNMAP, bytes_of(u), {fd}).error(), 0);
    EXPECT_EQ(server.holdings().fds, before.fds);
    EXPECT_EQ(server.holdings().maps, before.maps);
    close(fd);
}

TEST_F(Strangers, OneUnmapRemovesAllMappings)
{
    int fd = make_memfd(1 << 20);
    size_t before = server.holdings().maps;
    for (uint64_t at : {0, 0x100000, 0x300000})
        ASSERT_EQ(c.map(at, 1 << 20, fd), 0);
    struct vfio_user_dma_unmap u = {sizeof(u), VFIO_DMA_UNMAP_FLAG_ALL, 0, 0};
    EXPECT_EQ(c.call(VFIO_USER_DMA_UNMAP, bytes_of(u)).error(), 0);
    EXPECT_EQ(server.holdings().maps, before);
    EXPECT_EQ(c.map(0, 1 << 20, fd), 0);
    EXPECT_EQ(c.unmap(0, 1 << 20), 0);
    close(fd);
}

} // namespace
