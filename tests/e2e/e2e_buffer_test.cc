// What a controller moves to and from one large buffer, byte by byte: every page of the buffer's
// table of PRP entries is used, and lists that start anywhere in it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "gpunvme/gpunvme.h"
#include "tests/e2e/content.h"
#include "tests/e2e/mounted.h"

namespace
{

constexpr uint64_t kImage = 384u << 20;
constexpr size_t kLen = 64u << 20; // 32 pages of the table
constexpr size_t kPage = 4096;
constexpr uint64_t kSeed = 7;

// A mount, a file of kLen bytes in it, and a buffer with room for it at any offset in a page.
class LargeBuffer : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        if (!why_no_mount().empty())
            GTEST_SKIP() << why_no_mount();
        ASSERT_TRUE(mounted_.mount("executor=cpu")) << mounted_.log();
        want_.resize(kLen);
        content_fill(kSeed, 0, want_.data(), kLen);
        fd_ = open(mounted_.path("file").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
        ASSERT_GE(fd_, 0) << strerror(errno);
        ASSERT_EQ(pwrite(fd_, want_.data(), kLen, 0), (ssize_t)kLen) << strerror(errno);
        ASSERT_EQ(fsync(fd_), 0) << strerror(errno);
        ASSERT_EQ(gpunvme_connect(mounted_.path("").c_str(), &g_), 0) << gpunvme_error();
        ASSERT_EQ(gpunvme_alloc(g_, kLen + 2 * kPage, &b_), 0) << gpunvme_error();
        memset(memory(), 0xa5, kLen + 2 * kPage);
    }
    void TearDown() override
    {
        if (g_)
            gpunvme_disconnect(g_);
        if (fd_ >= 0)
            close(fd_);
        if (want_.empty())
            return;
        std::string output;
        EXPECT_TRUE(mounted_.unmount()) << mounted_.log();
        EXPECT_EQ(mounted_.fsck(&output), 0) << output;
    }
    uint8_t *memory() const
    {
        return static_cast<uint8_t *>(gpunvme_buffer_addr(b_));
    }
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
    gpunvme *g_ = nullptr;
    gpunvme_buffer *b_ = nullptr;
};

TEST_F(LargeBuffer, IsReadInStepsFromAnyPageAndInsideOne)
{
    for (size_t at : {size_t(0), kPage, size_t(512)}) {
        for (size_t step : {size_t(2) << 20, (size_t(1) << 20) + 7 * kPage}) {
            memset(memory(), 0xa5, kLen + 2 * kPage);
            for (size_t i = 0; i < kLen; i += step) {
                size_t n = std::min(step, kLen - i);
                gpunvme_result result;

                ASSERT_EQ(gpunvme_read(b_, fd_, at + i, i, n, &result), (ssize_t)n);
                ASSERT_EQ(result.path, (uint32_t)GPUNVME_PATH_GPU) << result.why;
            }
            EXPECT_EQ(wrong_pages(at), 0u) << "at " << at << ", steps of " << step;
        }
    }
}

TEST_F(LargeBuffer, IsReadByAListOfPieces)
{
    constexpr size_t kPiece = 64 << 10;

    for (size_t at : {size_t(0), kPage, size_t(512)}) {
        std::vector<gpunvme_piece> pieces;

        for (size_t i = kLen; i > 0; i -= kPiece) // not in the file's order
            pieces.push_back({.file_offset = i - kPiece,
                              .buffer_offset = at + i - kPiece,
                              .len = kPiece,
                              .result = 0});
        memset(memory(), 0xa5, kLen + 2 * kPage);
        ASSERT_EQ(gpunvme_readv(b_, fd_, pieces.data(), pieces.size(), nullptr), 0)
            << gpunvme_error();
        for (const gpunvme_piece &p : pieces)
            ASSERT_EQ(p.result, (int32_t)kPiece);
        EXPECT_EQ(wrong_pages(at), 0u) << "at " << at;
    }
}

// Written by the executor's queues, and read back by the daemon's own after a new mount.
TEST_F(LargeBuffer, IsWrittenInStepsAndAtRestWhatItWas)
{
    size_t at = 3 * 512, wrong = 0;
    std::vector<uint8_t> got(kLen);

    content_fill(kSeed + 1, 0, want_.data(), kLen);
    memcpy(memory() + at, want_.data(), kLen);
    for (size_t i = 0; i < kLen; i += 2u << 20)
        ASSERT_EQ(gpunvme_write(b_, fd_, at + i, i, 2u << 20, nullptr), (ssize_t)(2u << 20));
    ASSERT_EQ(fsync(fd_), 0) << strerror(errno);
    EXPECT_EQ(wrong_pages(at), 0u) << "of the memory that was written";
    gpunvme_disconnect(g_);
    g_ = nullptr;
    close(fd_);
    ASSERT_TRUE(mounted_.unmount()) << mounted_.log();
    ASSERT_TRUE(mounted_.mount("executor=cpu")) << mounted_.log();
    fd_ = open(mounted_.path("file").c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_EQ(pread(fd_, got.data(), kLen, 0), (ssize_t)kLen) << strerror(errno);
    for (size_t i = 0; i < kLen; i += kPage)
        wrong += memcmp(&got[i], &want_[i], kPage) != 0;
    EXPECT_EQ(wrong, 0u) << "of the file";
}

} // namespace
