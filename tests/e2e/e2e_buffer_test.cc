/* SPDX-License-Identifier: BSD-2-Clause */
// What a controller moves to and from one large buffer, byte by byte: every page of the buffer's
// table of PRP entries is used, and lists that start anywhere in it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "client/lib/connection.h"
#include "tests/e2e/content.h"
#include "tests/e2e/mounted.h"
#include "tests/rounds.h"

namespace
{

constexpr uint64_t kImage = 384u << 20;
constexpr size_t kUsual = (kSanitized ? 16u : 64u) << 20; // 8 or 32 pages of the table
// A test that runs this one over a slower drive sets GPUNVME_TEST_SMALL in the environment.
const size_t kLen = getenv("GPUNVME_TEST_SMALL") ? 16u << 20 : kUsual;
constexpr size_t kPage = 4096;
constexpr uint64_t kSeed = 7;

// How the mount runs: with executor=cpu_staged the drive is not given the memory of buffers.
struct Way {
    const char *name, *options;
    bool staged;
    uint32_t tier;
};

// A mount, a file of kLen bytes in it, and a buffer with room for it at any offset in a page.
class LargeBuffer : public MountingTest, public ::testing::WithParamInterface<Way>
{
  protected:
    void set_up() override
    {
        ASSERT_TRUE(mounted_.mount(GetParam().options)) << mounted_.log();
        want_.resize(kLen);
        content_fill(kSeed, 0, want_.data(), kLen);
        fd_ = open(mounted_.path("file").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
        ASSERT_GE(fd_, 0) << strerror(errno);
        ASSERT_EQ(pwrite(fd_, want_.data(), kLen, 0), (ssize_t)kLen) << strerror(errno);
        ASSERT_EQ(fsync(fd_), 0) << strerror(errno);
        ASSERT_EQ(connection_open(mounted_.path("").c_str(), &g_), 0) << gpunvme_error();
        uint64_t regions = stats().dma_regions;
        ASSERT_EQ(buffer_alloc(g_, kLen + 2 * kPage, &b_), 0) << gpunvme_error();
        EXPECT_EQ(stats().dma_regions, regions + !GetParam().staged) << "what is staged has none";
        memset(memory(), 0xa5, kLen + 2 * kPage);
    }
    void TearDown() override
    {
        if (g_)
            connection_close(g_);
        if (fd_ >= 0)
            close(fd_);
        if (want_.empty())
            return;
        expect_good_end(&mounted_);
    }
    gpunvme_ioc_stats stats() const
    {
        gpunvme_ioc_stats stats = {};

        EXPECT_EQ(gpunvme_stats(connection_fd(g_), &stats), 0) << gpunvme_error();
        return stats;
    }
    // By the executor, and staged or not as the mount is.
    static void expect_path(const gpunvme_result &result)
    {
        EXPECT_EQ(result.path, (uint32_t)GPUNVME_PATH_GPU) << result.why;
        EXPECT_EQ(result.staged, GetParam().staged);
    }
    // Bytes that the mount says it has staged, of those that it moved by the executor.
    void expect_staged(uint64_t read, uint64_t written) const
    {
        gpunvme_ioc_stats now = stats();

        EXPECT_EQ(now.gpu_read_bytes, read);
        EXPECT_EQ(now.gpu_written_bytes, written);
        EXPECT_EQ(now.gpu_staged_read_bytes, GetParam().staged ? read : 0);
        EXPECT_EQ(now.gpu_staged_written_bytes, GetParam().staged ? written : 0);
        EXPECT_EQ(now.bounce_transfers, 0u);
    }
    uint8_t *memory() const { return static_cast<uint8_t *>(buffer_addr(b_)); }
    // Pages of the buffer from `at` on that differ from the file.
    size_t wrong_pages(size_t at) const
    {
        size_t wrong = 0;

        for (size_t i = 0; i < kLen; i += kPage)
            wrong += memcmp(memory() + at + i, &want_[i], kPage) != 0;
        return wrong;
    }

    Mounted mounted_{kImage};
    std::vector<uint8_t> want_;
    int fd_ = -1;
    connection *g_ = nullptr;
    gpunvme_buffer *b_ = nullptr;
};

TEST_P(LargeBuffer, IsReadInStepsFromAnyPageAndInsideOne)
{
    for (size_t at : {size_t(0), kPage, size_t(512)}) {
        for (size_t step : {size_t(2) << 20, (size_t(1) << 20) + 7 * kPage}) {
            memset(memory(), 0xa5, kLen + 2 * kPage);
            for (size_t i = 0; i < kLen; i += step) {
                size_t n = std::min(step, kLen - i);
                gpunvme_result result;

                ASSERT_EQ(transfer_read(b_, fd_, at + i, i, n, &result), (ssize_t)n);
                expect_path(result);
            }
            EXPECT_EQ(wrong_pages(at), 0u) << "at " << at << ", steps of " << step;
        }
    }
    expect_staged(6 * kLen, 0);
}

TEST_P(LargeBuffer, TierReflectsTheMemoryThatTheDriveReaches)
{
    gpunvme_ioc_info info;

    ASSERT_EQ(gpunvme_info(connection_fd(g_), &info), 0) << gpunvme_error();
    EXPECT_EQ(info.tier, GetParam().tier);
    EXPECT_EQ(std::string(info.tier_note).find("staged") != std::string::npos, GetParam().staged)
        << info.tier_note;
}

TEST_P(LargeBuffer, IsReadByAListOfPieces)
{
    constexpr size_t kPiece = 64 << 10;

    for (size_t at : {size_t(0), kPage, size_t(512)}) {
        std::vector<gpunvme_piece> pieces;
        gpunvme_result result;

        for (size_t i = kLen; i > 0; i -= kPiece) // not in the file's order
            pieces.push_back({.file_offset = i - kPiece,
                              .buffer_offset = at + i - kPiece,
                              .len = kPiece,
                              .result = 0});
        memset(memory(), 0xa5, kLen + 2 * kPage);
        ASSERT_EQ(readv_buffer(b_, fd_, pieces.data(), pieces.size(), &result), 0)
            << gpunvme_error();
        expect_path(result);
        for (const gpunvme_piece &p : pieces)
            ASSERT_EQ(p.result, (int32_t)kPiece);
        EXPECT_EQ(wrong_pages(at), 0u) << "at " << at;
    }
    expect_staged(3 * kLen, 0);
}

// Written by the executor's queues, and read back by the daemon's own after a new mount.
TEST_P(LargeBuffer, IsWrittenInStepsAndOtherwiseUnchanged)
{
    size_t at = 3 * 512, wrong = 0;
    std::vector<uint8_t> got(kLen);

    content_fill(kSeed + 1, 0, want_.data(), kLen);
    memcpy(memory() + at, want_.data(), kLen);
    for (size_t i = 0; i < kLen; i += 2u << 20) {
        gpunvme_result result;

        ASSERT_EQ(transfer_write(b_, fd_, at + i, i, 2u << 20, &result), (ssize_t)(2u << 20));
        expect_path(result);
    }
    ASSERT_EQ(fsync(fd_), 0) << strerror(errno);
    EXPECT_EQ(wrong_pages(at), 0u) << "of the memory that was written";
    expect_staged(0, kLen);
    connection_close(g_);
    g_ = nullptr;
    close(fd_);
    ASSERT_TRUE(mounted_.unmount()) << mounted_.log();
    ASSERT_TRUE(mounted_.mount(GetParam().options)) << mounted_.log();
    fd_ = open(mounted_.path("file").c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_EQ(pread(fd_, got.data(), kLen, 0), (ssize_t)kLen) << strerror(errno);
    for (size_t i = 0; i < kLen; i += kPage)
        wrong += memcmp(&got[i], &want_[i], kPage) != 0;
    EXPECT_EQ(wrong, 0u) << "of the file";
}

// Any byte of the file to any byte of the buffer, holes and the file's end among them.
TEST_P(LargeBuffer, ReceivesAnyPartOfAFileWithHoles)
{
    ASSERT_EQ(ftruncate(fd_, kLen - 777), 0);
    for (size_t hole : {size_t(1) << 20, (size_t(9) << 20) + kPage}) {
        ASSERT_EQ(fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, hole, 3 * kPage), 0);
        memset(&want_[hole], 0, 3 * kPage);
    }
    for (size_t from : {size_t(1), (size_t(1) << 20) - 3, kLen - 70000}) {
        for (size_t len : {size_t(1), size_t(5000), kLen / 3}) {
            size_t n = std::min(len, kLen - 777 - from), at = 13;

            memset(memory(), 0xa5, n + 2 * at);
            ASSERT_EQ(transfer_read(b_, fd_, at, from, len, nullptr), (ssize_t)n)
                << gpunvme_error();
            EXPECT_EQ(memcmp(memory() + at, &want_[from], n), 0) << len << " from " << from;
            EXPECT_EQ(memory()[at - 1], 0xa5);
            EXPECT_EQ(memory()[at + n], 0xa5);
        }
    }
}

// Buffers that the drive reaches, as long as it keeps a region for each.
class ManyBuffers : public LargeBuffer
{
  protected:
    // A table that a test can fill, as of vfio-user servers that keep few.
    static bool has_few_regions(const gpunvme_ioc_stats &stats)
    {
        return stats.dma_region_limit && stats.dma_region_limit <= 256;
    }
    // The bytes of the file from `from` on.
    void expect_read(gpunvme_buffer *b, size_t from, size_t len)
    {
        memset(buffer_addr(b), 0xa5, len);
        ASSERT_EQ(transfer_read(b, fd_, 0, from, len, nullptr), (ssize_t)len) << gpunvme_error();
        EXPECT_EQ(memcmp(buffer_addr(b), &want_[from], len), 0) << from;
    }
};

// More than SPDK keeps regions; the pages of the file are read into them in another order.
TEST_P(ManyBuffers, SmallOnesShareRegionsAndAreNotStaged)
{
    constexpr size_t kCount = 200;
    gpunvme_ioc_stats before = stats();
    std::vector<gpunvme_buffer *> buffers(kCount, nullptr);

    for (auto *&b : buffers)
        ASSERT_EQ(buffer_alloc(g_, kPage, &b), 0) << gpunvme_error();
    if (has_few_regions(before)) {
        EXPECT_LE(stats().dma_regions, before.dma_regions + 1);
    }
    for (size_t i = 0; i < kCount; i++)
        ASSERT_NO_FATAL_FAILURE(expect_read(buffers[i], i * 7 % kCount * kPage, kPage)) << i;
    for (size_t i = 0; i < kCount; i++) {
        const uint8_t *want = &want_[i * 7 % kCount * kPage];
        EXPECT_EQ(memcmp(buffer_addr(buffers[i]), want, kPage), 0) << i;
        EXPECT_EQ(buffer_unregister(buffers[i]), 0);
    }
    EXPECT_EQ(stats().gpu_staged_read_bytes, before.gpu_staged_read_bytes);
    EXPECT_EQ(stats().dma_regions, before.dma_regions);
}

// Those beyond its regions are staged, and no longer when there is room.
TEST_P(ManyBuffers, FillTheTableOfRegionsAndLeaveIt)
{
    constexpr size_t kPiece = 256 << 10; // too large to share a region
    gpunvme_ioc_stats before, full, after;
    std::vector<gpunvme_buffer *> buffers;

    ASSERT_EQ(gpunvme_stats(connection_fd(g_), &before), 0);
    if (!has_few_regions(before))
        GTEST_SKIP() << before.dma_region_limit << " regions (0: no limit is known)";
    for (size_t i = 0; i < before.dma_region_limit + 8; i++) {
        buffers.push_back(nullptr);
        ASSERT_EQ(buffer_alloc(g_, kPiece, &buffers.back()), 0) << i << ": " << gpunvme_error();
        ASSERT_NO_FATAL_FAILURE(expect_read(buffers.back(), kPiece, kPiece)) << i;
    }
    ASSERT_EQ(gpunvme_stats(connection_fd(g_), &full), 0);
    EXPECT_LE(full.dma_regions, before.dma_region_limit);
    EXPECT_GE(full.dma_regions, before.dma_region_limit - before.dma_regions);
    EXPECT_GT(full.gpu_staged_read_bytes, 0u);
    EXPECT_NE(mounted_.log().find("DMA regions are in use"), std::string::npos) << mounted_.log();
    for (auto *b : buffers)
        buffer_unregister(b);
    ASSERT_EQ(buffer_alloc(g_, kPiece, &buffers[0]), 0) << gpunvme_error();
    ASSERT_NO_FATAL_FAILURE(expect_read(buffers[0], kPiece, kPiece));
    ASSERT_EQ(gpunvme_stats(connection_fd(g_), &after), 0);
    EXPECT_EQ(after.dma_regions, before.dma_regions + 1);
    EXPECT_EQ(after.gpu_staged_read_bytes, full.gpu_staged_read_bytes) << "there is room again";
    buffer_unregister(buffers[0]);
}

const Way kWays[] = {
    {"Reached", "executor=cpu", false, has_peer_memory() ? 2u : 1u},
    {"Tier1", "executor=cpu_staged", true, 1},
    {"Tier0", "executor=cpu_staged,doorbells=cpu", true, 0},
    {"Tier1LeastMdts", "executor=cpu_staged,sim=mdts:8192", true, 1},
};

INSTANTIATE_TEST_SUITE_P(Mounts, LargeBuffer, ::testing::ValuesIn(kWays),
                         [](const ::testing::TestParamInfo<Way> &i) {
                             return std::string(i.param.name);
                         });
INSTANTIATE_TEST_SUITE_P(Mounts, ManyBuffers, ::testing::Values(kWays[0]),
                         [](const ::testing::TestParamInfo<Way> &i) {
                             return std::string(i.param.name);
                         });

} // namespace
