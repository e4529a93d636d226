/* SPDX-License-Identifier: BSD-2-Clause */
/* Queue pairs: the commands that create and delete them, and failures of these. */
#include <cerrno>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "blockdev/nvme/nvme.h"
#include "blockdev/nvme/nvme_prp.h"
#include "tests/blockdev/nvme/nvme_fake_test.h"

namespace
{

class Qpair : public FakeTest
{
  protected:
    void SetUp() override
    {
        opts.admin_timeout_ms = 50;
        ASSERT_EQ(open(), 0);
        maps = fake.maps.size();
        fake.seen.clear();
    }

    nvme_qpair qp{};
    size_t maps = 0;
};

TEST_F(Qpair, CompletionQueueIsCreatedFirstAndDeletedLast)
{
    ASSERT_EQ(nvme_qpair_create(c, 64, &qp), 0);
    ASSERT_EQ(fake.seen.size(), 2u);
    EXPECT_EQ(fake.seen[0].opcode, NVME_ADMIN_CREATE_CQ);
    EXPECT_EQ(fake.seen[0].prp1, qp.cq_iova);
    EXPECT_EQ(fake.seen[0].cdw10, 63u << 16 | 1u);
    EXPECT_EQ(fake.seen[0].cdw11, 1u);
    EXPECT_EQ(fake.seen[1].opcode, NVME_ADMIN_CREATE_SQ);
    EXPECT_EQ(fake.seen[1].prp1, qp.sq_iova);
    EXPECT_EQ(fake.seen[1].cdw11, 1u << 16 | 1u);
    EXPECT_EQ(nvme_qpair_delete(c, &qp), 0);
    ASSERT_EQ(fake.seen.size(), 4u);
    EXPECT_EQ(fake.seen[2].opcode, NVME_ADMIN_DELETE_SQ);
    EXPECT_EQ(fake.seen[3].opcode, NVME_ADMIN_DELETE_CQ);
    EXPECT_EQ(fake.maps.size(), maps) << "the rings are free";
}

/* Left behind by another driver, by a controller that keeps queues. */
TEST_F(Qpair, AQueueThatExistsIsDeletedAndCreated)
{
    fake.keeps_queues = true;
    fake.queues[1] = {0x1000, 0x2000, 8, 0, 0, 1};
    ASSERT_EQ(nvme_qpair_create(c, 64, &qp), 0);
    ASSERT_EQ(fake.seen.size(), 5u);
    EXPECT_EQ(fake.seen[0].opcode, NVME_ADMIN_CREATE_CQ);
    EXPECT_EQ(fake.seen[1].opcode, NVME_ADMIN_DELETE_SQ);
    EXPECT_EQ(fake.seen[2].opcode, NVME_ADMIN_DELETE_CQ);
    EXPECT_EQ(fake.seen[3].opcode, NVME_ADMIN_CREATE_CQ);
    EXPECT_EQ(fake.queues[1].sq, qp.sq_iova);
    EXPECT_EQ(fake.mistakes, 0u);
    EXPECT_EQ(nvme_qpair_delete(c, &qp), 0);
}

/* As SPDK does with a queue whose deletion was under way at a reset. */
TEST_F(Qpair, APairWhoseQueueCannotBeDeletedGetsAnotherId)
{
    ASSERT_EQ(nvme_qpair_create_shared(c, 64, nvme_share_new(c, 1), &qp), 0);
    uint64_t before = qp.cq_iova;
    fake.keeps_queues = true;
    fake.status_of_opcode[NVME_ADMIN_DELETE_SQ] = NVME_ERR_QID_INVALID;
    fake.status_of_opcode[NVME_ADMIN_DELETE_CQ] = NVME_ERR_QUEUE_DELETION;
    ASSERT_EQ(nvme_ctrlr_reset(c, 0), 0);
    ASSERT_EQ(nvme_qpair_recreate(c, &qp), 0);
    EXPECT_EQ(qp.qid, 2u);
    EXPECT_NE(qp.cq_iova, before) << "the controller may still write to the rings of before";
    EXPECT_EQ(qp.sq_doorbell, fake.t.doorbells + 4);
    EXPECT_EQ(fake.maps.size(), maps + 2);
    fake.status_of_opcode.clear();
    fake.queues.erase(1);
    EXPECT_EQ(nvme_qpair_delete(c, &qp), 0);
}

/* The queue that was left behind may complete a lost command after any number of resets. */
TEST_F(Qpair, AResetKeepsTheRingsOfAQueueThatOutlivesIt)
{
    fake.keeps_queues = true;
    fake.loses = [](const nvme_sqe &) { return true; };
    ASSERT_EQ(nvme_qpair_create_shared(c, 64, nvme_share_new(c, 1), &qp), 0);
    uint64_t before = qp.cq_iova;
    fake.status_of_opcode[NVME_ADMIN_DELETE_SQ] = NVME_ERR_QID_INVALID;
    fake.status_of_opcode[NVME_ADMIN_DELETE_CQ] = NVME_ERR_QUEUE_DELETION;
    ASSERT_EQ(nvme_ctrlr_reset(c, 0), 0);
    ASSERT_EQ(nvme_qpair_recreate(c, &qp), 0);
    ASSERT_EQ(nvme_ctrlr_reset(c, 1), 0);
    EXPECT_EQ(fake.maps.size(), maps + 2);
    nvme_sqe lost = {};
    lost.opcode = NVME_IO_FLUSH;
    fake.complete_io(1, lost, 0);
    auto ring = fake.maps.upper_bound(before);
    ASSERT_NE(ring, fake.maps.begin());
    --ring;
    EXPECT_LT(before, ring->first + ring->second.len) << "the completion is in other memory";
    nvme_dma other;
    ASSERT_EQ(nvme_dma_alloc(c, qp.sq_len + qp.cq_len, &other), 0);
    EXPECT_NE(other.iova + qp.sq_len, before);
    nvme_dma_free(c, &other);
    fake.status_of_opcode.clear();
    EXPECT_EQ(nvme_qpair_delete(c, &qp), 0);
}

/* The first reset says so by Set Features, which comes before the rings would be freed. */
TEST_F(Qpair, AbandonedRingsAreKeptByAControllerThatKeepsQueues)
{
    ASSERT_EQ(nvme_qpair_create_shared(c, 8, nvme_share_new(c, 1), &qp), 0);
    fake.keeps_queues = true;
    fake.status_of_opcode[NVME_ADMIN_DELETE_SQ] = NVME_ERR_INTERNAL;
    EXPECT_EQ(nvme_qpair_delete(c, &qp), -EIO);
    fake.refuse_queues_once = true;
    ASSERT_EQ(nvme_ctrlr_reset(c, 0), 0);
    EXPECT_EQ(fake.maps.size(), maps + 1);
}

TEST_F(Qpair, AnIdThatIsRefusedPermanentlyIsAnError)
{
    fake.status_of_opcode[NVME_ADMIN_CREATE_CQ] = NVME_ERR_QID_INVALID;
    fake.status_of_opcode[NVME_ADMIN_DELETE_SQ] = NVME_ERR_QID_INVALID;
    fake.status_of_opcode[NVME_ADMIN_DELETE_CQ] = NVME_ERR_QID_INVALID;
    EXPECT_EQ(nvme_qpair_create(c, 64, &qp), -EINVAL);
    EXPECT_EQ(fake.maps.size(), maps);
}

TEST_F(Qpair, RingsAreZeroedWholePagesAtTheirDoorbells)
{
    ASSERT_EQ(nvme_qpair_create(c, 3, &qp), 0);
    EXPECT_EQ(qp.sq_len % 4096 + qp.cq_len % 4096 + qp.sq_iova % 4096 + qp.cq_iova % 4096, 0u);
    EXPECT_EQ(qp.sq_doorbell, fake.t.doorbells + 2);
    EXPECT_EQ(qp.cq_doorbell, fake.t.doorbells + 3);
    for (uint32_t i = 0; i < qp.depth; i++)
        EXPECT_EQ(qp.cq[i].status, 0);
    EXPECT_EQ(nvme_qpair_delete(c, &qp), 0);
}

TEST_F(Qpair, DepthIsChecked)
{
    EXPECT_EQ(nvme_qpair_create(c, 0, &qp), -EINVAL);
    EXPECT_EQ(nvme_qpair_create(c, 1, &qp), -EINVAL);
    EXPECT_EQ(nvme_qpair_create(c, 65, &qp), -EINVAL);
    EXPECT_TRUE(fake.seen.empty());
}

TEST_F(Qpair, IdsRunOutAndAreReused)
{
    nvme_qpair pairs[4], extra;
    for (auto &p : pairs)
        ASSERT_EQ(nvme_qpair_create(c, 8, &p), 0);
    EXPECT_EQ(nvme_qpair_create(c, 8, &extra), -ENOSPC);
    ASSERT_EQ(nvme_qpair_delete(c, &pairs[1]), 0);
    ASSERT_EQ(nvme_qpair_create(c, 8, &pairs[1]), 0);
    EXPECT_EQ(pairs[1].qid, 2);
    for (auto &p : pairs)
        EXPECT_EQ(nvme_qpair_delete(c, &p), 0);
}

TEST_F(Qpair, FailedCreationLeavesNothing)
{
    fake.status_of_opcode[NVME_ADMIN_CREATE_SQ] = NVME_ERR_QUEUE_SIZE;
    EXPECT_EQ(nvme_qpair_create(c, 8, &qp), -EINVAL);
    EXPECT_EQ(fake.count(NVME_ADMIN_DELETE_CQ), 1u);
    EXPECT_EQ(fake.maps.size(), maps);
    fake.status_of_opcode.clear();
    ASSERT_EQ(nvme_qpair_create(c, 8, &qp), 0);
    EXPECT_EQ(qp.qid, 1);
    EXPECT_EQ(nvme_qpair_delete(c, &qp), 0);
}

TEST_F(Qpair, DeletionsThatFailKeepTheRingsUntilTheReset)
{
    nvme_qpair other;
    fake.status_of_opcode[NVME_ADMIN_DELETE_SQ] = NVME_ERR_INTERNAL;
    ASSERT_EQ(nvme_qpair_create_shared(c, 8, nvme_share_new(c, 1), &qp), 0);
    ASSERT_EQ(nvme_qpair_create_shared(c, 8, nvme_share_new(c, 1), &other), 0);
    EXPECT_EQ(nvme_qpair_delete(c, &qp), -EIO);
    fake.lose_opcode = NVME_ADMIN_DELETE_SQ;
    EXPECT_EQ(nvme_qpair_delete(c, &other), -ETIMEDOUT);
    EXPECT_EQ(fake.maps.size(), maps + 2);
}

TEST_F(Qpair, RecreateZeroesTheSameRings)
{
    ASSERT_EQ(nvme_qpair_create(c, 8, &qp), 0);
    nvme_qpair before = qp;
    memset(qp.cq, 0xff, qp.cq_len);
    ASSERT_EQ(nvme_qpair_recreate(c, &qp), 0);
    EXPECT_EQ(qp.cq, before.cq);
    EXPECT_EQ(qp.qid, before.qid);
    EXPECT_EQ(qp.cq[7].status, 0);
    EXPECT_EQ(fake.seen.size(), 6u);
    EXPECT_EQ(nvme_qpair_delete(c, &qp), 0);
}

TEST_F(Qpair, PairThatIsGoneIsNotTakenForTheAdminQueue)
{
    ASSERT_EQ(nvme_qpair_create(c, 8, &qp), 0);
    fake.status_of_opcode[NVME_ADMIN_DELETE_SQ] = NVME_ERR_INTERNAL;
    ASSERT_EQ(nvme_qpair_delete(c, &qp), -EIO);
    fake.status_of_opcode.clear();
    size_t commands = fake.seen.size();
    EXPECT_EQ(nvme_qpair_recreate(c, &qp), -ENODEV);
    EXPECT_EQ(nvme_qpair_delete(c, &qp), -ENODEV);
    EXPECT_EQ(fake.seen.size(), commands);
}

TEST_F(Qpair, DmaMemoryIsZeroedSharedAndMapped)
{
    nvme_dma dma;
    ASSERT_EQ(nvme_dma_alloc(c, 5000, &dma), 0);
    EXPECT_EQ(dma.len, 8192u);
    EXPECT_GE(dma.fd, 0);
    EXPECT_EQ(fake.at(dma.iova), dma.addr);
    EXPECT_EQ(static_cast<char *>(dma.addr)[8191], 0);
    nvme_dma_free(c, &dma);
    EXPECT_EQ(fake.maps.size(), maps);
    EXPECT_EQ(nvme_dma_alloc(c, 0, &dma), -EINVAL);
}

// --- PRP entries, walked as by a controller that follows no chain --------------------------------

constexpr uint64_t LIST = 0x40000000;

/* The pages a controller would use for len bytes, or none when the list leaves its page. */
std::vector<uint64_t> walk(const nvme_sqe &sqe, size_t len, const std::vector<uint64_t> &list)
{
    std::vector<uint64_t> pages = {sqe.prp1};
    size_t first = 4096 - sqe.prp1 % 4096;
    size_t rest = len > first ? (len - first + 4095) / 4096 : 0;

    if (rest == 1)
        pages.push_back(sqe.prp2);
    if (rest < 2)
        return pages;
    if (sqe.prp2 != LIST || rest > list.size())
        return {};
    pages.insert(pages.end(), list.begin(), list.begin() + (ptrdiff_t)rest);
    return pages;
}

void check(uint64_t iova, size_t len)
{
    std::vector<uint64_t> list(512);
    nvme_sqe sqe{};

    nvme_prp_fill(&sqe, iova, len, list.data(), LIST);
    std::vector<uint64_t> want = {iova};
    for (uint64_t page = (iova & ~4095ull) + 4096; page < iova + len; page += 4096)
        want.push_back(page);
    EXPECT_EQ(walk(sqe, len, list), want) << std::hex << iova << " " << len;
}

TEST(Prp, OnePageNeedsNoSecondEntry)
{
    nvme_sqe sqe{};
    nvme_prp_fill(&sqe, 0x10000, 4096, nullptr, LIST);
    EXPECT_EQ(sqe.prp1, 0x10000u);
    EXPECT_EQ(sqe.prp2, 0u);
}

TEST(Prp, TwoPagesNeedNoList)
{
    nvme_sqe sqe{};
    nvme_prp_fill(&sqe, 0x10200, 4096, nullptr, LIST);
    EXPECT_EQ(sqe.prp2, 0x11000u);
}

TEST(Prp, ListsAreWalkedToTheSamePages)
{
    for (size_t pages : {1, 2, 3, 4, 31, 510, 511, 512})
        for (uint64_t offset : {0, 4, 512, 2048, 4092})
            check(0x100000 + offset, pages * 4096);
}

TEST(Prp, LengthsNeedNotBeWholePages)
{
    for (size_t len : {1, 512, 4095, 4097, 8191, 8193, 2097151, 2097152})
        check(0x100000, len);
}

/* All 512 entries are data pages, the last one too. */
TEST(Prp, TheLongestTransferFillsOnePageAtAnyOffset)
{
    static_assert(NVME_PRP_MAX_LEN == 2u << 20, "512 pages");
    for (uint64_t offset : {4, 512, 4092}) {
        std::vector<uint64_t> list(512);
        nvme_sqe sqe{};

        nvme_prp_fill(&sqe, 0x100000 + offset, NVME_PRP_MAX_LEN, list.data(), LIST);
        EXPECT_EQ(list[511], 0x100000u + 512 * 4096) << offset;
    }
}

// --- The status table ----------------------------------------------------------------------------

TEST(Status, SuccessIsNoError)
{
    EXPECT_EQ(nvme_status_errno(0), 0);
    EXPECT_FALSE(nvme_status_retryable(0));
    EXPECT_EQ(nvme_status_errno(NVME_STATUS_DNR), 0) << "DNR is no error by itself";
}

TEST(Status, EveryOtherStatusIsAnErrnoAndHasText)
{
    for (unsigned st = 1; st < 0x800; st++) {
        EXPECT_LT(nvme_status_errno((uint16_t)st), 0) << st;
        EXPECT_GT(nvme_status_errno((uint16_t)st), -4096) << st;
        ASSERT_NE(nvme_status_text((uint16_t)st), nullptr);
        EXPECT_STRNE(nvme_status_text((uint16_t)st), "") << st;
    }
}

TEST(Status, FlagsDoNotChangeMeaning)
{
    for (unsigned st = 0; st < 0x800; st++) {
        uint16_t flagged = (uint16_t)(st | 0x7800);
        EXPECT_EQ(nvme_status_errno(flagged), nvme_status_errno((uint16_t)st));
        EXPECT_STREQ(nvme_status_text(flagged), nvme_status_text((uint16_t)st));
    }
}

TEST(Status, DnrForbidsARetry)
{
    for (unsigned st = 0; st < 0x800; st++)
        EXPECT_FALSE(nvme_status_retryable((uint16_t)(st | NVME_STATUS_DNR))) << st;
}

TEST(Status, ErrorsOfTheCommandAreNotRetried)
{
    for (uint16_t st :
         {NVME_ERR_INVALID_OPCODE, NVME_ERR_INVALID_FIELD, NVME_ERR_INVALID_NS, NVME_ERR_LBA_RANGE,
          NVME_ERR_CAPACITY, NVME_ERR_INVALID_PRP_OFFSET, NVME_ERR_RESERVATION})
        EXPECT_FALSE(nvme_status_retryable(st)) << st;
}

TEST(Status, OnlyAConflictMeansThatAnotherHostHasTheNamespace)
{
    for (unsigned st = 0; st < 0x8000; st++)
        EXPECT_EQ(nvme_status_taken((uint16_t)st), (st & 0x7ff) == NVME_ERR_RESERVATION) << st;
}

TEST(Status, TransientErrorsAreRetried)
{
    for (uint16_t st : {NVME_ERR_INTERNAL, NVME_ERR_DATA_TRANSFER, NVME_ERR_NS_NOT_READY,
                        NVME_ERR_WRITE_FAULT, NVME_ERR_UNRECOVERED_READ})
        EXPECT_TRUE(nvme_status_retryable(st)) << st;
}

TEST(Status, OnlyATemporaryStatusWithoutDnrMeansNotYet)
{
    for (uint16_t st : {NVME_ERR_INTERRUPTED, NVME_ERR_NS_NOT_READY, NVME_ERR_ANA_INACCESSIBLE,
                        NVME_ERR_ANA_TRANSITION}) {
        EXPECT_TRUE(nvme_status_not_yet(st)) << st;
        EXPECT_FALSE(nvme_status_not_yet((uint16_t)(st | NVME_STATUS_DNR))) << st;
    }
    for (uint16_t st : {NVME_ERR_INTERNAL, NVME_ERR_UNRECOVERED_READ, NVME_ERR_ABORT_REQUESTED,
                        NVME_ERR_ANA_LOST})
        EXPECT_FALSE(nvme_status_not_yet(st)) << st;
}

TEST(Status, CallersCanDistinguishTheErrnos)
{
    EXPECT_EQ(nvme_status_errno(NVME_ERR_CAPACITY), -ENOSPC);
    EXPECT_EQ(nvme_status_errno(NVME_ERR_UNRECOVERED_READ), -EIO);
    EXPECT_EQ(nvme_status_errno(NVME_ERR_INVALID_NS), -ENODEV);
    EXPECT_EQ(nvme_status_errno(NVME_ERR_INVALID_OPCODE), -ENOTSUP);
    EXPECT_EQ(nvme_status_errno(0x083), -EACCES) << "reservation conflict: not in use here";
    EXPECT_EQ(nvme_status_errno(0x020), -EROFS);
}

TEST(Status, TextNamesTheError)
{
    EXPECT_NE(std::string(nvme_status_text(NVME_ERR_LBA_RANGE)).find("LBA"), std::string::npos);
}

} // namespace
