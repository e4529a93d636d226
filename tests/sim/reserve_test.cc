/* SPDX-License-Identifier: BSD-2-Clause */
/* Tests reservations with two controllers of two namespaces, one host each. */
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <gtest/gtest.h>
#include <nvme/types.h>
#include <string>

#include "sim_test_rig.h"

namespace
{

constexpr uint16_t OK = NVME_OK, CONFLICT = NVME_ERR_RESERVATION;
constexpr uint32_t WE = 1, EA = 2, WERO = 3, EARO = 4, WEAR = 5, EAAR = 6;

/* Each party is a host with a controller of its own. */
struct Party {
    Party(const std::string &file, uint8_t id, const std::string &image)
        : image_(image), file_(file)
    {
        struct sim_config cfg = small_config();
        cfg.ns[0].path = image_.c_str();
        cfg.ns[0].bytes = 0;
        cfg.ns[0].shared = true;
        cfg.reservations = file_.c_str();
        r = std::make_unique<Rig>(cfg);
        page = r->dma(8192);
        q = &r->create(1, 8);
        EXPECT_EQ(name_host(id), NVME_OK);
    }
    uint16_t name_host(uint8_t id)
    {
        memset(page->addr, 0, 16);
        page->addr[0] = id;
        return r->admin(
            admin_cmd(NVME_ADMIN_SET_FEATURES, NVME_FEAT_HOST_ID, NVME_HOST_ID_LONG, page->iova));
    }
    uint16_t run(uint8_t opcode, uint32_t cdw10, uint64_t key, uint64_t second)
    {
        struct nvme_sqe s = io(opcode, 0, 1, page->iova);
        s.cdw10 = cdw10;
        s.cdw12 = 0;
        memcpy(page->addr, &key, 8);
        memcpy(page->addr + 8, &second, 8);
        return r->run(*q, s);
    }
    uint16_t add(uint64_t key, uint32_t cptpl = 0)
    {
        return run(NVME_IO_RESV_REGISTER, NVME_RESV_REGISTER_KEY | cptpl, 0, key);
    }
    uint16_t remove(uint64_t key)
    {
        return run(NVME_IO_RESV_REGISTER, NVME_RESV_UNREGISTER, key, 0);
    }
    uint16_t acquire(uint64_t key, uint32_t type)
    {
        return run(NVME_IO_RESV_ACQUIRE, NVME_RESV_ACQUIRE | NVME_RESV_TYPE(type), key, 0);
    }
    uint16_t preempt(uint64_t key, uint64_t other, uint32_t type)
    {
        return run(NVME_IO_RESV_ACQUIRE, NVME_RESV_PREEMPT | NVME_RESV_TYPE(type), key, other);
    }
    uint16_t release(uint64_t key, uint32_t type)
    {
        return run(NVME_IO_RESV_RELEASE, NVME_RESV_RELEASE | NVME_RESV_TYPE(type), key, 0);
    }
    uint16_t rw(uint8_t opcode) { return r->run(*q, io(opcode, 0, 1, page->iova)); }
    /* Reads the report into the page. Returns its type, or 100 plus a status. */
    unsigned report()
    {
        struct nvme_sqe s = io(NVME_IO_RESV_REPORT, 0, 1, page->iova);
        s.cdw10 = 4096 / 4 - 1;
        s.cdw11 = NVME_RESV_LONG_IDS;
        s.cdw12 = 0;
        uint16_t st = r->run(*q, s);
        return st ? 100u + st : page->as<struct nvme_resv_status>()->rtype;
    }
    const struct nvme_registered_ctrl_ext &registrant(unsigned i)
    {
        return page->as<struct nvme_resv_status>()->regctl_eds[i];
    }

  private:
    std::string image_, file_;

  public:
    std::unique_ptr<Rig> r;
    std::unique_ptr<Dma> page;
    Queue *q = nullptr;
};

class Reserve : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        char name[] = "/tmp/gpunvme-sim-XXXXXX";
        ASSERT_NE(mkdtemp(name), nullptr);
        dir = name;
        int fd = open((dir + "/image").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        ASSERT_EQ(ftruncate(fd, 4 << 20), 0);
        close(fd);
        start();
    }
    void start()
    {
        a = std::make_unique<Party>(dir + "/state", 1, dir + "/image");
        b = std::make_unique<Party>(dir + "/state", 2, dir + "/image");
    }
    void stop()
    {
        a.reset();
        b.reset();
    }
    void TearDown() override
    {
        stop();
        std::filesystem::remove_all(dir);
    }

    std::string dir;
    std::unique_ptr<Party> a, b;
};

/* With each type, the holder, a registrant, and a stranger read and write. */
TEST_F(Reserve, EachTypePermitsWhatItSays)
{
    const struct {
        uint32_t type;
        bool registrant_reads, registrant_writes, stranger_reads;
    } types[] = {{WE, true, false, true},   {EA, false, false, false}, {WERO, true, true, true},
                 {EARO, true, true, false}, {WEAR, true, true, true},  {EAAR, true, true, false}};

    ASSERT_EQ(a->add(10), NVME_OK);
    for (const auto &t : types) {
        SCOPED_TRACE(t.type);
        ASSERT_EQ(a->acquire(10, t.type), NVME_OK);
        EXPECT_EQ(a->rw(NVME_IO_WRITE), NVME_OK);
        EXPECT_EQ(a->rw(NVME_IO_READ), NVME_OK);
        EXPECT_EQ(b->rw(NVME_IO_READ), t.stranger_reads ? OK : CONFLICT);
        EXPECT_EQ(b->rw(NVME_IO_WRITE), CONFLICT);
        struct nvme_sqe flush = {};
        flush.opcode = NVME_IO_FLUSH;
        flush.nsid = 1;
        EXPECT_EQ(b->r->run(*b->q, flush), CONFLICT);
        flush.nsid = 0xffffffff;
        EXPECT_EQ(b->r->run(*b->q, flush), CONFLICT);
        ASSERT_EQ(b->add(20), NVME_OK);
        EXPECT_EQ(b->rw(NVME_IO_READ), t.registrant_reads ? OK : CONFLICT);
        EXPECT_EQ(b->rw(NVME_IO_WRITE), t.registrant_writes ? OK : CONFLICT);
        EXPECT_EQ(b->report(), t.type);
        EXPECT_EQ(b->registrant(1).rcsts, t.type >= WEAR);
        ASSERT_EQ(b->remove(20), NVME_OK);
        EXPECT_EQ(a->release(10, t.type == WE ? EA : WE), NVME_ERR_INVALID_FIELD);
        ASSERT_EQ(a->release(10, t.type), NVME_OK);
        EXPECT_EQ(b->rw(NVME_IO_WRITE), NVME_OK);
    }
}

TEST_F(Reserve, KeysAreCompared)
{
    EXPECT_EQ(a->acquire(10, WE), CONFLICT) << "not registered";
    EXPECT_EQ(a->remove(10), CONFLICT);
    ASSERT_EQ(a->add(10), NVME_OK);
    EXPECT_EQ(a->add(10), NVME_OK);
    EXPECT_EQ(a->add(11), CONFLICT);
    EXPECT_EQ(a->acquire(11, WE), CONFLICT);
    EXPECT_EQ(a->acquire(10, 0), NVME_ERR_INVALID_FIELD);
    EXPECT_EQ(a->acquire(10, 7), NVME_ERR_INVALID_FIELD);
    ASSERT_EQ(a->acquire(10, WE), NVME_OK);
    EXPECT_EQ(a->acquire(10, WE), NVME_OK);
    EXPECT_EQ(a->acquire(10, WERO), CONFLICT);
    ASSERT_EQ(b->add(20), NVME_OK);
    EXPECT_EQ(b->acquire(20, WE), CONFLICT);
    EXPECT_EQ(b->release(20, WE), NVME_OK);
    EXPECT_EQ(b->report(), WE) << "b released what it did not hold";
    EXPECT_EQ(a->release(11, WE), CONFLICT);
    EXPECT_EQ(a->run(NVME_IO_RESV_REGISTER, NVME_RESV_REPLACE_KEY, 11, 12), CONFLICT);
    EXPECT_EQ(a->run(NVME_IO_RESV_REGISTER, NVME_RESV_REPLACE_KEY | NVME_RESV_ANY_KEY, 0, 12),
              NVME_OK);
    EXPECT_EQ(b->report(), WE);
    EXPECT_EQ(b->registrant(0).rkey, 12u);
    EXPECT_EQ(b->registrant(0).rcsts, 1);
    EXPECT_EQ(b->registrant(0).hostid[0], 1);
    EXPECT_EQ(b->registrant(1).rcsts, 0);
    EXPECT_EQ(b->page->as<struct nvme_resv_status>()->regctl[0], 2);
    ASSERT_EQ(a->remove(12), NVME_OK);
    EXPECT_EQ(b->report(), 0u) << "it ends with its holder";
    EXPECT_EQ(b->run(NVME_IO_RESV_RELEASE, NVME_RESV_CLEAR, 20, 0), NVME_OK);
    EXPECT_EQ(b->report(), 0u);
    EXPECT_EQ(b->page->as<struct nvme_resv_status>()->regctl[0], 0);
}

TEST_F(Reserve, PreemptingTakesItAndSaysSo)
{
    struct nvme_sqe log = admin_cmd(NVME_ADMIN_GET_LOG_PAGE,
                                    NVME_LOG_RESERVATION | NVME_LOG_DWORDS(16), 0, a->page->iova);
    struct nvme_sqe aer = admin_cmd(NVME_ADMIN_ASYNC_EVENT, 0, 0);
    struct nvme_cqe cqe;

    ASSERT_EQ(a->add(10), NVME_OK);
    ASSERT_EQ(a->acquire(10, WE), NVME_OK);
    ASSERT_EQ(b->add(20), NVME_OK);
    aer.cid = 77;
    a->r->put(a->r->aq, aer);
    a->r->ring(a->r->aq);
    EXPECT_EQ(b->preempt(20, 99, WE), CONFLICT) << "nobody has the key";
    EXPECT_EQ(b->preempt(20, 0, WE), NVME_ERR_INVALID_FIELD);
    EXPECT_EQ(a->rw(NVME_IO_WRITE), NVME_OK);
    ASSERT_EQ(b->preempt(20, 10, WE), NVME_OK);
    EXPECT_EQ(a->rw(NVME_IO_WRITE), CONFLICT);
    EXPECT_EQ(b->rw(NVME_IO_WRITE), NVME_OK);
    ASSERT_TRUE(a->r->next(a->r->aq, &cqe));
    EXPECT_EQ(cqe.cid, 77);
    EXPECT_EQ(cqe.result, NVME_LOG_RESERVATION << 16 | 6u);
    for (unsigned expected : {1u, 0u}) {
        ASSERT_EQ(a->r->admin(log), NVME_OK);
        const auto *l = a->page->as<struct nvme_resv_notification_log>();
        EXPECT_EQ(l->rnlpt, expected);
        EXPECT_EQ(l->nsid, expected);
    }
    EXPECT_EQ(a->acquire(10, WE), CONFLICT) << "it is not registered any more";
}

TEST_F(Reserve, OneKeyPreemptsAllRegistrants)
{
    ASSERT_EQ(a->add(10), NVME_OK);
    ASSERT_EQ(b->add(20), NVME_OK);
    ASSERT_EQ(a->acquire(10, WEAR), NVME_OK);
    ASSERT_EQ(b->preempt(20, 0, WE), NVME_OK);
    EXPECT_EQ(b->report(), WE);
    EXPECT_EQ(b->page->as<struct nvme_resv_status>()->regctl[0], 1);
    EXPECT_EQ(b->registrant(0).hostid[0], 2);
}

TEST_F(Reserve, APowerLossEndsOnlyWhatIsNotToPersist)
{
    ASSERT_EQ(a->add(10, NVME_RESV_LOSE_POWER), NVME_OK);
    ASSERT_EQ(a->acquire(10, WE), NVME_OK);
    b.reset();
    b = std::make_unique<Party>(dir + "/state", 2, dir + "/image");
    EXPECT_EQ(b->report(), WE) << "another controller has power";
    stop();
    start();
    EXPECT_EQ(b->report(), 0u);
    ASSERT_EQ(a->add(10, NVME_RESV_KEEP), NVME_OK);
    ASSERT_EQ(a->acquire(10, WE), NVME_OK);
    stop();
    start();
    EXPECT_EQ(b->report(), WE);
    EXPECT_EQ(b->page->as<struct nvme_resv_status>()->ptpls, 1);
    EXPECT_EQ(a->rw(NVME_IO_WRITE), NVME_OK);
    EXPECT_EQ(b->rw(NVME_IO_WRITE), CONFLICT);
}

TEST_F(Reserve, AHostIsNamedOnceUntilAReset)
{
    EXPECT_EQ(a->name_host(1), NVME_OK);
    EXPECT_EQ(a->name_host(3), NVME_ERR_SEQUENCE);
    memset(a->page->addr, 0xee, 16);
    EXPECT_EQ(a->r->admin(admin_cmd(NVME_ADMIN_GET_FEATURES, NVME_FEAT_HOST_ID, 1, a->page->iova)),
              NVME_OK);
    EXPECT_EQ(a->page->addr[0], 1);
    EXPECT_EQ(a->page->addr[1], 0);
    EXPECT_EQ(a->r->admin(admin_cmd(NVME_ADMIN_SET_FEATURES, NVME_FEAT_HOST_ID, 0, a->page->iova)),
              NVME_ERR_INVALID_FIELD);
    struct nvme_sqe s = io(NVME_IO_RESV_REPORT, 0, 1, a->page->iova);
    s.cdw10 = 15;
    s.cdw12 = 0;
    EXPECT_EQ(a->r->run(*a->q, s), NVME_ERR_HOST_ID_FORMAT) << "without EDS";
}

} // namespace
