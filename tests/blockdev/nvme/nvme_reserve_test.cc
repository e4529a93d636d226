/* SPDX-License-Identifier: BSD-2-Clause */
/* Tests reservations with two hosts, each with a controller of one namespace. */
#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "blockdev/bd_reserve.h"
#include "blockdev/nvme/nvme_queue.h"
#include "tests/blockdev/nvme/nvme_sim_rig.h"

namespace
{

constexpr uint32_t WE = 1, WERO = 3, WEAR = 5;

// A host: its controller, and perhaps a block device.
class Host
{
  public:
    Host(const std::string &dir, uint8_t id, bool offered = true)
        : image_(dir + "/image"), file_(dir + "/reservations")
    {
        rig.cfg.ns[0].path = image_.c_str();
        rig.cfg.ns[0].bytes = 0;
        rig.cfg.ns[0].shared = true;
        rig.cfg.reservations = offered ? file_.c_str() : nullptr;
        EXPECT_EQ(sim_create(&rig.cfg, &rig.sim, &rig.t), 0);
        connect(id);
    }
    void connect(uint8_t id)
    {
        rig.t->host_id[0] = id;
        EXPECT_EQ(nvme_ctrlr_open(rig.t, &rig.opts, &rig.c), 0);
    }
    // As after a crash of the program.
    void restart(uint8_t id)
    {
        close_device();
        nvme_ctrlr_close(rig.c);
        rig.c = nullptr;
        ASSERT_EQ(sim_attach(rig.sim, &rig.t), 0);
        connect(id);
    }
    void open_device() { ASSERT_EQ(bd_nvme_open(rig.c, 1, 1, 16, &rig.dev), 0); }
    void close_device()
    {
        if (rig.dev)
            bd_close(rig.dev);
        rig.dev = nullptr;
    }
    int reserve(bool preempt = false) { return nvme_reserve(rig.c, 1, preempt, &other); }
    int policy(enum bd_reserve how) { return bd_reserve(rig.c, 1, how, &why); }
    int write(uint8_t byte)
    {
        Bytes data(4096, byte);
        return bd_write(rig.dev, 0, data.data(), data.size(), 0);
    }
    uint8_t first() { return rig.peek(0, 1)[0]; }
    // A reservation command of another program.
    void command(uint8_t opcode, uint32_t cdw10, uint64_t key, uint64_t second)
    {
        nvme_qpair qp;
        nvme_dma page;
        nvme_ring ring;
        nvme_cqe cqe;
        ASSERT_EQ(nvme_dma_alloc(rig.c, 4096, &page), 0);
        ASSERT_EQ(nvme_qpair_create(rig.c, 2, &qp), 0);
        nvme_ring_init(&ring, &qp);
        nvme_sqe sqe{};
        sqe.opcode = opcode;
        sqe.nsid = 1;
        sqe.cdw10 = cdw10;
        sqe.prp1 = page.iova;
        memcpy(page.addr, &key, 8);
        memcpy((char *)page.addr + 8, &second, 8);
        nvme_ring_post(&ring, &sqe);
        nvme_ring_doorbell(&ring);
        nvme_kick(rig.t, qp.qid);
        while (!nvme_ring_poll(&ring, &cqe))
            std::this_thread::yield();
        nvme_ring_release(&ring);
        EXPECT_EQ(NVME_STATUS(cqe.status), NVME_OK);
        EXPECT_EQ(nvme_qpair_delete(rig.c, &qp), 0);
        nvme_dma_free(rig.c, &page);
    }
    // Returns the host identifier that the controller knows, after setting `id` unless it is 0.
    uint8_t identifier(uint8_t id = 0)
    {
        uint8_t data[16] = {id};
        nvme_sqe sqe{};
        sqe.opcode = id ? NVME_ADMIN_SET_FEATURES : NVME_ADMIN_GET_FEATURES;
        sqe.cdw10 = NVME_FEAT_HOST_ID;
        sqe.cdw11 = NVME_HOST_ID_LONG;
        EXPECT_EQ(nvme_admin(rig.c, &sqe, data, sizeof(data), id != 0, nullptr), 0);
        return data[0];
    }
    void hold(uint64_t key, uint32_t type)
    {
        identifier(1);
        command(NVME_IO_RESV_REGISTER, NVME_RESV_REGISTER_KEY, 0, key);
        command(NVME_IO_RESV_ACQUIRE, NVME_RESV_ACQUIRE | NVME_RESV_TYPE(type), key, 0);
    }

    nvme_holder other{};
    struct reason why = {};

  private:
    std::string image_, file_;

  public:
    Rig rig;
};

class Reserve : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        char name[] = "/tmp/gpunvme-reserve-XXXXXX";
        ASSERT_NE(mkdtemp(name), nullptr);
        dir = name;
        int fd = open((dir + "/image").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        ASSERT_EQ(ftruncate(fd, 16 * MIB), 0);
        close(fd);
        a = std::make_unique<Host>(dir, 1);
        b = std::make_unique<Host>(dir, 2);
    }
    void TearDown() override
    {
        a.reset();
        b.reset();
        std::filesystem::remove_all(dir);
    }

    std::string dir;
    std::unique_ptr<Host> a, b;
};

TEST_F(Reserve, TheSecondHostIsRefusedWithTheIdentifierOfTheFirst)
{
    ASSERT_EQ(a->reserve(), 0);
    EXPECT_EQ(b->reserve(), -EBUSY);
    EXPECT_EQ(b->other.host_id[0], 1);
    EXPECT_EQ(b->policy(BD_RESERVE_AUTO), -EBUSY);
    EXPECT_NE(std::string(b->why.text).find("01000000-0000"), std::string::npos) << b->why.text;
    EXPECT_NE(std::string(b->why.text).find("reservation=preempt"), std::string::npos)
        << b->why.text;
    EXPECT_EQ(b->policy(BD_RESERVE_REQUIRE), -EBUSY);
    a->open_device();
    EXPECT_EQ(a->write(7), 0);
    EXPECT_EQ(a->first(), 7);
}

TEST_F(Reserve, AConflictStopsTheControllerForGood)
{
    ASSERT_EQ(a->reserve(), 0);
    b->open_device();
    EXPECT_EQ(b->write(9), -EACCES);
    Bytes got(4096);
    EXPECT_EQ(bd_read(b->rig.dev, 0, got.data(), got.size()), -EIO);
    EXPECT_TRUE(nvme_ctrlr_taken(b->rig.c));
    EXPECT_FALSE(nvme_ctrlr_replaced(b->rig.c));
    nvme_unreserve(a->rig.c, 1);
    EXPECT_EQ(b->write(9), -EIO);
    EXPECT_EQ(a->first(), 0);
}

TEST_F(Reserve, AHolderThatWasPreemptedWritesNothing)
{
    ASSERT_EQ(a->reserve(), 0);
    a->open_device();
    ASSERT_EQ(a->write(1), 0);
    ASSERT_EQ(b->reserve(true), 0);
    EXPECT_LT(a->write(2), 0);
    b->open_device();
    EXPECT_EQ(b->write(3), 0);
    EXPECT_EQ(b->first(), 3);
    EXPECT_EQ(a->write(4), -EIO);
    EXPECT_EQ(b->first(), 3);
}

// The other host has come and gone while this one was idle: no status says so.
TEST_F(Reserve, AHolderThatWasPreemptedWhileIdleHearsOfIt)
{
    ASSERT_EQ(a->reserve(), 0);
    a->open_device();
    ASSERT_EQ(b->reserve(true), 0);
    nvme_unreserve(b->rig.c, 1);
    for (unsigned i = 0; i < 10000 && nvme_ctrlr_watch(a->rig.c) == 0; i++)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(nvme_ctrlr_taken(a->rig.c));
    EXPECT_EQ(a->write(2), -EIO);
    EXPECT_EQ(a->first(), 0);
}

TEST_F(Reserve, AnEventOfAnEarlierRegistrationStopsNothing)
{
    ASSERT_EQ(a->reserve(), 0);
    ASSERT_EQ(b->reserve(true), 0);
    nvme_unreserve(b->rig.c, 1);
    ASSERT_EQ(a->reserve(), 0);
    a->open_device();
    for (unsigned i = 0; i < 20; i++) {
        ASSERT_EQ(a->write(5), 0);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_FALSE(nvme_ctrlr_taken(a->rig.c));
}

TEST_F(Reserve, UnreserveLetsTheOtherHostIn)
{
    ASSERT_EQ(a->reserve(), 0);
    nvme_unreserve(a->rig.c, 1);
    EXPECT_EQ(b->reserve(), 0);
    EXPECT_EQ(a->reserve(), -EBUSY);
}

TEST_F(Reserve, AResetKeepsIt)
{
    ASSERT_EQ(a->reserve(), 0);
    a->open_device();
    ASSERT_EQ(nvme_ctrlr_reset(a->rig.c, nvme_ctrlr_epoch(a->rig.c)), 0);
    EXPECT_EQ(a->write(6), 0);
    EXPECT_EQ(b->reserve(), -EBUSY);
    EXPECT_FALSE(nvme_ctrlr_taken(a->rig.c));
}

TEST_F(Reserve, ItOutlivesAProgramAndAPowerLoss)
{
    ASSERT_EQ(a->reserve(), 0);
    a->restart(1);
    EXPECT_EQ(a->reserve(), 0);
    a.reset();
    b.reset();
    b = std::make_unique<Host>(dir, 2);
    EXPECT_EQ(b->reserve(), -EBUSY);
    EXPECT_EQ(b->reserve(true), 0);
}

TEST_F(Reserve, OtherTypesAreReplaced)
{
    for (uint32_t type : {WE, WERO, WEAR}) {
        a->hold(77, type);
        EXPECT_EQ(b->reserve(), -EBUSY) << type;
        ASSERT_EQ(b->reserve(true), 0) << type;
        nvme_unreserve(b->rig.c, 1);
    }
    // Its own registration with another key, and its own reservation of another type.
    a->hold(77, WERO);
    ASSERT_EQ(a->reserve(), 0);
    b->open_device();
    b->command(NVME_IO_RESV_REGISTER, NVME_RESV_REGISTER_KEY, 0, 78);
    EXPECT_EQ(b->write(1), -EACCES) << "a registrant writes";
}

// A refusal leaves no registration, which would let the host write under other types.
TEST_F(Reserve, ARefusedHostIsNotRegistered)
{
    a->hold(77, WERO);
    EXPECT_EQ(b->reserve(), -EBUSY);
    b->open_device();
    EXPECT_EQ(b->write(1), -EACCES);
}

TEST_F(Reserve, MissingFeaturesOfAControllerAreReported)
{
    Host none(dir, 3, false);
    EXPECT_EQ(none.reserve(), -ENOTSUP);
    EXPECT_EQ(none.policy(BD_RESERVE_AUTO), 0);
    EXPECT_EQ(none.why.text[0], '\0');
    EXPECT_EQ(none.policy(BD_RESERVE_REQUIRE), -ENOTSUP);
    EXPECT_NE(std::string(none.why.text).find("no reservations"), std::string::npos)
        << none.why.text;
    b->restart(0); // no identifier
    EXPECT_EQ(b->reserve(), -ENOTSUP);
    EXPECT_EQ(a->policy(BD_RESERVE_OFF), 0);
    EXPECT_EQ(a->policy(BD_RESERVE_AUTO), 1);
}

// A program that reserves nothing, such as `gpunvme check`, is no host of the controller.
TEST_F(Reserve, OnlyAReservationSetsTheHostIdentifier)
{
    EXPECT_EQ(a->policy(BD_RESERVE_OFF), 0);
    EXPECT_EQ(a->identifier(), 0);
    a->open_device();
    EXPECT_EQ(a->write(1), 0);
    ASSERT_EQ(nvme_ctrlr_reset(a->rig.c, nvme_ctrlr_epoch(a->rig.c)), 0);
    EXPECT_EQ(a->identifier(), 0);
    a->restart(1);
    ASSERT_EQ(a->policy(BD_RESERVE_AUTO), 1);
    EXPECT_EQ(a->identifier(), 1);
    ASSERT_EQ(nvme_ctrlr_reset(a->rig.c, nvme_ctrlr_epoch(a->rig.c)), 0);
    EXPECT_EQ(a->identifier(), 1);
}

// In the automatic mode, multi-mount protection remains if the commands fail.
TEST_F(Reserve, FailedCommandsDoNotKeepAnybodyOut)
{
    a->rig.fault(status_fault(NVME_IO_RESV_ACQUIRE, NVME_ERR_INTERNAL, 2));
    EXPECT_EQ(a->policy(BD_RESERVE_AUTO), 0);
    EXPECT_NE(std::string(a->why.text).find("cannot be reserved"), std::string::npos)
        << a->why.text;
    EXPECT_EQ(a->policy(BD_RESERVE_REQUIRE), -EIO);
    EXPECT_EQ(b->policy(BD_RESERVE_REQUIRE), 1);
}

// A controller that says that it has done what it has not done keeps nobody out either.
TEST_F(Reserve, CommandsWithoutEffectNameNoHolder)
{
    a->rig.fault(status_fault(NVME_IO_RESV_ACQUIRE, NVME_OK, 100));
    EXPECT_EQ(a->policy(BD_RESERVE_REQUIRE), -EIO);
    EXPECT_EQ(a->policy(BD_RESERVE_AUTO), 0);
    EXPECT_NE(std::string(a->why.text).find("cannot be reserved"), std::string::npos)
        << a->why.text;
}

TEST_F(Reserve, ALostCommandEndsAtItsDeadline)
{
    a->rig.opts.io_timeout_ms = 100;
    a->restart(1);
    a->rig.fault(lose_fault(NVME_IO_RESV_REPORT, 1));
    EXPECT_EQ(a->reserve(), -ETIMEDOUT);
    EXPECT_EQ(a->reserve(), 0);
}

TEST(HostId, IsThatOfAMachineAndADevice)
{
    bd_name pci{}, same{}, socket{};
    uint8_t id[16], again[16], other[16];
    const uint8_t none[16] = {};

    pci.kind = same.kind = BD_KIND_VFIO;
    socket.kind = BD_KIND_VFIO_USER;
    strcpy(pci.path, "0000:c1:00.0");
    strcpy(same.path, "0000:c1:00.0");
    strcpy(socket.path, "/run/socket");
    bd_host_id(&pci, id);
    bd_host_id(&same, again);
    bd_host_id(&socket, other);
    EXPECT_NE(memcmp(id, none, 16), 0);
    EXPECT_EQ(memcmp(id, again, 16), 0);
    EXPECT_NE(memcmp(id, other, 16), 0);
    char at[] = "/tmp/gpunvme-id-XXXXXX";
    ASSERT_NE(mkdtemp(at), nullptr);
    std::string real = std::string(at) + "/s", link = std::string(at) + "/l";
    std::filesystem::create_directory(real);
    std::filesystem::create_symlink(real, link);
    snprintf(socket.path, sizeof(socket.path), "%s", real.c_str());
    bd_host_id(&socket, id);
    snprintf(socket.path, sizeof(socket.path), "%s", link.c_str());
    bd_host_id(&socket, again);
    EXPECT_EQ(memcmp(id, again, 16), 0);
    std::filesystem::remove_all(at);
}

} // namespace
