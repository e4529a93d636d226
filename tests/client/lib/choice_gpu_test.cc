/* SPDX-License-Identifier: BSD-2-Clause */
// Transfers of GPU memory whose path the library chooses: whichever it is, the bytes are right.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "client/lib/connection.h"
#include "tests/client/lib/gpu_mount.h"

namespace
{

constexpr size_t kFile = 16u << 20, kPiece = 4096;

class ChoiceGpu : public GpuMountedTest
{
  protected:
    void set_up() override
    {
        ASSERT_NO_FATAL_FAILURE(mount("gpu=require,deadline=5000"));
        ASSERT_NO_FATAL_FAILURE(create_file("file", file_.data(), kFile));
        ASSERT_EQ(connection_open(mounted_->mountpoint().c_str(), &g_), 0) << gpunvme_error();
        ASSERT_EQ(buffer_alloc(g_, kFile, &b_), 0) << gpunvme_error();
    }
    void let_go() override { connection_close(g_); }
    std::string random_bytes()
    {
        std::string bytes(kFile, '\0');
        for (size_t i = 0; i < kFile; i += 8)
            *reinterpret_cast<uint64_t *>(&bytes[i]) = rng_();
        return bytes;
    }
    // A path was taken, for the reason.
    void took(const gpunvme_result &r)
    {
        if (r.path == GPUNVME_PATH_GPU)
            by_gpu_++;
        else if (r.path == GPUNVME_PATH_BOUNCE && *r.why)
            bounced_++;
    }
    bool took_both() const { return by_gpu_ && bounced_; }
    std::string memory()
    {
        std::string bytes(kFile, '\0');
        EXPECT_EQ(buffer_copy_out(b_, 0, &bytes[0], kFile), 0) << gpunvme_error();
        return bytes;
    }
    // Reads the file by calls of a short and of a long length in turn.
    void read_by_both(size_t len, size_t longer,
                      const std::function<ssize_t(size_t at, size_t n, gpunvme_result *r)> &read)
    {
        ASSERT_EQ(cudaMemset(buffer_addr(b_), 0x5a, kFile), cudaSuccess);
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        for (size_t at = 0, n = len; at < kFile; at += n, n = len + longer - n) {
            gpunvme_result r;
            n = std::min(n, kFile - at);
            ASSERT_EQ(read(at, n, &r), static_cast<ssize_t>(n)) << gpunvme_error();
            took(r);
        }
        ASSERT_EQ(memory(), file_);
        EXPECT_TRUE(took_both()) << by_gpu_ << " " << bounced_;
    }

    std::mt19937_64 rng_{1};
    std::string file_ = random_bytes();
    connection *g_ = nullptr;
    gpunvme_buffer *b_ = nullptr;
    size_t by_gpu_ = 0, bounced_ = 0;
};

TEST_F(ChoiceGpu, ReadsAreRightByBothPaths)
{
    read_by_both(64u << 10, 256u << 10, [&](size_t at, size_t n, gpunvme_result *r) {
        return transfer_read(b_, fd_, at, at, n, r);
    });
}

TEST_F(ChoiceGpu, ListsAreRightByBothPaths)
{
    read_by_both(16u << 10, 64u << 10, [&](size_t at, size_t n, gpunvme_result *r) {
        std::vector<gpunvme_piece> list(n / kPiece);
        for (size_t i = 0; i < list.size(); i++)
            list[i] = gpunvme_piece{at + i * kPiece, at + i * kPiece, kPiece, 0};
        ssize_t sum = readv_buffer(b_, fd_, list.data(), list.size(), r);
        for (const gpunvme_piece &p : list)
            sum += p.result;
        return sum;
    });
}

TEST_F(ChoiceGpu, WritesAreRightByBothPaths)
{
    file_ = random_bytes();
    ASSERT_EQ(buffer_copy_in(b_, 0, file_.data(), kFile), 0) << gpunvme_error();
    for (size_t at = 0, n = 8u << 10; at < kFile; at += n, n = (72u << 10) - n) {
        gpunvme_result r;
        n = std::min(n, kFile - at);
        ASSERT_EQ(transfer_write(b_, fd_, at, at, n, &r), static_cast<ssize_t>(n))
            << gpunvme_error();
        took(r);
    }
    std::string cached(kFile, '\0');
    ASSERT_EQ(pread(fd_, &cached[0], kFile, 0), static_cast<ssize_t>(kFile));
    ASSERT_EQ(cached, file_);
    EXPECT_TRUE(took_both()) << by_gpu_ << " " << bounced_;
}

// The application does not know which of its transfers bounce.
TEST_F(ChoiceGpu, BouncedReadsBreakNoCapture)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    for (bool same_thread : {false, true}) {
        for (size_t len : {size_t{4096}, size_t{64} << 10, size_t{8} << 20}) {
            struct gpunvme_options options = {GPUNVME_PATH_BOUNCE, 4, 1u << 20, 0, 0, 0, 0};
            ASSERT_EQ(bounce_set_options(g_, &options), 0); // without staging
            ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
            ssize_t n = 0;
            auto read = [&] { n = transfer_read(b_, fd_, 0, 0, len, nullptr); };
            if (same_thread)
                read();
            else
                std::thread(read).join();
            EXPECT_EQ(n, static_cast<ssize_t>(len)) << gpunvme_error();
            EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess) << len << same_thread;
            cudaGraphDestroy(graph);
            EXPECT_EQ(memory().compare(0, len, file_, 0, len), 0);
        }
    }
    cudaStreamDestroy(stream);
}

} // namespace
