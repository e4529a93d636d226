/* SPDX-License-Identifier: BSD-2-Clause */
/* What bd_submit() refuses before a device sees it. */
#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

#include "blockdev/bdev.h"

namespace
{

struct Counting {
    bd_dev dev{};
    size_t submitted = 0;
};

int count_submit(bd_dev *dev, bd_io *, size_t n)
{
    reinterpret_cast<Counting *>(dev)->submitted += n;
    return 0;
}

class Bdev : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        ops.submit = count_submit;
        c.dev.ops = &ops;
        c.dev.info.bytes = 1 << 20;
        c.dev.info.lba_size = 4096;
    }

    bd_ops ops{};
    Counting c;
    std::vector<char> buf = std::vector<char>(8192);
};

TEST_F(Bdev, AcceptsTheWholeDevice)
{
    EXPECT_EQ(bd_write_zeroes(&c.dev, 0, 1 << 20), 0);
    EXPECT_EQ(bd_read(&c.dev, (1 << 20) - 4096, buf.data(), 4096), 0);
    EXPECT_EQ(c.submitted, 2u);
}

TEST_F(Bdev, RefusesUnalignedTransfers)
{
    EXPECT_EQ(bd_read(&c.dev, 512, buf.data(), 4096), -EINVAL);
    EXPECT_EQ(bd_read(&c.dev, 0, buf.data(), 4095), -EINVAL);
    EXPECT_EQ(bd_write(&c.dev, 4097, buf.data(), 4096, 0), -EINVAL);
    EXPECT_EQ(bd_discard(&c.dev, 0, 1), -EINVAL);
    EXPECT_EQ(c.submitted, 0u);
}

TEST_F(Bdev, RefusesTransfersPastTheEnd)
{
    EXPECT_EQ(bd_read(&c.dev, 1 << 20, buf.data(), 4096), -EINVAL);
    EXPECT_EQ(bd_read(&c.dev, (1 << 20) - 4096, buf.data(), 8192), -EINVAL);
    EXPECT_EQ(bd_write_zeroes(&c.dev, 0, (1 << 20) + 4096), -EINVAL);
    EXPECT_EQ(c.submitted, 0u);
}

TEST_F(Bdev, RefusesRangesThatOverflow)
{
    EXPECT_EQ(bd_discard(&c.dev, UINT64_MAX - 4095, 8192), -EINVAL);
    EXPECT_EQ(bd_discard(&c.dev, 4096, UINT64_MAX - 4095), -EINVAL);
    EXPECT_EQ(bd_write_zeroes(&c.dev, 1ull << 63, 1ull << 63), -EINVAL);
    EXPECT_EQ(c.submitted, 0u);
}

TEST_F(Bdev, RefusesUnknownFlags)
{
    EXPECT_EQ(bd_write(&c.dev, 0, buf.data(), 4096, 4), -EINVAL);
    bd_io io{};
    io.op = BD_FLUSH;
    io.flags = BD_FUA;
    EXPECT_EQ(bd_submit(&c.dev, &io, 1), -EINVAL);
    EXPECT_EQ(c.submitted, 0u);
}

TEST_F(Bdev, ReadOnlyDeviceAcceptsOnlyReads)
{
    c.dev.info.read_only = true;
    EXPECT_EQ(bd_write(&c.dev, 0, buf.data(), 4096, 0), -EROFS);
    EXPECT_EQ(bd_write_zeroes(&c.dev, 0, 4096), -EROFS);
    EXPECT_EQ(bd_discard(&c.dev, 0, 4096), -EROFS);
    EXPECT_EQ(bd_read(&c.dev, 0, buf.data(), 4096), 0);
    EXPECT_EQ(bd_flush(&c.dev), 0);
}

/* A permit that counts how often it is asked. */
struct Permit {
    bd_permit base{};
    int answer = 0;
    unsigned asked = 0;
};

int permit_answer(bd_permit *permit, bool wait)
{
    Permit *g = reinterpret_cast<Permit *>(permit);

    EXPECT_TRUE(wait);
    g->asked++;
    return g->answer;
}

TEST_F(Bdev, ThePermitStopsWhatChangesTheDevice)
{
    Permit g;
    g.base.may_write = permit_answer;
    c.dev.permit = &g.base;
    EXPECT_EQ(bd_write(&c.dev, 0, buf.data(), 4096, 0), 0);
    EXPECT_EQ(g.asked, 1u);
    EXPECT_EQ(c.submitted, 1u);
    g.answer = -EIO;
    EXPECT_EQ(bd_write(&c.dev, 0, buf.data(), 4096, BD_FUA), -EIO);
    EXPECT_EQ(bd_write_zeroes(&c.dev, 0, 4096), -EIO);
    EXPECT_EQ(bd_discard(&c.dev, 0, 4096), -EIO);
    EXPECT_EQ(c.submitted, 1u);
    EXPECT_EQ(bd_read(&c.dev, 0, buf.data(), 4096), 0);
    EXPECT_EQ(bd_flush(&c.dev), 0);
    EXPECT_EQ(bd_write(&c.dev, 0, buf.data(), 4096, BD_ALWAYS), 0);
    EXPECT_EQ(c.submitted, 4u);
    EXPECT_EQ(g.asked, 4u);
}

TEST_F(Bdev, ThePermitStopsTheWholeBatch)
{
    Permit g;
    g.base.may_write = permit_answer;
    g.answer = -EIO;
    c.dev.permit = &g.base;
    bd_io ios[2]{};
    ios[0].op = BD_READ;
    ios[1].op = BD_WRITE;
    for (auto &io : ios) {
        io.len = 4096;
        io.buf = buf.data();
    }
    EXPECT_EQ(bd_submit(&c.dev, ios, 2), -EIO);
    EXPECT_EQ(ios[0].error, -ECANCELED);
    EXPECT_EQ(ios[1].error, -EIO);
    EXPECT_EQ(c.submitted, 0u);
}

TEST_F(Bdev, LocksAreOneOnlyIfAllOfThemIsEqual)
{
    uint64_t id = bd_lock_id(BD_LOCK_FILE, 1, 2);
    EXPECT_NE(id, 0u);
    EXPECT_EQ(bd_lock_id(BD_LOCK_FILE, 1, 2), id);
    EXPECT_NE(bd_lock_id(BD_LOCK_FILE, 2, 1), id);
    EXPECT_NE(bd_lock_id(BD_LOCK_FILE, 1, 3), id);
    EXPECT_NE(bd_lock_id(BD_LOCK_SOCKET, 1, 2), id);
}

TEST_F(Bdev, OneInvalidTransferPreventsAll)
{
    bd_io ios[3]{};
    for (auto &io : ios) {
        io.op = BD_READ;
        io.len = 4096;
        io.buf = buf.data();
    }
    ios[1].offset = 1;
    EXPECT_EQ(bd_submit(&c.dev, ios, 3), -EINVAL);
    EXPECT_EQ(ios[0].error, -ECANCELED);
    EXPECT_EQ(ios[1].error, -EINVAL);
    EXPECT_EQ(ios[2].error, -ECANCELED);
    EXPECT_EQ(c.submitted, 0u);
}

TEST_F(Bdev, AnEmptyBatchSendsNothing)
{
    EXPECT_EQ(bd_submit(&c.dev, nullptr, 0), 0);
    EXPECT_EQ(c.submitted, 0u);
}

} // namespace
