/* SPDX-License-Identifier: BSD-2-Clause */
/* The status table. */
#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "blockdev/nvme/nvme.h"

namespace
{

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
