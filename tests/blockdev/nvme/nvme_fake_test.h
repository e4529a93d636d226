/* SPDX-License-Identifier: BSD-2-Clause */
/* FakeTest runs the driver over a fake controller, in which the driver must leave nothing. */
#ifndef TESTS_BLOCKDEV_NVME_NVME_FAKE_TEST_H
#define TESTS_BLOCKDEV_NVME_NVME_FAKE_TEST_H

#include <gtest/gtest.h>

#include <cerrno>

#include "blockdev/bdev.h"
#include "tests/blockdev/nvme/nvme_fake.h"

class FakeTest : public ::testing::Test
{
  protected:
    int open()
    {
        opts.why = &why;
        int rc = nvme_ctrlr_open(&fake.t, &opts, &c);
        if (rc == 0)
            return 0;
        EXPECT_STRNE(why.text, "") << "a failure must be explained";
        EXPECT_TRUE(fake.maps.empty()) << "memory left in the controller";
        EXPECT_FALSE(fake.closed) << "on failure the transport stays the caller's";
        return rc;
    }

    void close()
    {
        if (dev)
            bd_close(dev);
        if (c)
            nvme_ctrlr_close(c);
        dev = nullptr;
        c = nullptr;
    }

    void TearDown() override
    {
        close();
        EXPECT_TRUE(fake.maps.empty()) << "memory left in the controller";
        EXPECT_EQ(fake.mistakes, 0u) << "of the driver, with queues";
    }

    Fake fake;
    nvme_opts opts{};
    nvme_ctrlr *c = nullptr;
    bd_dev *dev = nullptr;
    struct nvme_ns_info ns {
    };
    struct reason why = {};
};

#endif
