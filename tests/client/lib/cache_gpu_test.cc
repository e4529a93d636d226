/* SPDX-License-Identifier: BSD-2-Clause */
// Tests caches on a machine with a GPU: kernels of many warps read through them.
#include <cuda_runtime_api.h>

#include <cstring>
#include <vector>

#include "gpunvme/gpunvme.h"
#include "tests/client/device/test_cache_kernels.h"
#include "tests/client/lib/gpu_mount.h"

namespace
{

constexpr size_t kFile = 32u << 20, kBlock = 4096;
constexpr unsigned kMany = 4224; // warps

class CacheGpu : public GpuMountedTest, public ::testing::WithParamInterface<const char *>
{
  protected:
    void set_up() override
    {
        std::vector<uint8_t> bytes(kFile);
        for (uint64_t i = 0; i < kFile; i++)
            bytes[i] = CACHE_BYTE(i);
        ASSERT_NO_FATAL_FAILURE(mount(GetParam(), 128u << 20));
        ASSERT_NO_FATAL_FAILURE(create_file("data", bytes.data(), kFile));
        ASSERT_EQ(gpunvme_open(nullptr, &io_), 0) << gpunvme_error();
        ASSERT_EQ(gpunvme_file_open(io_, fd_, GPUNVME_FILE_DIRECT, &file_), 0) << gpunvme_error();
        ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
        ASSERT_EQ(cudaMalloc(reinterpret_cast<void **>(&room_), size_t{kMany} * CACHE_ROOM),
                  cudaSuccess);
        ASSERT_EQ(cudaHostAlloc(reinterpret_cast<void **>(&found_), sizeof(*found_), 0),
                  cudaSuccess);
    }
    void let_go() override
    {
        cudaStreamSynchronize(stream_);
        gpunvme_cache_close(cache_);
        gpunvme_close(io_);
        cudaStreamDestroy(stream_);
        cudaFree(room_);
        cudaFreeHost(found_);
    }
    void open_cache(size_t bytes, uint32_t line = 0)
    {
        gpunvme_cache_close(cache_);
        cache_ = nullptr;
        ASSERT_EQ(gpunvme_cache_open(file_, bytes, line, &cache_), 0) << gpunvme_error();
        c_ = gpunvme_cache_device(cache_);
    }

    struct cache_found warps(unsigned n, unsigned rounds, uint64_t span)
    {
        *found_ = {};
        EXPECT_EQ(launch_cache_warps(c_, room_, n, rounds, span, found_, stream_), cudaSuccess);
        EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
        return *found_;
    }

    struct cache_found threads(unsigned n, unsigned rounds, uint64_t span)
    {
        *found_ = {};
        EXPECT_EQ(launch_cache_threads(c_, n, rounds, span, found_, stream_), cudaSuccess);
        EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
        return *found_;
    }

    struct cache_found holds(unsigned n, unsigned rounds, uint64_t span)
    {
        *found_ = {};
        EXPECT_EQ(launch_cache_holds(c_, n, rounds, span, found_, stream_), cudaSuccess);
        EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
        return *found_;
    }

    struct gpunvme_cache_stats stats()
    {
        struct gpunvme_cache_stats s = {};
        EXPECT_EQ(gpunvme_cache_stats(cache_, &s, sizeof(s)), 0) << gpunvme_error();
        return s;
    }

    struct gpunvme *io_ = nullptr;
    struct gpunvme_file *file_ = nullptr;
    struct gpunvme_cache *cache_ = nullptr;
    const struct gpunvme_device_cache *c_ = nullptr;
    cudaStream_t stream_ = nullptr;
    uint8_t *room_ = nullptr;
    struct cache_found *found_ = nullptr;
};

// With so many reads by each warp the test finds a race of one in 100,000 reads.
TEST_P(CacheGpu, WarpsReadTheFile)
{
    constexpr unsigned kRounds = 400;
    for (uint32_t line : {4096u, 65536u}) {
        ASSERT_NO_FATAL_FAILURE(open_cache(4u << 20, line));
        for (unsigned n : {1u, 300u}) {
            struct cache_found f = warps(n, kRounds, kFile - CACHE_ROOM);
            EXPECT_EQ(f.reads, n * uint64_t{kRounds});
            EXPECT_EQ(f.wrong + f.failed, 0u) << f.error;
        }
        EXPECT_GT(stats().hits, 0u);
    }
}

// Most elements are in lines that are not kept.
TEST_P(CacheGpu, InsertionAtTheSecondTouch)
{
    ASSERT_NO_FATAL_FAILURE(open_cache(4u << 20));
    ASSERT_EQ(gpunvme_cache_set_insertion(cache_, GPUNVME_CACHE_SECOND_TOUCH), 0);
    for (unsigned n : {1u, 300u}) {
        struct cache_found f = threads(n, 5, kFile - CACHE_ROOM);
        EXPECT_EQ(f.wrong + f.failed, 0u) << f.error;
        f = warps(n, 20, kFile - CACHE_ROOM);
        EXPECT_EQ(f.wrong + f.failed, 0u) << f.error;
        f = warps(n, 20, 1u << 20);
        EXPECT_EQ(f.wrong + f.failed, 0u) << f.error;
    }
    EXPECT_GT(stats().bypasses, 0u);
    EXPECT_GT(stats().hits, 0u);
}

TEST_P(CacheGpu, ThreadsGetElements)
{
    ASSERT_NO_FATAL_FAILURE(open_cache(4u << 20));
    for (uint64_t span : {1u << 20, 8u << 20}) {
        struct cache_found f = threads(64, 10, span);
        EXPECT_EQ(f.reads, 64 * 32 * 10ull);
        EXPECT_EQ(f.wrong + f.failed, 0u) << f.error;
    }
}

// A set has no way for most of the warps, which bypass it.
TEST_P(CacheGpu, FewLinesServeManyWarps)
{
    ASSERT_NO_FATAL_FAILURE(open_cache(64 * kBlock));
    struct cache_found f = warps(kMany, 4, kFile - CACHE_ROOM);
    EXPECT_EQ(f.wrong + f.failed, 0u) << f.error;
    EXPECT_EQ(f.reads, kMany * 4ull);
    f = warps(kMany, 20, 32 * kBlock - CACHE_ROOM);
    EXPECT_EQ(f.wrong + f.failed, 0u) << f.error;
    EXPECT_GT(stats().bypasses, 0u);
}

// Warps hold lines of a cache of which each set has fewer ways than warps use it.
TEST_P(CacheGpu, WarpsHoldLines)
{
    ASSERT_NO_FATAL_FAILURE(open_cache(4u << 20));
    struct cache_found f = holds(300, 20, 8u << 20);
    EXPECT_EQ(f.wrong + f.failed, 0u) << f.error;
    EXPECT_EQ(f.reads, 300 * 32 * 20ull);
    ASSERT_NO_FATAL_FAILURE(open_cache(16 * kBlock));
    f = holds(200, 2, 8u << 20);
    EXPECT_EQ(f.wrong + f.failed, 0u) << f.error;
    EXPECT_GT(stats().bypasses, 0u);
    uint64_t bypasses = stats().bypasses;
    f = warps(1, 20, 16 * kBlock - CACHE_ROOM);
    EXPECT_EQ(f.wrong + f.failed, 0u) << f.error;
    EXPECT_EQ(stats().bypasses, bypasses) << "all lines were released";
}

TEST_P(CacheGpu, PrefetchesAndDrops)
{
    ASSERT_NO_FATAL_FAILURE(open_cache(4u << 20));
    int *error = &found_->error;
    *error = 1;
    ASSERT_EQ(launch_cache_prefetch(c_, 100 * kBlock, 5, error, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(*error, 0);
    EXPECT_EQ(stats().misses, 101u);
    struct cache_found f = warps(50, 10, 98 * kBlock);
    EXPECT_EQ(f.wrong + f.failed, 0u) << f.error;
    EXPECT_EQ(stats().misses, 101u);
    ASSERT_EQ(gpunvme_cache_drop(cache_), 0) << gpunvme_error();
    f = warps(50, 10, 98 * kBlock);
    EXPECT_EQ(f.wrong + f.failed, 0u) << f.error;
    EXPECT_GT(stats().misses, 101u);
}

INSTANTIATE_TEST_SUITE_P(Mounts, CacheGpu,
                         ::testing::Values("direct=root,deadline=5000",
                                           "direct=root,deadline=5000,sim=lba:4096"));

} // namespace
