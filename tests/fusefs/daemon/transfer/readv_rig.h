/* SPDX-License-Identifier: BSD-2-Clause */
// Batches of reads of a file with a hole, for the suites of READV.
#ifndef TESTS_DAEMON_READV_RIG_H
#define TESTS_DAEMON_READV_RIG_H

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "tests/fusefs/daemon/rig_test.h"

constexpr uint64_t kBytes = 4u << 20, kHole = 1u << 20, kHoleLength = 300000;
constexpr uint64_t kPieces = 40000; // more than the engine takes at once

class Readv : public RigTest
{
  protected:
    void open(const rig_config &config = {})
    {
        ASSERT_NO_FATAL_FAILURE(open_rig(config));
        ASSERT_EQ(rig_register(rig_, kBytes, 0, &buffer_), 0);
        ASSERT_EQ(rig_register_list(rig_, kPieces * sizeof(gpunvme_piece), 0, &list_), 0);
        content_.resize(kBytes - 777);
        for (unsigned char &c : content_)
            c = static_cast<unsigned char>(random_());
        std::fill_n(content_.begin() + kHole, kHoleLength, 0);
        uint64_t rest = kHole + kHoleLength;
        ASSERT_EQ(rig_write_file(rig_, 0, content_.data(), kHole), 0);
        ASSERT_EQ(rig_write_file(rig_, rest, &content_[rest], content_.size() - rest), 0);
    }
    void TearDown() override
    {
        rig_forget(&list_);
        RigTest::TearDown();
    }
    void fail(sim_fault_kind kind, uint16_t status, unsigned skip, unsigned times)
    {
        ASSERT_EQ(rig_fail(rig_, kind, kRead, status, skip, times), 0);
    }
    // Reads the first `count` pieces; the batch itself succeeds.
    gpunvme_ioc_readv read_batch(uint64_t count, uint32_t flags = 0)
    {
        gpunvme_ioc_readv v = request(count, flags);
        EXPECT_EQ(rig_readv(rig_, 0, &v), 0);
        return v;
    }
    // How many of the first hundred pieces have the error; the others have their bytes.
    unsigned count_failed(int error)
    {
        unsigned failed = 0;
        for (int i = 0; i < 100; i++) {
            bool has_error = pieces()[i].result == error;
            failed += has_error;
            EXPECT_TRUE(has_error || holds(pieces()[i])) << i;
            EXPECT_TRUE(has_error || pieces()[i].result == expected(pieces()[i])) << i;
        }
        return failed;
    }
    gpunvme_piece *pieces() const { return reinterpret_cast<gpunvme_piece *>(list_.data); }
    gpunvme_ioc_readv request(uint64_t count, uint32_t flags = 0) const
    {
        return list_of(buffer_, list_, count, flags);
    }
    // n reads of `len` bytes each from anywhere, side by side in the buffer.
    void spread(uint64_t n, uint32_t len)
    {
        for (uint64_t i = 0; i < n; i++)
            pieces()[i] = {random_() % content_.size(), i * len % (kBytes - len), len, -1};
        memset(buffer_.data, 0xee, kBytes);
    }
    int32_t expected(const gpunvme_piece &p) const
    {
        uint64_t size = content_.size();
        return static_cast<int32_t>(
            p.file_offset >= size ? 0 : std::min<uint64_t>(p.len, size - p.file_offset));
    }
    bool holds(const gpunvme_piece &p) const
    {
        return p.result == 0 || memcmp(buffer_.data + p.buffer_offset, &content_[p.file_offset],
                                       static_cast<size_t>(p.result)) == 0;
    }
    void expect_pieces(uint64_t n, uint64_t from = 0)
    {
        for (uint64_t i = from; i < n; i++) {
            const gpunvme_piece &p = pieces()[i];
            ASSERT_EQ(p.result, expected(p)) << i << ": " << p.file_offset << "+" << p.len;
            ASSERT_TRUE(holds(p)) << i << ": " << p.file_offset << "+" << p.len;
        }
    }
    uint64_t bytes_of(uint64_t n) const
    {
        uint64_t bytes = 0;
        for (uint64_t i = 0; i < n; i++)
            bytes += static_cast<uint64_t>(std::max(pieces()[i].result, 0));
        return bytes;
    }

    rig_buffer list_ = {};
    std::mt19937_64 random_{4};
};

// Reads are made by the executor; without one, by an engine of the bounce path
// or by copies; and with one also into buffers of the bounce path.
enum class Way { kGpu, kBounce, kCopied, kBeside };

inline rig_config config_of(Way way)
{
    rig_config config = {};

    config.gpu_off = way == Way::kBounce || way == Way::kCopied;
    config.copied = way == Way::kCopied;
    config.bounces = way == Way::kBeside;
    return config;
}

class ReadvWays : public Readv, public ::testing::WithParamInterface<Way>
{
  protected:
    static uint32_t path()
    {
        return GetParam() == Way::kGpu ? GPUNVME_PATH_GPU : GPUNVME_PATH_BOUNCE;
    }
};

inline auto ways()
{
    return ::testing::Values(Way::kGpu, Way::kBounce, Way::kCopied, Way::kBeside);
}

// Several queues exceed the limit of bytes by more.
inline auto ways_of_one_queue()
{
    return ::testing::Values(Way::kGpu, Way::kBounce, Way::kCopied);
}

inline std::string name_of(const ::testing::TestParamInfo<Way> &info)
{
    static const char *const names[] = {"gpu", "bounce", "copied", "beside"};

    return names[static_cast<int>(info.param)];
}

#endif
