/* SPDX-License-Identifier: BSD-2-Clause */
// Batches of reads by the library, over mounts of several kinds.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "client/lib/connection.h"
#include "tests/client/lib/hole_rig.h"
#include "tests/threads.h"

namespace
{

using namespace hole_rig;

struct Way {
    const char *name;
    const char *options;
    uint32_t path; // that batches of a shared buffer take
};

class ReadvTest : public HoleRig<Way>
{
  protected:
    static int32_t expected(const gpunvme_piece &p)
    {
        size_t left = p.file_offset >= kFile ? 0 : kFile - p.file_offset;
        return static_cast<int32_t>(std::min<size_t>(p.len, left));
    }
    // Side by side in [at, ...) of the buffer.
    std::vector<gpunvme_piece> some_pieces(size_t n, uint32_t most, size_t at, unsigned seed)
    {
        std::mt19937 random(seed);
        std::vector<gpunvme_piece> pieces(n);
        for (gpunvme_piece &p : pieces) {
            p = {random() % (kFile + 10000), at, static_cast<uint32_t>(random() % most), 77};
            at += p.len;
        }
        return pieces;
    }
    void expect_pieces(gpunvme_buffer *b, const std::vector<gpunvme_piece> &pieces)
    {
        std::vector<char> data(kRoom);
        ASSERT_EQ(buffer_copy_out(b, 0, data.data(), kRoom), 0) << gpunvme_error();
        for (size_t i = 0; i < pieces.size(); i++) {
            const gpunvme_piece &p = pieces[i];
            ASSERT_EQ(p.result, expected(p)) << i;
            ASSERT_TRUE(p.result == 0 || memcmp(&data[p.buffer_offset], &file_[p.file_offset],
                                                static_cast<size_t>(p.result)) == 0)
                << i;
        }
    }

    std::mt19937 random_{3};
};

TEST_P(ReadvTest, EveryPieceGetsWhatPreadGives)
{
    for (unsigned round = 0; round < 3; round++) {
        // More than the short lists of GPU memory that bounce.
        auto pieces = some_pieces(500 * round + 5, 3000, round, round);
        gpunvme_result r = {};
        ASSERT_EQ(readv_buffer(shared_, fd_, pieces.data(), pieces.size(), &r), 0)
            << gpunvme_error();
        EXPECT_EQ(r.path, GetParam().path) << r.why;
        expect_pieces(shared_, pieces);
    }
    EXPECT_EQ(readv_buffer(shared_, fd_, nullptr, 0, nullptr), 0);
}

// In the middle of the memory: the pieces around them stay as they are.
TEST_P(ReadvTest, PiecesOfItsOwnAreReadWhereTheyAre)
{
    gpunvme_piece *own = nullptr;
    int err = shared_list_alloc_pieces(g_, 3000, &own);
    if (std::string(GetParam().name) == "no_room_for_lists") {
        EXPECT_EQ(err, -EMFILE);
        return;
    }
    ASSERT_EQ(err, 0) << gpunvme_error();
    EXPECT_EQ(own[2999].len, 0u);
    auto pieces = some_pieces(1000, 1500, 0, 9);
    std::copy(pieces.begin(), pieces.end(), own + 1000);
    own[999].result = own[2000].result = 77;
    gpunvme_result r = {};
    ASSERT_EQ(readv_buffer(shared_, fd_, own + 1000, 1000, &r), 0) << gpunvme_error();
    EXPECT_EQ(r.path, GetParam().path) << r.why;
    expect_pieces(shared_, {own + 1000, own + 2000});
    EXPECT_EQ(own[999].result, 77);
    EXPECT_EQ(own[2000].result, 77);
    EXPECT_EQ(readv_buffer(shared_, -1, own + 1000, 2, nullptr), -EBADF);
    EXPECT_EQ(own[1000].result, -ECANCELED);
    ASSERT_EQ(readv_buffer(local_, fd_, own + 1000, 100, nullptr), 0) << "bounced";
    expect_pieces(local_, {own + 1000, own + 1100});
    shared_list_free_pieces(g_, own);
    shared_list_free_pieces(g_, nullptr);
    ASSERT_EQ(shared_list_alloc_pieces(g_, 1, &own), 0) << "left for disconnecting to free";
    EXPECT_EQ(shared_list_alloc_pieces(g_, 0, &own), -EINVAL);
    EXPECT_EQ(shared_list_alloc_pieces(g_, GPUNVME_PIECES_MAX + 1, &own), -EINVAL);
}

TEST_P(ReadvTest, MemoryTheMountCannotTakeBounces)
{
    auto pieces = some_pieces(300, 9000, 5, 1);
    gpunvme_result r = {};
    ASSERT_EQ(readv_buffer(local_, fd_, pieces.data(), pieces.size(), &r), 0) << gpunvme_error();
    EXPECT_EQ(r.path, GPUNVME_PATH_BOUNCE);
    EXPECT_STRNE(r.why, "");
    expect_pieces(local_, pieces);
}

TEST_P(ReadvTest, AnInvalidPieceHasItsOwnErrorOnEveryPath)
{
    for (gpunvme_buffer *b : {shared_, local_}) {
        std::vector<gpunvme_piece> pieces = {{0, kRoom, 1, 7},
                                             {UINT64_MAX - 5, 0, 4096, 7},
                                             {0, 0, 1u << 31, 7},
                                             {1ull << 60, 0, 100, 7},
                                             {50, 60, 70, 7}};
        ASSERT_EQ(readv_buffer(b, fd_, pieces.data(), pieces.size(), nullptr), 0)
            << gpunvme_error();
        const int results[] = {-ERANGE, -EOVERFLOW, -EINVAL, 0, 70};
        for (int i = 0; i < 5; i++)
            EXPECT_EQ(pieces[i].result, results[i]) << i;
    }
}

TEST_P(ReadvTest, AnInvalidCallReturnsAnError)
{
    int write_only = open(mounted_->path("file").c_str(), O_WRONLY | O_CLOEXEC);
    int directory = open(mounted_->mountpoint().c_str(), O_RDONLY | O_CLOEXEC);
    int foreign = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    const struct {
        int fd, error;
    } odd[] = {{write_only, -EBADF}, {directory, -EISDIR}, {foreign, -ENOTTY}, {-1, -EBADF}};
    for (gpunvme_buffer *b : {shared_, local_}) {
        for (const auto &o : odd) {
            std::vector<gpunvme_piece> pieces = {{0, 0, 10, 7}, {10, 10, 10, 7}};
            EXPECT_EQ(readv_buffer(b, o.fd, pieces.data(), 2, nullptr), o.error);
            EXPECT_EQ(pieces[0].result, -ECANCELED);
            EXPECT_EQ(pieces[1].result, -ECANCELED);
        }
    }
    for (int fd : {write_only, directory, foreign})
        close(fd);
    gpunvme_options only_gpu = {};
    only_gpu.path = GPUNVME_PATH_GPU;
    ASSERT_EQ(bounce_set_options(g_, &only_gpu), 0);
    gpunvme_piece piece = {0, 0, 10, 7};
    EXPECT_EQ(readv_buffer(local_, fd_, &piece, 1, nullptr), -EREMOTEIO);
    EXPECT_EQ(piece.result, -ECANCELED);
}

TEST_P(ReadvTest, ManyThreadsReadAtOnce)
{
    constexpr size_t kThreads = 6;
    std::atomic<int> failed{0};
    in_threads(kThreads, [&](size_t t) {
        for (unsigned i = 0; i < 10; i++) {
            auto pieces = some_pieces(200, 1000, t * 200000, i + 100);
            if (readv_buffer(shared_, fd_, pieces.data(), pieces.size(), nullptr) != 0)
                failed++;
            expect_pieces(shared_, pieces);
        }
    });
    EXPECT_EQ(failed, 0);
}

// While a timer's or a profiler's handler runs every 200 us: until the executor has noticed some.
TEST_P(ReadvTest, SignalsEndNeitherReadsNorBatches)
{
    struct sigaction act = {}, before;
    act.sa_handler = [](int) {};
    ASSERT_EQ(sigaction(SIGUSR1, &act, &before), 0);
    std::atomic<bool> stop{false};
    std::thread pest([&, reader = pthread_self()] {
        while (!stop) {
            pthread_kill(reader, SIGUSR1);
            usleep(200);
        }
    });
    gpunvme_ioc_stats stats = {};
    auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    auto noticed = [&] { return stats.cancelled || GetParam().path != GPUNVME_PATH_GPU; };
    for (unsigned i = 0; (i < 10 || !noticed()) && std::chrono::steady_clock::now() < end; i++) {
        auto pieces = some_pieces(1000, 3000, 0, i);
        EXPECT_EQ(readv_buffer(shared_, fd_, pieces.data(), pieces.size(), nullptr), 0)
            << gpunvme_error();
        expect_pieces(shared_, pieces);
        EXPECT_EQ(transfer_read(shared_, fd_, 0, 0, kRoom, nullptr), static_cast<ssize_t>(kFile));
        EXPECT_EQ(gpunvme_stats(connection_fd(g_), &stats), 0);
    }
    stop = true;
    pest.join();
    sigaction(SIGUSR1, &before, nullptr);
    EXPECT_TRUE(noticed());
}

INSTANTIATE_TEST_SUITE_P(Mounts, ReadvTest,
                         ::testing::Values(Way{"automatic", "executor=auto", GPUNVME_PATH_GPU},
                                           Way{"cpu", "executor=cpu", GPUNVME_PATH_GPU},
                                           Way{"no_room_for_lists", "executor=cpu,max_buffers=1",
                                               GPUNVME_PATH_GPU},
                                           Way{"off", "gpu=off", GPUNVME_PATH_BOUNCE}),
                         [](const auto &info) { return info.param.name; });

// More bytes than one call of a mount with one queue reads, and small pieces among the long ones.
using LongInBytes = ReadvTest;

TEST_P(LongInBytes, IsReadBySeveralCalls)
{
    constexpr size_t kLong = 2600, kShort = 200, kHalf = kRoom / 2; // 5.1 GiB
    constexpr uint64_t kZeros = 64u << 20;
    ASSERT_EQ(ftruncate(fd_, 2 * static_cast<off_t>(kZeros)), 0);
    std::vector<gpunvme_piece> pieces(kLong, gpunvme_piece{kZeros, kHalf, kHalf, 77});
    auto some = some_pieces(kShort, 5000, 0, 4);
    for (gpunvme_piece &p : some) {
        p.file_offset %= kFile - 5000; // behind it the file goes on now
        pieces.insert(pieces.begin() + static_cast<long>(random_() % pieces.size()), p);
    }
    gpunvme_piece *own = nullptr;
    ASSERT_EQ(shared_list_alloc_pieces(g_, pieces.size(), &own), 0) << gpunvme_error();
    std::copy(pieces.begin(), pieces.end(), own);
    gpunvme_ioc_stats before, after;
    ASSERT_EQ(gpunvme_stats(connection_fd(g_), &before), 0);
    ASSERT_EQ(readv_buffer(shared_, fd_, pieces.data(), pieces.size(), nullptr), 0)
        << gpunvme_error();
    ASSERT_EQ(gpunvme_stats(connection_fd(g_), &after), 0);
    EXPECT_GT(after.gpu_transfers, before.gpu_transfers + 1) << "more than one call";
    ASSERT_EQ(readv_buffer(shared_, fd_, own, pieces.size(), nullptr), 0) << gpunvme_error();
    for (size_t i = 0; i < pieces.size(); i++) {
        ASSERT_EQ(pieces[i].result, static_cast<int32_t>(pieces[i].len)) << i;
        ASSERT_EQ(own[i].result, static_cast<int32_t>(pieces[i].len)) << i;
    }
    pieces.erase(std::remove_if(pieces.begin(), pieces.end(),
                                [](const gpunvme_piece &p) { return p.len == kHalf; }),
                 pieces.end());
    expect_pieces(shared_, pieces);
}

INSTANTIATE_TEST_SUITE_P(Mounts, LongInBytes,
                         ::testing::Values(Way{"cpu", "executor=cpu,queues=1", GPUNVME_PATH_GPU}),
                         [](const auto &info) { return info.param.name; });

// More pieces than one call of the mount takes.
using LongBatch = ReadvTest;

TEST_P(LongBatch, IsSentInTurns)
{
    constexpr size_t kPieces = GPUNVME_PIECES_MAX + 1000;
    std::vector<gpunvme_piece> pieces(kPieces, gpunvme_piece{1ull << 40, 0, 4096, 7});
    auto some = some_pieces(900, 1000, 0, 8);
    std::copy(some.begin(), some.end(), pieces.end() - 900);
    gpunvme_result r = {};
    ASSERT_EQ(readv_buffer(shared_, fd_, pieces.data(), kPieces, &r), 0) << gpunvme_error();
    EXPECT_EQ(r.path, GPUNVME_PATH_GPU);
    expect_pieces(shared_, pieces);
}

INSTANTIATE_TEST_SUITE_P(Mounts, LongBatch,
                         ::testing::Values(Way{"automatic", "executor=auto", GPUNVME_PATH_GPU}),
                         [](const auto &info) { return info.param.name; });

} // namespace
