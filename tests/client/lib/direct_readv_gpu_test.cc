/* SPDX-License-Identifier: BSD-2-Clause */
// Lists of reads by the direct path, in streams and from kernels of this process.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "client/lib/connection.h"
#include "tests/client/device/test_direct_readv_kernels.h"
#include "tests/client/lib/gpu_rig.h"

namespace
{

using namespace gpu_rig;

constexpr size_t kMost = 30000;
constexpr uint32_t kQueues = 20, kDepth = 64;
constexpr int32_t kUntouched = INT32_MIN;
constexpr auto kLong = std::chrono::seconds(60); // a bound, not an expectation

using Pieces = std::vector<struct gpunvme_piece>;

class ListGpu : public GpuRig
{
  protected:
    void SetUp() override
    {
        ASSERT_NO_FATAL_FAILURE(start("direct=root,deadline=5000", kQueues, kDepth));
        if (IsSkipped())
            return;
        ASSERT_NO_FATAL_FAILURE(punch_hole());
        ASSERT_EQ(buffer_alloc(g_, kMost * sizeof(struct gpunvme_piece), &list_), 0);
    }

    static int32_t bytes_of(const struct gpunvme_piece &p)
    {
        if (p.file_offset >= kFile)
            return 0;
        return static_cast<int32_t>(std::min<uint64_t>(p.len, kFile - p.file_offset));
    }
    // Side by side in the buffer with gaps, of any alignment; some in the hole or past the end.
    static Pieces any_pieces(size_t n, unsigned seed)
    {
        std::mt19937 rng(seed);
        Pieces pieces;
        size_t at = 64;
        for (size_t i = 0; i < n; i++) {
            uint64_t offset = i % 20 ? rng() % (kFile + kPage) : kHole + rng() % kHoleLength;
            uint32_t len = static_cast<uint32_t>(i % 100 ? rng() % 5000 : rng() % 300000);
            if (i % 2) {
                offset -= offset % kPage;
                at += kPage - at % kPage;
                len = kPage;
            }
            pieces.push_back({offset, at, len, kUntouched});
            at += len + 64;
        }
        EXPECT_LT(at, kRoom);
        std::shuffle(pieces.begin(), pieces.end(), rng);
        return pieces;
    }

    struct gpunvme_piece *list() { return static_cast<struct gpunvme_piece *>(buffer_addr(list_)); }
    void put(const Pieces &pieces)
    {
        ASSERT_EQ(buffer_copy_in(list_, 0, pieces.data(), pieces.size() * sizeof(pieces[0])), 0);
    }
    void get(Pieces &pieces)
    {
        ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
        ASSERT_EQ(buffer_copy_out(list_, 0, pieces.data(), pieces.size() * sizeof(pieces[0])), 0);
    }
    // All pieces are there, and nothing else has changed.
    void expect_read(const Pieces &pieces)
    {
        std::vector<unsigned char> got(kRoom);
        ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
        ASSERT_EQ(buffer_copy_out(buffer_, 0, got.data(), kRoom), 0);
        for (size_t i = 0; i < pieces.size(); i++) {
            const struct gpunvme_piece &p = pieces[i];
            ASSERT_EQ(p.result, bytes_of(p)) << i;
            if (p.result == 0)
                continue;
            auto n = static_cast<size_t>(p.result);
            ASSERT_EQ(memcmp(&got[p.buffer_offset], &file_[p.file_offset], n), 0) << i;
            memset(&got[p.buffer_offset], kGuard, n);
        }
        EXPECT_EQ(std::count(got.begin(), got.end(), kGuard), static_cast<ssize_t>(kRoom));
    }

    // Lists of any length, in the device's memory.
    void expect_lists_read()
    {
        for (size_t n : {1, 7, 33, 1000, 12000}) {
            Pieces pieces = any_pieces(n, static_cast<unsigned>(n));
            ASSERT_NO_FATAL_FAILURE(poison());
            ASSERT_NO_FATAL_FAILURE(put(pieces));
            ASSERT_EQ(direct_readv_async(f_, memory(), list(), n, stream_), 0) << gpunvme_error();
            ASSERT_NO_FATAL_FAILURE(get(pieces));
            ASSERT_NO_FATAL_FAILURE(expect_read(pieces)) << n;
        }
    }

    struct gpunvme_buffer *list_ = nullptr;
};

TEST_F(ListGpu, ReadsAListInTheDevicesMemory)
{
    expect_lists_read();
}

// A copy from pageable memory could otherwise end after the kernel of another stream, which has
// read an old list, and whose results the copy overwrites.
TEST_F(ListGpu, CopiesIntoAllocatedMemoryHaveEndedWhenTheyReturn)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    ASSERT_NE(driver, nullptr);
    auto attribute =
        reinterpret_cast<decltype(&cuPointerGetAttribute)>(dlsym(driver, "cuPointerGetAttribute"));
    ASSERT_NE(attribute, nullptr);
    for (void *memory : {buffer_addr(buffer_), buffer_addr(list_)}) {
        unsigned waits = 0;
        EXPECT_EQ(attribute(&waits, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                            reinterpret_cast<CUdeviceptr>(memory)),
                  CUDA_SUCCESS);
        EXPECT_EQ(waits, 1u);
    }
    dlclose(driver);
}

// Lists whose data has checksums, which a kernel behind them compares.
class ListGpuSums : public ListGpu
{
  protected:
    ListGpuSums() { format_ = {"-O", "data_csum"}; }
};

TEST_F(ListGpuSums, SoundPiecesAreRead)
{
    expect_lists_read();
}

TEST_F(ListGpuSums, ABlockThatIsWrongInTheImageIsThePiecesError)
{
    const uint64_t bad = 500 * kPage;
    uint64_t found;
    Pieces pieces = any_pieces(9000, 31);
    pieces[40] = {bad, 0, kPage, kUntouched};
    pieces[7000] = {bad + 100, kRoom - 10 * kPage, 10, kUntouched};
    flip(bad + 9);
    for (int turn = 0; turn < 3; turn++) {
        ASSERT_NO_FATAL_FAILURE(put(pieces));
        ASSERT_EQ(direct_readv_async(f_, memory(), list(), pieces.size(), stream_), 0);
        Pieces results = pieces;
        ASSERT_NO_FATAL_FAILURE(get(results));
        std::map<int32_t, std::vector<size_t>> wrong; // by result
        for (size_t i = 0; i < results.size(); i++) {
            const struct gpunvme_piece &p = results[i];
            bool meets = p.file_offset < bad + kPage && p.file_offset + p.len > bad;
            if (p.result != (meets && p.len ? -EIO : bytes_of(p)))
                wrong[p.result].push_back(i);
        }
        for (const auto &[result, of] : wrong)
            ADD_FAILURE() << "turn " << turn << ": " << of.size() << " pieces, " << of.front()
                          << " to " << of.back() << ", have the result " << result;
        EXPECT_TRUE(direct_bad_block(f_, &found) == 1 && found == bad);
    }
}

TEST_F(ListGpu, ReadsListsInMemoryOfTheHost)
{
    const size_t n = 3000;
    Pieces pieces = any_pieces(n, 22);
    auto *own = pinned<struct gpunvme_piece>(n);
    struct gpunvme_piece *librarys;
    ASSERT_NE(own, nullptr);
    ASSERT_EQ(shared_list_alloc_pieces(g_, n + 5, &librarys), 0) << gpunvme_error();
    for (struct gpunvme_piece *where : {own, librarys + 5, librarys + 5}) {
        std::copy(pieces.begin(), pieces.end(), where);
        ASSERT_NO_FATAL_FAILURE(poison());
        ASSERT_EQ(direct_readv_async(f_, memory(), where, n, stream_), 0) << gpunvme_error();
        ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
        ASSERT_NO_FATAL_FAILURE(expect_read(Pieces(where, where + n)));
    }
    shared_list_free_pieces(g_, librarys);
    cudaFreeHost(own);
}

// Whether the pieces or the handle came first.
TEST_F(ListGpu, ACaptureMayBeTheFirstUseOfTheLibrarysPieces)
{
    const size_t n = 3000;
    Pieces pieces = any_pieces(n, 27);
    struct gpunvme_piece *before, *after;
    direct_close(d_);
    d_ = nullptr;
    ASSERT_EQ(shared_list_alloc_pieces(g_, n, &before), 0) << gpunvme_error();
    ASSERT_NO_FATAL_FAILURE(open_direct(kQueues, kDepth));
    ASSERT_EQ(shared_list_alloc_pieces(g_, n, &after), 0) << gpunvme_error();
    for (struct gpunvme_piece *where : {before, after}) {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        std::copy(pieces.begin(), pieces.end(), where);
        ASSERT_NO_FATAL_FAILURE(poison());
        ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
        ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        EXPECT_EQ(direct_readv_async(f_, memory(), where, n + 1, stream_), -EINVAL);
        EXPECT_EQ(direct_readv_async(f_, memory(), where, n, stream_), 0) << gpunvme_error();
        ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
        EXPECT_EQ(where[0].result, kUntouched);
        ASSERT_EQ(cudaGraphInstantiateWithFlags(&exec, graph, 0), cudaSuccess);
        ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
        ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
        ASSERT_NO_FATAL_FAILURE(expect_read(Pieces(where, where + n)));
        cudaGraphExecDestroy(exec);
        cudaGraphDestroy(graph);
    }
}

TEST_F(ListGpu, AnInvalidPieceHasItsOwnError)
{
    Pieces pieces = any_pieces(500, 23), good;
    for (size_t i : {3, 90, 499})
        pieces[i].len = kPage;
    pieces[3].buffer_offset = kRoom;
    pieces[90].buffer_offset = UINT64_MAX - 10;
    pieces[210].len = 0x80000000u;
    pieces[499].buffer_offset = kRoom - kPage + 1;
    ASSERT_NO_FATAL_FAILURE(poison());
    ASSERT_NO_FATAL_FAILURE(put(pieces));
    ASSERT_EQ(direct_readv_async(f_, memory(), list(), pieces.size(), stream_), 0);
    ASSERT_NO_FATAL_FAILURE(get(pieces));
    for (size_t i = 0; i < pieces.size(); i++) {
        bool outside = i == 3 || i == 90 || i == 499;
        if (outside || i == 210) {
            EXPECT_EQ(pieces[i].result, outside ? -EFAULT : -EINVAL) << i;
        } else {
            good.push_back(pieces[i]);
        }
    }
    expect_read(good);
}

TEST_F(ListGpu, KeepsTheOrderOfItsStream)
{
    Pieces pieces = any_pieces(2000, 24);
    ASSERT_NO_FATAL_FAILURE(put(pieces));
    for (int i = 0; i < 10; i++) {
        ASSERT_NO_FATAL_FAILURE(poison()); // before each list, and behind the one before it
        ASSERT_EQ(direct_readv_async(f_, memory(), list(), 2000, stream_), 0);
    }
    ASSERT_NO_FATAL_FAILURE(get(pieces));
    expect_read(pieces);
}

// More warps than there are queues.
TEST_F(ListGpu, WarpsReadListsOfTheirOwn)
{
    constexpr unsigned kWarps = 100, kEach = 90;
    Pieces pieces = any_pieces(size_t{kWarps} * kEach, 25);
    auto *expected = pinned<int>(kWarps * kEach), *returned = pinned<int>(kWarps);
    auto *wrong = pinned<unsigned>(1);
    ASSERT_TRUE(expected && returned && wrong);
    struct gpunvme_buffer *other; // registered as well, but not the one around the places
    ASSERT_EQ(buffer_alloc(g_, kPage, &other), 0);
    const std::map<size_t, size_t> outside = {
        {17, kRoom}, {63, static_cast<unsigned char *>(buffer_addr(other)) - memory()}};
    for (size_t i = 0; i < pieces.size(); i++)
        expected[i] = bytes_of(pieces[i]);
    for (auto [warp, place] : outside) {
        pieces[warp * kEach + 40].buffer_offset = place;
        pieces[warp * kEach + 40].len = kPage;
        expected[warp * kEach + 40] = -EFAULT;
    }
    ASSERT_NO_FATAL_FAILURE(poison());
    ASSERT_NO_FATAL_FAILURE(put(pieces));
    ASSERT_EQ(launch_lists(leased_file_device(f_), memory(), list(), kEach, kWarps, expected,
                           returned, wrong, stream_),
              cudaSuccess);
    ASSERT_NO_FATAL_FAILURE(get(pieces));
    EXPECT_EQ(*wrong, 0u);
    for (unsigned i = 0; i < kWarps; i++) {
        EXPECT_EQ(returned[i], outside.count(i) ? -EFAULT : 0) << i;
    }
    pieces.erase(pieces.begin() + 63 * kEach + 40);
    pieces.erase(pieces.begin() + 17 * kEach + 40);
    expect_read(pieces);
    for (void *p :
         {static_cast<void *>(expected), static_cast<void *>(returned), static_cast<void *>(wrong)})
        cudaFreeHost(p);
}

TEST_F(ListGpu, TheEndOfTheMountEndsTheLeases)
{
    Pieces pieces = any_pieces(100, 26);
    auto *own = pinned<struct gpunvme_piece>(100);
    ASSERT_NE(own, nullptr);
    std::copy(pieces.begin(), pieces.end(), own);
    end_the_mount();
    auto end = std::chrono::steady_clock::now() + kLong;
    do {
        ASSERT_EQ(direct_readv_async(f_, memory(), own, 100, stream_), 0) << gpunvme_error();
        ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    } while (own[0].result >= 0 && std::chrono::steady_clock::now() < end);
    for (int i = 0; i < 100; i++) {
        EXPECT_TRUE(own[i].result == -ESTALE || own[i].result == -ETIMEDOUT ||
                    own[i].result == bytes_of(own[i]))
            << own[i].result;
    }
    EXPECT_TRUE(own[0].result == -ESTALE || own[0].result == -ETIMEDOUT) << own[0].result;
    EXPECT_LT(direct_renew(d_), 0);
    EXPECT_EQ(direct_readv_async(f_, memory(), own, 100, stream_), -ESTALE);
    expect_ended();
    cudaFreeHost(own);
}

} // namespace
