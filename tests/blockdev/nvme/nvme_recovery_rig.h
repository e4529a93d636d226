/* SPDX-License-Identifier: BSD-2-Clause */
/* A device over a controller that fails in chosen ways. */
#ifndef TESTS_BLOCKDEV_NVME_NVME_RECOVERY_RIG_H
#define TESTS_BLOCKDEV_NVME_NVME_RECOVERY_RIG_H

#include <algorithm>
#include <chrono>
#include <random>

#include "tests/blockdev/nvme/nvme_fake_test.h"

using Bytes = std::vector<uint8_t>;

constexpr unsigned ADMIN_MS = 200, IO_MS = 40;
constexpr unsigned SLACK_MS = 5000; /* of a loaded machine with sanitizers, on top of a bound */

inline uint64_t elapsed_ms(std::chrono::steady_clock::time_point since)
{
    auto d = std::chrono::steady_clock::now() - since;

    return (uint64_t)std::chrono::duration_cast<std::chrono::milliseconds>(d).count();
}

/* A device with one queue of four entries, something read from it already. */
class Recovery : public FakeTest
{
  public:
    void SetUp() override
    {
        auto *words = reinterpret_cast<uint64_t *>(fake.media.get());
        std::generate(words, words + (1 << 17), std::mt19937_64(1)); /* the MiB that is read */
        opts.admin_timeout_ms = ADMIN_MS;
        opts.io_timeout_ms = IO_MS;
        ASSERT_EQ(open(), 0);
        ASSERT_EQ(bd_nvme_open(c, 1, 1, 4, &dev), 0);
        ASSERT_TRUE(reads(0, 8192));
        fake.seen.clear();
        fake.sent.clear();
        fake.enables = 0;
    }

    void TearDown() override
    {
        FakeTest::TearDown();
        EXPECT_TRUE(fake.closed);
    }

    bool reads(uint64_t offset, size_t len)
    {
        Bytes back(len);
        return bd_read(dev, offset, back.data(), len) == 0 &&
               memcmp(back.data(), &fake.media[offset], len) == 0;
    }

    /* Several wraps of both rings, whose entries must be where the controller looks for them. */
    void expect_works()
    {
        for (unsigned i = 0; i < 50; i++)
            ASSERT_TRUE(reads(i * 12288, 12288)) << i;
        Bytes data(65536, 0x5a);
        ASSERT_EQ(bd_write(dev, 1 << 20, data.data(), data.size(), 0), 0);
        EXPECT_EQ(memcmp(&fake.media[1 << 20], data.data(), data.size()), 0);
    }

    struct Steps {
        unsigned aborts, deletions, enables;
    };

    void expect_steps(Steps want)
    {
        EXPECT_EQ(fake.count(NVME_ADMIN_ABORT), want.aborts);
        EXPECT_EQ(fake.count(NVME_ADMIN_DELETE_SQ), want.deletions);
        EXPECT_EQ(fake.count(NVME_ADMIN_DELETE_CQ), want.deletions);
        EXPECT_EQ(fake.enables, want.enables);
    }

    /* A read meets the failure and succeeds, after these steps. */
    void expect_recovery(Steps want)
    {
        EXPECT_TRUE(reads(4096, 4096));
        expect_steps(want);
        expect_works();
    }

    /* Commands complete again. */
    void lose_none()
    {
        fake.loses = [](const nvme_sqe &) { return false; };
    }

    /* Loses the next n commands with this opcode. */
    void lose(int opcode, unsigned n)
    {
        fake.loses = [opcode, n](const nvme_sqe &sqe) mutable {
            return sqe.opcode == opcode && n > 0 && n--;
        };
    }

    void fatal_at(int opcode)
    {
        fake.loses = [this, opcode](const nvme_sqe &sqe) {
            if (sqe.opcode == opcode)
                fake.csts |= NVME_CSTS_FATAL;
            return sqe.opcode == opcode;
        };
    }

    /* Everything ends with an error, soon, and nothing of it is left in the controller. */
    void expect_given_up(bool settled)
    {
        Bytes buf(8192);
        auto start = std::chrono::steady_clock::now();
        EXPECT_EQ(bd_read(dev, 0, buf.data(), buf.size()), -EIO);
        EXPECT_LT(elapsed_ms(start), bd_nvme_command_ms(dev) + SLACK_MS);
        EXPECT_EQ(nvme_ctrlr_settled(c), settled);
        EXPECT_FALSE(nvme_ctrlr_alive(c));
        size_t sent = fake.seen.size() + fake.sent.size();
        start = std::chrono::steady_clock::now();
        EXPECT_EQ(bd_write(dev, 0, buf.data(), 4096, BD_FUA), -EIO);
        EXPECT_EQ(bd_flush(dev), -EIO);
        EXPECT_EQ(nvme_ctrlr_reset(c, nvme_ctrlr_epoch(c)), -EIO);
        EXPECT_LT(elapsed_ms(start), SLACK_MS);
        EXPECT_EQ(fake.seen.size() + fake.sent.size(), sent) << "something was sent";
    }

    using FakeTest::fake;
};

#endif
