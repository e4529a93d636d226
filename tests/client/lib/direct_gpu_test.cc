/* SPDX-License-Identifier: BSD-2-Clause */
// The direct path from kernels of this process, and in its streams.
#include <cuda_runtime_api.h>
#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "client/lib/connection.h"
#include "tests/client/device/test_direct_kernels.h"
#include "tests/client/lib/gpu_rig.h"

namespace
{

using namespace gpu_rig;

unsigned char *device_memory(size_t n)
{
    void *p = nullptr;
    return cudaMalloc(&p, n) == cudaSuccess ? static_cast<unsigned char *>(p) : nullptr;
}

class DirectGpu : public GpuRig
{
  protected:
    void SetUp() override { start("direct=root,deadline=5000"); }
    // Memory of the application, registered.
    int alloc(struct gpunvme_buffer **out) override
    {
        memory_ = device_memory(kRoom);
        return memory_ ? buffer_register(g_, memory_, kRoom, true, out) : -ENOMEM;
    }
    void TearDown() override
    {
        GpuRig::TearDown();
        cudaFree(memory_);
        cudaFreeHost(requests_);
    }

    // Requests next to each other in the buffer, with gaps, of up to `most` bytes.
    struct request *make_requests(unsigned n, size_t most, unsigned seed,
                                  unsigned char *to = nullptr)
    {
        if (!to)
            to = memory_;
        cudaFreeHost(requests_);
        std::mt19937 rng(seed);
        requests_ = pinned<struct request>(n);
        for (unsigned i = 0; i < n; i++) {
            size_t len = 1 + rng() % most, shift = rng() % 64;
            uint64_t offset = rng() % kFile;
            if (i % 2) {
                len = most;
                shift = 0;
                offset -= offset % kPage;
            }
            requests_[i] = {to + i * (most + 64) + shift, len, offset, -1000};
        }
        return requests_;
    }
    void expect_answers(unsigned n)
    {
        ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
        for (unsigned i = 0; i < n; i++) {
            const struct request *r = &requests_[i];
            size_t want = std::min<size_t>(r->n, kFile - r->offset);
            ASSERT_EQ(r->result, static_cast<int64_t>(want)) << i;
            ASSERT_TRUE(holds(r->dst, want, r->offset)) << i;
        }
    }

    // Host memory that kernels reach, as long as the mount is connected; null when there is none.
    unsigned char *host_memory(size_t n)
    {
        struct gpunvme_buffer *b = nullptr;
        return buffer_alloc_host(g_, n, &b) == 0 ? static_cast<unsigned char *>(buffer_addr(b))
                                                 : nullptr;
    }
    // The host loads the bytes itself, without CUDA.
    void expect_in_host_memory(unsigned n)
    {
        ASSERT_NO_FATAL_FAILURE(expect_answers(n));
        for (unsigned i = 0; i < n; i++) {
            const struct request *r = &requests_[i];
            ASSERT_EQ(memcmp(r->dst, &file_[r->offset], static_cast<size_t>(r->result)), 0) << i;
        }
    }
    // Kernels that had the old bytes of `dst` in their cache see the new ones.
    void expect_fresh_loads(unsigned char *dst, unsigned warps = 256, uint64_t rounds = 200,
                            bool hog = false)
    {
        auto *wrong = pinned<unsigned long long>(1);
        auto *last = pinned<int64_t>(warps);
        ASSERT_EQ(
            launch_rereads(leased_file_device(f_), dst, warps, hog, rounds, wrong, last, stream_),
            cudaSuccess);
        ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
        EXPECT_EQ(*wrong, 0u);
        EXPECT_EQ(std::count(last, last + warps, static_cast<int64_t>(kPage)), warps);
        cudaFreeHost(wrong);
        cudaFreeHost(last);
    }

    // Of leases that have ended and are not renewed, in each form.
    void expect_stale()
    {
        const struct gpunvme_device_file *f = leased_file_device(f_);
        make_requests(4, kPage, 7);
        for (int form = 0; form < 3; form++) {
            cudaError_t err = form == 0   ? launch_threads(f, requests_, 4, stream_)
                              : form == 1 ? launch_warps(f, requests_, 4, stream_)
                                          : launch_blocks(f, requests_, 4, 64, stream_);
            ASSERT_EQ(err, cudaSuccess);
            ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
            for (int i = 0; i < 4; i++) {
                EXPECT_EQ(requests_[i].result, -ESTALE) << form << ", " << i;
            }
        }
    }

    unsigned char *memory_ = nullptr;
    struct request *requests_ = nullptr;
};

TEST_F(DirectGpu, ReadsInAStreamAnythingAnywhere)
{
    std::mt19937 rng(3);
    ASSERT_NO_FATAL_FAILURE(punch_hole());
    for (int i = 0; i < 150; i++) {
        size_t most = i % 10 == 0 ? kFile : i % 3 ? 3 * kPage : 1u << 20;
        uint64_t offset = i % 5 ? rng() % kFile : kHole + rng() % kHoleLength;
        size_t n = rng() % most, at = rng() % (kRoom - kFile);
        size_t want = std::min<size_t>(n, kFile - offset);
        ASSERT_EQ(read_async(memory_ + at, n, offset), static_cast<int64_t>(want))
            << n << " at " << offset << ": " << gpunvme_error();
        ASSERT_TRUE(holds(memory_ + at, want, offset));
    }
    EXPECT_EQ(direct_read_async(f_, memory_ + kRoom - 10, 11, 0, stream_, bytes_), -EFAULT);
    EXPECT_EQ(direct_read_async(f_, memory_, 10, kFile, nullptr, bytes_), 0);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(*bytes_, 0);
}

TEST_F(DirectGpu, AHostReadsOnePieceAfterAnother)
{
    std::mt19937 rng(9);
    for (int i = 0; i < 400; i++) {
        size_t most = i % 50 == 0 ? 1u << 20 : 3 * kPage, n = rng() % most, at = rng() % kPage;
        uint64_t offset = i % 3 ? rng() % kFile / kPage * kPage : rng() % kFile;
        size_t want = std::min<size_t>(n, kFile - offset);
        if (i % 40 == 0)
            usleep(2000); // the block leaves meanwhile
        ASSERT_EQ(direct_read_wait(f_, memory_ + at, n, offset), static_cast<ssize_t>(want))
            << n << " at " << offset << ": " << gpunvme_error();
        ASSERT_TRUE(holds(memory_ + at, want, offset)) << i;
    }
    EXPECT_EQ(direct_read_wait(f_, memory_, kRoom, 0), static_cast<ssize_t>(kFile)) << "two parts";
    EXPECT_TRUE(holds(memory_, kFile, 0));
    EXPECT_EQ(direct_read_wait(f_, memory_ + kRoom - 10, 11, 0), -EFAULT);
    EXPECT_EQ(direct_read_wait(f_, memory_, 10, kFile), 0);
}

// The block that stays has read the extents before, and its processor may still have them.
TEST_F(DirectGpu, AHostSeesARefreshedFileAtOnce)
{
    ASSERT_EQ(direct_read_wait(f_, memory_, kPage, kHole), static_cast<ssize_t>(kPage));
    ASSERT_TRUE(holds(memory_, kPage, kHole));
    ASSERT_NO_FATAL_FAILURE(punch_hole());
    ASSERT_EQ(direct_read_wait(f_, memory_, kHoleLength, kHole), static_cast<ssize_t>(kHoleLength));
    EXPECT_TRUE(holds(memory_, kHoleLength, kHole));
}

TEST_F(DirectGpu, KeepsTheOrderOfItsStream)
{
    constexpr size_t kPiece = 1u << 20;
    unsigned char *copies = memory_ + (64u << 20);
    for (int i = 0; i < 16; i++) {
        uint64_t offset = static_cast<uint64_t>(i) * 3 * kPiece + 4 * static_cast<uint64_t>(i);
        ASSERT_EQ(launch_fill(memory_, 0x11, kPiece, stream_), cudaSuccess);
        ASSERT_EQ(direct_read_async(f_, memory_, kPiece, offset, stream_, &bytes_[i]), 0);
        ASSERT_EQ(launch_copy(copies + i * kPiece, memory_, kPiece, stream_), cudaSuccess);
    }
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    for (int i = 0; i < 16; i++) {
        EXPECT_EQ(bytes_[i], static_cast<int64_t>(kPiece));
        EXPECT_TRUE(holds(copies + i * kPiece, kPiece,
                          static_cast<uint64_t>(i) * 3 * kPiece + 4 * static_cast<uint64_t>(i)));
    }
}

TEST_F(DirectGpu, WarpsReadManyMoreThanThereAreQueues)
{
    constexpr unsigned kReads = 600;
    make_requests(kReads, 70000, 4);
    ASSERT_EQ(launch_warps(leased_file_device(f_), requests_, kReads, stream_), cudaSuccess);
    expect_answers(kReads);
}

TEST_F(DirectGpu, ThreadsReadEachForItself)
{
    constexpr unsigned kReads = 4001;
    struct direct_options many = {20, 64, 0}; // of which groups with long reads share 12
    for (int round = 0; round < 2; round++) {
        make_requests(kReads, 9000, 5);
        ASSERT_EQ(launch_threads(leased_file_device(f_), requests_, kReads, stream_), cudaSuccess);
        ASSERT_NO_FATAL_FAILURE(expect_answers(kReads)) << round;
        direct_close(d_);
        ASSERT_EQ(direct_open(g_, &many, &d_), 0) << gpunvme_error();
        ASSERT_EQ(leased_file_open(d_, fd_, true, &f_), 0) << gpunvme_error();
    }
}

TEST_F(DirectGpu, ReadsAreBegunAndEndedLater)
{
    ASSERT_NO_FATAL_FAILURE(punch_hole());
    make_requests(1201, 9000, 31);
    ASSERT_EQ(launch_warps_later(leased_file_device(f_), requests_, 1201, stream_), cudaSuccess);
    ASSERT_NO_FATAL_FAILURE(expect_answers(1201));
    make_requests(4001, 5000, 32);
    ASSERT_EQ(launch_threads_later(leased_file_device(f_), requests_, 4001, stream_), cudaSuccess);
    expect_answers(4001);
}

TEST_F(DirectGpu, ThousandsOfWarpsReadAtATime)
{
    expect_fresh_loads(memory_, 2112, 60);
}

// Streams take queues for themselves while a kernel's warps share the remaining ones.
TEST_F(DirectGpu, WarpsAndStreamsReadAtATime)
{
    constexpr unsigned kReads = 4000;
    cudaStream_t other = nullptr;
    unsigned char *behind = memory_ + (80u << 20);
    ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    make_requests(kReads, 2 * kPage, 33);
    ASSERT_EQ(launch_warps(leased_file_device(f_), requests_, kReads, stream_), cudaSuccess);
    for (unsigned i = 0; i < 32; i++)
        ASSERT_EQ(
            direct_read_async(f_, behind + i * kPage, kPage, i * 5 * kPage, other, &bytes_[i]), 0)
            << gpunvme_error();
    ASSERT_EQ(cudaStreamSynchronize(other), cudaSuccess);
    ASSERT_NO_FATAL_FAILURE(expect_answers(kReads));
    for (unsigned i = 0; i < 32; i++) {
        EXPECT_EQ(bytes_[i], static_cast<int64_t>(kPage)) << i;
        EXPECT_TRUE(holds(behind + i * kPage, kPage, i * 5 * kPage)) << i;
    }
    cudaStreamDestroy(other);
}

// Every second read is of whole blocks, which one command serves: the short path, and the general.
TEST_F(DirectGpu, ReadsOfOneCommandAndOthersShareQueues)
{
    constexpr unsigned kReads = 500;
    const struct gpunvme_device_file *f = leased_file_device(f_);
    for (unsigned form = 0; form < 4; form++) {
        make_requests(kReads, 2 * kPage, 20 + form);
        cudaError_t err = form == 0   ? launch_threads(f, requests_, kReads, stream_)
                          : form == 1 ? launch_warps(f, requests_, kReads, stream_)
                          : form == 2 ? launch_blocks(f, requests_, kReads, 32, stream_)
                                      : launch_blocks(f, requests_, kReads, 256, stream_);
        ASSERT_EQ(err, cudaSuccess);
        ASSERT_NO_FATAL_FAILURE(expect_answers(kReads)) << form;
        cudaFreeHost(requests_);
        requests_ = nullptr;
    }
}

TEST_F(DirectGpu, AHostReadsBlocksByBothWaysInTurn)
{
    for (int i = 0; i < 300; i++) {
        uint64_t offset = static_cast<uint64_t>(i) * 7 * kPage, n = i % 5 ? kPage : 3u << 20;
        int64_t got =
            i % 3 == 0 ? read_async(memory_, n, offset) : direct_read_wait(f_, memory_, n, offset);
        ASSERT_EQ(got, static_cast<int64_t>(n)) << i << ": " << gpunvme_error();
        ASSERT_TRUE(holds(memory_, n, offset)) << i;
    }
}

TEST_F(DirectGpu, ThreadsOfAWarpReadToSeveralBuffersOrNone)
{
    struct gpunvme_buffer *second;
    unsigned char *other = device_memory(64 * kPage);
    ASSERT_EQ(buffer_register(g_, other, 32 * kPage, true, &second), 0) << gpunvme_error();
    make_requests(64, kPage, 6);
    for (unsigned i = 0; i < 64; i += 5)
        requests_[i].dst = other + i * kPage; // half of them beyond the registered memory
    for (unsigned i = 1; i < 64; i += 7)
        requests_[i].n = 0;
    ASSERT_EQ(launch_threads(leased_file_device(f_), requests_, 64, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    for (unsigned i = 0; i < 64; i++) {
        struct request *r = &requests_[i];
        size_t want = std::min<size_t>(r->n, kFile - r->offset);
        bool outside = i % 5 == 0 && i >= 32 && want;
        ASSERT_EQ(r->result, outside ? -EFAULT : static_cast<int64_t>(want)) << i;
        if (!outside) {
            ASSERT_TRUE(holds(r->dst, want, r->offset)) << i;
        }
    }
    EXPECT_EQ(buffer_unregister(second), 0);
    cudaFree(other);
}

TEST_F(DirectGpu, BlocksReadLongPiecesTogether)
{
    for (unsigned threads : {20u, 32u, 100u, 256u}) {
        make_requests(10, 7u << 20, threads);
        ASSERT_EQ(launch_blocks(leased_file_device(f_), requests_, 10, threads, stream_),
                  cudaSuccess);
        expect_answers(10);
    }
}

TEST_F(DirectGpu, LoadsSeeWhatWasRead)
{
    expect_fresh_loads(memory_);
}

TEST_F(DirectGpu, LoadsSeeWhatWasReadIntoHostMemory)
{
    auto *host = host_memory(kRoom);
    ASSERT_TRUE(host) << gpunvme_error();
    expect_fresh_loads(host);
}

TEST_F(DirectGpu, KernelsReadIntoHostMemory)
{
    const struct gpunvme_device_file *f = leased_file_device(f_);
    auto *host = host_memory(kRoom);
    ASSERT_TRUE(host) << gpunvme_error();
    make_requests(600, 70000, 14, host);
    ASSERT_EQ(launch_warps(f, requests_, 600, stream_), cudaSuccess);
    ASSERT_NO_FATAL_FAILURE(expect_in_host_memory(600));
    make_requests(4001, 9000, 15, host);
    ASSERT_EQ(launch_threads(f, requests_, 4001, stream_), cudaSuccess);
    ASSERT_NO_FATAL_FAILURE(expect_in_host_memory(4001));
    make_requests(10, 7u << 20, 16, host);
    ASSERT_EQ(launch_blocks(f, requests_, 10, 256, stream_), cudaSuccess);
    ASSERT_NO_FATAL_FAILURE(expect_in_host_memory(10));
}

TEST_F(DirectGpu, ThreadsOfAWarpReadToHostAndDeviceMemory)
{
    constexpr unsigned kReads = 1000;
    auto *host = host_memory(kRoom);
    ASSERT_TRUE(host) << gpunvme_error();
    make_requests(kReads, 9000, 17);
    for (unsigned i = 0; i < kReads; i += 3)
        requests_[i].dst = host + (requests_[i].dst - memory_);
    ASSERT_EQ(launch_threads(leased_file_device(f_), requests_, kReads, stream_), cudaSuccess);
    expect_answers(kReads);
}

// The host loads them as soon as the result is there, and as soon as the stream has ended.
TEST_F(DirectGpu, AHostSeesWhatWasReadIntoHostMemory)
{
    std::mt19937 rng(18);
    auto *host = host_memory(4u << 20);
    ASSERT_TRUE(host) << gpunvme_error();
    ASSERT_NO_FATAL_FAILURE(punch_hole());
    for (int i = 0; i < 400; i++) {
        size_t n = 1 + rng() % (i % 20 ? 3 * kPage : 2u << 20), at = rng() % kPage;
        uint64_t offset = i % 3 ? rng() % kFile : kHole + rng() % kHoleLength;
        if (i % 2)
            offset -= offset % kPage;
        size_t want = std::min<size_t>(n, kFile - offset);
        memset(host + at, 0x5a, n);
        int64_t got =
            i % 4 ? direct_read_wait(f_, host + at, n, offset) : read_async(host + at, n, offset);
        ASSERT_EQ(got, static_cast<int64_t>(want)) << n << " at " << offset;
        ASSERT_EQ(memcmp(host + at, &file_[offset], want), 0) << n << " at " << offset;
    }
}

TEST_F(DirectGpu, AListIsReadIntoHostMemory)
{
    constexpr size_t kPieces = 2000, kMost = 5000;
    std::mt19937 rng(19);
    struct gpunvme_piece *pieces = nullptr;
    auto *host = host_memory(kPieces * kMost);
    ASSERT_TRUE(host) << gpunvme_error();
    ASSERT_EQ(shared_list_alloc_pieces(g_, kPieces, &pieces), 0) << gpunvme_error();
    for (size_t i = 0; i < kPieces; i++)
        pieces[i] = {rng() % kFile, i * kMost, static_cast<uint32_t>(1 + rng() % kMost), -1};
    ASSERT_EQ(direct_readv_async(f_, host, pieces, kPieces, stream_), 0) << gpunvme_error();
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    for (size_t i = 0; i < kPieces; i++) {
        size_t want = std::min<size_t>(pieces[i].len, kFile - pieces[i].file_offset);
        ASSERT_EQ(pieces[i].result, static_cast<int32_t>(want)) << i;
        ASSERT_EQ(memcmp(host + i * kMost, &file_[pieces[i].file_offset], want), 0) << i;
    }
}

// No other kernel has room beside it.
TEST_F(DirectGpu, AKernelThatFillsTheGpuReads)
{
    int multiprocessors = 0;

    ASSERT_EQ(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0),
              cudaSuccess);
    for (int round = 0; round < 3; round++) {
        expect_fresh_loads(memory_, static_cast<unsigned>(multiprocessors), 500, true);
        expect_fresh_loads(memory_);
    }
}

TEST_F(DirectGpu, TheMountsEndEndsAKernelsReads)
{
    constexpr unsigned kWarps = 64;
    auto *wrong = pinned<unsigned long long>(1);
    auto *last = pinned<int64_t>(kWarps);
    ASSERT_EQ(launch_rereads(leased_file_device(f_), memory_, kWarps, false, UINT64_MAX, wrong,
                             last, stream_),
              cudaSuccess);
    usleep(100000);
    end_the_mount();
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(*wrong, 0u);
    for (unsigned i = 0; i < kWarps; i++) {
        EXPECT_TRUE(last[i] == -ESTALE || last[i] == -ETIMEDOUT) << last[i];
    }
    EXPECT_EQ(read_async(memory_, kPage, 0), -ESTALE);
    EXPECT_LT(direct_renew(d_), 0);
    EXPECT_EQ(direct_read_async(f_, memory_, kPage, 0, stream_, bytes_), -ESTALE);
    expect_stale();
    expect_ended();
    cudaFreeHost(wrong);
    cudaFreeHost(last);
}

// The same kernels where data has checksums, which they compare.
class DirectGpuSums : public DirectGpu
{
  protected:
    DirectGpuSums() { format_ = {"-O", "data_csum"}; }
    void expect_reads(size_t most, unsigned seed)
    {
        const struct gpunvme_device_file *f = leased_file_device(f_);
        for (auto *launch : {launch_threads, launch_warps, launch_warps_later}) {
            make_requests(512, most, seed++);
            ASSERT_EQ(launch(f, requests_, 512, stream_), cudaSuccess);
            expect_answers(512);
        }
        make_requests(64, most, seed);
        ASSERT_EQ(launch_blocks(f, requests_, 64, 256, stream_), cudaSuccess);
        expect_answers(64);
    }
};

TEST_F(DirectGpuSums, SoundDataIsReadByAllKernels)
{
    for (size_t most : {kPage, size_t{100}, 16 * kPage})
        ASSERT_NO_FATAL_FAILURE(expect_reads(most, static_cast<unsigned>(most)));
    EXPECT_EQ(read_async(memory_, kFile, 0), static_cast<int64_t>(kFile));
    EXPECT_TRUE(holds(memory_, kFile, 0));
}

TEST_F(DirectGpuSums, ABlockThatIsWrongInTheImageIsAnError)
{
    const uint64_t bad = 100 * kPage;
    uint64_t found;
    flip(bad + 9);
    for (size_t n : {kPage, size_t{10}, 300 * kPage}) {
        EXPECT_EQ(read_async(memory_, n, bad), -EIO);
        EXPECT_TRUE(direct_bad_block(f_, &found) == 1 && found == bad);
        EXPECT_EQ(direct_read_wait(f_, memory_, n, bad), -EIO);
    }
    requests_ = pinned<struct request>(64);
    for (unsigned i = 0; i < 64; i++)
        requests_[i] = {memory_ + i * kPage, kPage, bad - 32 * kPage + i * kPage, -1000};
    ASSERT_EQ(launch_threads(leased_file_device(f_), requests_, 64, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    for (unsigned i = 0; i < 64; i++)
        EXPECT_EQ(requests_[i].result, i == 32 ? -EIO : static_cast<int64_t>(kPage)) << i;
}

} // namespace
