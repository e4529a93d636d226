/* SPDX-License-Identifier: BSD-2-Clause */
/* Each mistake of a driver is made once and causes its event and no other. */
#include <cstring>
#include <gtest/gtest.h>
#include <nvme/types.h>

#include "sim_test_rig.h"

namespace
{

struct Judge : OneQueue {
    Judge() : OneQueue(small_config(), 16) {}
    uint16_t read(uint64_t lba, uint32_t lbas, uint64_t prp1, uint64_t prp2 = 0)
    {
        return r.run(*q, io(NVME_IO_READ, lba, lbas, prp1, prp2));
    }
};

TEST_F(Judge, WrongDoorbellsAreReported)
{
    const struct {
        unsigned qid;
        bool cq;
        uint32_t value;
        enum sim_event event;
    } cases[] = {
        {3, false, 1, SIM_EV_DB_INVALID_QUEUE},
        {1, false, 16, SIM_EV_DB_OUT_OF_RANGE}, /* the size of the queue */
        {1, true, 99, SIM_EV_DB_OUT_OF_RANGE},
        {1, true, 1, SIM_EV_CQ_HEAD_PAST_TAIL},
    };

    for (const auto &c : cases) {
        Rig fresh(small_config());
        fresh.create(1, 16);
        fresh.doorbell(c.qid, c.cq, c.value);
        EXPECT_TRUE(fresh.only(c.event)) << c.qid << " " << c.cq << " " << c.value;
    }
}

TEST_F(Judge, DoorbellBetweenTheStridesIsReported)
{
    Rig wide(with([](struct sim_config &c) { c.doorbell_stride = 1; }));
    __atomic_store_n(&wide.t->doorbells[1], 1, __ATOMIC_RELEASE);
    EXPECT_TRUE(wide.only(SIM_EV_DB_INVALID_QUEUE)); /* without a kick: the controller polls */
}

TEST_F(Judge, DoorbellsOfSeveralPagesAreChecked)
{
    struct sim_config c = small_config();
    c.io_queues = 128;
    c.doorbell_stride = SIM_STRIDE_LINES;
    Rig wide(c);
    ASSERT_EQ(wide.t->doorbells_len, 3u * 4096);
    wide.create(128, 16);
    EXPECT_EQ(wide.run(*wide.queues[0], io(NVME_IO_FLUSH, 0, 1, 0)), NVME_OK);
    for (size_t w : {1u, 1024u + 8u, 2048u + 24u}) {
        __atomic_store_n(&wide.t->doorbells[w], 1, __ATOMIC_RELEASE);
        EXPECT_TRUE(wide.only(SIM_EV_DB_INVALID_QUEUE)) << w;
    }
}

TEST_F(Judge, TailMovedOntoUnfetchedEntriesIsReported)
{
    struct sim_fault f = fault(SIM_FAULT_LOSE);
    f.times = 0;
    add(f);
    uint64_t before = r.stats().commands;
    submit_all(15);
    r.wait_commands(before + 15);
    submit(15);
    EXPECT_TRUE(r.only(SIM_EV_SQ_OVERRUN));
    EXPECT_EQ(r.remove_sq(1), 0);
}

TEST_F(Judge, CidUsedTwiceAtOnceIsReported)
{
    r.put(*q, io(NVME_IO_READ, 0, 1, buf->iova, 0, 9));
    r.put(*q, io(NVME_IO_READ, 1, 1, buf->iova, 0, 9));
    r.ring(*q);
    ASSERT_EQ(order(2).size(), 2u);
    EXPECT_TRUE(r.only(SIM_EV_CID_REUSE));
}

TEST_F(Judge, WrongReadsAreReported)
{
    const uint64_t at = buf->iova, end = buf->iova + buf->len;
    const struct {
        uint64_t lba, lbas, prp1, prp2;
        uint16_t status;
        enum sim_event event;
    } cases[] = {
        {0, 1, end, 0, NVME_ERR_DATA_TRANSFER, SIM_EV_PRP_UNMAPPED},
        {0, 1, 0, 0, NVME_ERR_DATA_TRANSFER, SIM_EV_PRP_UNMAPPED},
        {0, 2, at, end, NVME_ERR_DATA_TRANSFER, SIM_EV_PRP_UNMAPPED},
        {0, 1, at + 2, at + 4096, NVME_ERR_INVALID_PRP_OFFSET, SIM_EV_PRP_MISALIGNED},
        {0, 2, at, at + 4096 + 8, NVME_ERR_INVALID_PRP_OFFSET, SIM_EV_PRP_MISALIGNED},
        {0, 1, at, at + 4096, NVME_ERR_INVALID_FIELD, SIM_EV_RESERVED_FIELD}, /* one page */
        {0, 17, at, at, NVME_ERR_INVALID_FIELD, SIM_EV_TRANSFER_TOO_LARGE},
        {1023, 2, at, at + 4096, NVME_ERR_LBA_RANGE, SIM_EV_LBA_RANGE},
        {UINT64_MAX, 1, at, 0, NVME_ERR_LBA_RANGE, SIM_EV_LBA_RANGE},
    };

    for (const auto &c : cases) {
        EXPECT_EQ(read(c.lba, static_cast<uint32_t>(c.lbas), c.prp1, c.prp2), c.status) << c.lba;
        EXPECT_TRUE(r.only(c.event)) << sim_event_name(c.event);
    }
}

TEST_F(Judge, ListEntryNotPageAlignedIsReported)
{
    auto list = r.dma(4096);
    list->as<uint64_t>()[0] = buf->iova + 4096;
    list->as<uint64_t>()[1] = buf->iova + 8192 + 512;
    EXPECT_EQ(read(0, 3, buf->iova, list->iova), NVME_ERR_INVALID_PRP_OFFSET);
    EXPECT_TRUE(r.only(SIM_EV_PRP_MISALIGNED));
}

TEST_F(Judge, ListPointerNotQwordAlignedIsReported)
{
    auto list = r.dma(4096);
    EXPECT_EQ(read(0, 3, buf->iova, list->iova + 4), NVME_ERR_INVALID_PRP_OFFSET);
    EXPECT_TRUE(r.only(SIM_EV_PRP_LIST_MISALIGNED));
}

TEST_F(Judge, ListThatExceedsItsPageIsReported)
{
    auto list = r.dma(8192);
    uint64_t *e = list->as<uint64_t>() + 510; /* three entries; the page has room for two */
    for (int i = 0; i < 3; i++)
        e[i] = buf->iova + 4096 * (i + 1);
    EXPECT_EQ(read(0, 4, buf->iova, list->iova + 510 * 8), NVME_ERR_INVALID_PRP_OFFSET);
    EXPECT_TRUE(r.only(SIM_EV_PRP_LIST_OVERFLOW));
}

/*
 * As in some controllers, the entry in the place of the chain pointer is a data
 * page, and further entries follow behind the list page.
 */
TEST(JudgeChains, AreDataPagesToAControllerThatFollowsNone)
{
    struct sim_config c = small_config();
    c.no_prp_chains = true;
    Rig r(c);
    Queue &q = r.create(1, 16);
    auto buf = r.dma(5 * 4096), list = r.dma(8192);
    uint64_t *e = list->as<uint64_t>() + 510;
    std::vector<unsigned char> media(4 * 4096);

    for (size_t i = 0; i < media.size(); i++)
        media[i] = (unsigned char)(i / 4096 + 1);
    memcpy(buf->addr, media.data(), media.size());
    e[0] = buf->iova + 4096, e[1] = buf->iova + 8192;
    ASSERT_EQ(r.run(q, io(NVME_IO_WRITE, 0, 3, buf->iova, list->iova + 510 * 8)), 0)
        << "a list that ends with its page";
    EXPECT_EQ(sim_violations(r.sim), 0u);
    e[1] = list->iova + 4096, e[2] = buf->iova + 3 * 4096;
    ASSERT_EQ(r.run(q, io(NVME_IO_READ, 0, 4, buf->iova, list->iova + 510 * 8)), 0);
    EXPECT_TRUE(r.only(SIM_EV_PRP_CHAINED));
    EXPECT_EQ(memcmp(list->addr + 4096, &media[8192], 4096), 0) << "data went over the list";
}

TEST_F(Judge, UnsupportedOpcodesAreReported)
{
    EXPECT_EQ(r.run(*q, io(0x05, 0, 1, buf->iova)), NVME_ERR_INVALID_OPCODE);
    EXPECT_TRUE(r.only(SIM_EV_BAD_OPCODE));
    EXPECT_EQ(r.admin(admin_cmd(0x7f, 0, 0)), NVME_ERR_INVALID_OPCODE);
    EXPECT_TRUE(r.only(SIM_EV_BAD_OPCODE));
}

TEST_F(Judge, InactiveNamespaceIsReported)
{
    for (uint32_t nsid : {0u, 2u, UINT32_MAX}) {
        struct nvme_sqe s = io(NVME_IO_READ, 0, 1, buf->iova);
        s.nsid = nsid;
        EXPECT_EQ(r.run(*q, s), NVME_ERR_INVALID_NS);
        EXPECT_TRUE(r.only(SIM_EV_BAD_NSID));
    }
}

TEST_F(Judge, ReservedFieldsAreReported)
{
    struct nvme_sqe good = io(NVME_IO_READ, 0, 1, buf->iova), s = good;
    std::vector<struct nvme_sqe> bad;
    s.cdw2 = 1, bad.push_back(s), s = good;
    s.cdw3 = 1, bad.push_back(s), s = good;
    s.mptr = 8, bad.push_back(s), s = good;
    s.flags = 1, bad.push_back(s), s = good;
    s.flags = 0xc0, bad.push_back(s), s = good;
    s.cdw12 |= 1u << 16, bad.push_back(s), s = good;
    s.cdw15 = 1, bad.push_back(s), s = good;
    for (auto &b : bad) {
        EXPECT_EQ(r.run(*q, b), NVME_ERR_INVALID_FIELD);
        EXPECT_TRUE(r.only(SIM_EV_RESERVED_FIELD));
    }
}

struct BadCreate {
    uint32_t cdw10, cdw11;
    bool misaligned;
    uint16_t status;
};

class JudgeCreate : public Judge, public ::testing::WithParamInterface<BadCreate>
{
};

TEST_P(JudgeCreate, CqWithWrongValuesIsReported)
{
    BadCreate b = GetParam();
    EXPECT_EQ(
        r.admin(admin_cmd(NVME_ADMIN_CREATE_CQ, b.cdw10, b.cdw11, buf->iova + 8 * b.misaligned)),
        b.status);
    EXPECT_TRUE(r.only(SIM_EV_BAD_QUEUE_CREATE));
}

INSTANTIATE_TEST_SUITE_P(
    Values, JudgeCreate,
    ::testing::Values(BadCreate{0 | 15 << 16, 1, false, NVME_ERR_QID_INVALID},
                      BadCreate{1 | 15 << 16, 1, false, NVME_ERR_QID_INVALID},
                      BadCreate{5 | 15 << 16, 1, false, NVME_ERR_QID_INVALID},
                      BadCreate{2 | 0 << 16, 1, false, NVME_ERR_QUEUE_SIZE},
                      BadCreate{2 | 0x1000 << 16, 1, false, NVME_ERR_QUEUE_SIZE},
                      BadCreate{2 | 15 << 16, 0, false, NVME_ERR_INVALID_FIELD},
                      BadCreate{2 | 15 << 16, 3, false, 0x108},
                      BadCreate{2 | 15 << 16, 1, true, NVME_ERR_INVALID_FIELD}));

TEST_F(Judge, SqForAMissingCqIsReported)
{
    EXPECT_EQ(r.admin(admin_cmd(NVME_ADMIN_CREATE_SQ, 2 | 15 << 16, 1 | 2 << 16, buf->iova)),
              NVME_ERR_CQ_INVALID);
    EXPECT_TRUE(r.only(SIM_EV_BAD_QUEUE_CREATE));
}

TEST_F(Judge, CqDeletedBeforeItsSqIsReported)
{
    EXPECT_EQ(r.remove_cq(1), NVME_ERR_QUEUE_DELETION);
    EXPECT_TRUE(r.only(SIM_EV_BAD_QUEUE_DELETE));
    EXPECT_EQ(r.remove_sq(1), 0);
    EXPECT_EQ(r.remove_cq(1), 0);
    EXPECT_EQ(r.remove_sq(1), NVME_ERR_QID_INVALID);
    EXPECT_TRUE(r.only(SIM_EV_BAD_QUEUE_DELETE));
}

TEST(JudgeRegisters, EnablingWithoutAnAdminQueueIsReported)
{
    Rig r(small_config(), false);
    r.write32(NVME_REG_CC, NVME_CC_ENABLE);
    EXPECT_TRUE(r.only(SIM_EV_BAD_ENABLE));
    EXPECT_TRUE(r.read32(NVME_REG_CSTS) & NVME_CSTS_FATAL);
    EXPECT_FALSE(r.read32(NVME_REG_CSTS) & NVME_CSTS_READY);
    r.enable();
    EXPECT_EQ(r.read32(NVME_REG_CSTS), NVME_CSTS_FATAL); /* EN was never 0: CFS remains */
    r.only(SIM_EV_REG_MISUSE);
    r.disable();
    r.enable();
    EXPECT_EQ(r.read32(NVME_REG_CSTS), NVME_CSTS_READY);
}

TEST_F(Judge, MisuseOfRegistersIsReported)
{
    r.write32(NVME_REG_CSTS, 0);
    EXPECT_TRUE(r.only(SIM_EV_REG_MISUSE));
    r.write32(NVME_REG_AQA, 0x000f000f);
    EXPECT_TRUE(r.only(SIM_EV_REG_MISUSE));
    r.write32(NVME_REG_CC, r.read32(NVME_REG_CC) | 1u << NVME_CC_MPS_SHIFT);
    EXPECT_TRUE(r.only(SIM_EV_REG_MISUSE));
}

TEST_F(Judge, RingUnmappedUnderAQueueIsReported)
{
    q->sq->unmap();
    EXPECT_TRUE(r.only(SIM_EV_UNMAP_IN_FLIGHT));
    EXPECT_TRUE(r.read32(NVME_REG_CSTS) & NVME_CSTS_FATAL);
}

TEST(JudgeRegisters, ClosingWhileEnabledIsReported)
{
    Rig r(small_config());
    r.aq.sq->t = r.aq.cq->t = nullptr;
    r.t->ops->close(r.t);
    r.t = nullptr;
    EXPECT_TRUE(r.only(SIM_EV_CLOSED_ENABLED));
}

TEST_F(Judge, EveryEventHasANameAndAText)
{
    for (int e = 0; e < SIM_EV_COUNT; e++) {
        EXPECT_GT(strlen(sim_event_name(static_cast<enum sim_event>(e))), 5u);
        EXPECT_GT(strlen(sim_event_text(static_cast<enum sim_event>(e))), 10u);
    }
}

TEST_F(Judge, ViolationsAreKeptAsText)
{
    char text[1024];
    r.doorbell(1, false, 16);
    ASSERT_TRUE(r.only(SIM_EV_DB_OUT_OF_RANGE));
    EXPECT_GT(sim_violations_text(r.sim, text, sizeof(text)), 0u);
    EXPECT_NE(strstr(text, "DB_OUT_OF_RANGE: SQ 1 tail 16 of 16 (seed 1"), nullptr) << text;
}

} // namespace
