/* SPDX-License-Identifier: BSD-2-Clause */
// READV: results of pieces, without and with faults.
#include <errno.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/fusefs/daemon/transfer/readv_rig.h"
#include "tests/threads.h"

namespace
{

// Adjacent pieces in the buffer, holes, and the end of the file.
void any_alignment(std::mt19937_64 &random, uint64_t size, gpunvme_piece *pieces, uint64_t n)
{
    uint64_t at = 0;
    for (uint64_t i = 0; i < n; i++) {
        auto len = static_cast<uint32_t>(random() % 9 ? random() % 6000 : 0);
        pieces[i] = {random() % (size + 5000), at, len, -1};
        at += len + 1;
    }
}

TEST_P(ReadvWays, PiecesOfAnyAlignmentEqualPread)
{
    open(config_of(GetParam()));
    constexpr uint64_t kCount = 600;
    for (int round = 0; round < 4; round++) {
        any_alignment(random_, content_.size(), pieces(), kCount);
        memset(buffer_.data, 0xee, kBytes);
        gpunvme_ioc_readv v = read_batch(kCount);
        EXPECT_EQ(v.path, path());
        EXPECT_EQ(v.bytes, bytes_of(kCount));
        EXPECT_EQ(v.commands == 0, GetParam() == Way::kCopied);
        expect_pieces(kCount);
        for (uint64_t i = 0; i < kCount; i++) {
            const gpunvme_piece &p = pieces()[i];
            uint64_t end = p.buffer_offset + static_cast<uint64_t>(p.result);
            ASSERT_EQ(buffer_.data[end], 0xee) << "nothing past the end of a piece";
        }
    }
}

TEST_P(ReadvWays, AnInvalidPieceHasItsOwnError)
{
    open(config_of(GetParam()));
    const gpunvme_piece odd[] = {
        {0, 0, 1u << 31, 7},          {0, kBytes, 1, 7},
        {0, kBytes - 4095, 4096, 7},  {0, UINT64_MAX - 5, 4096, 7},
        {UINT64_MAX - 5, 0, 4096, 7}, {1ull << 63, 0, 0, 7},
        {1ull << 62, 0, 4096, 7},     {5, kBytes, 0, 7},
        {100, 200, 300, 7},
    };
    std::copy(std::begin(odd), std::end(odd), pieces());
    gpunvme_ioc_readv v = read_batch(9);
    const int results[] = {-EINVAL, -ERANGE, -ERANGE, -ERANGE, -EOVERFLOW, -EOVERFLOW, 0, 0, 300};
    for (int i = 0; i < 9; i++)
        EXPECT_EQ(pieces()[i].result, results[i]) << i;
    EXPECT_EQ(v.bytes, 300u);
    EXPECT_TRUE(holds(pieces()[8]));
}

INSTANTIATE_TEST_SUITE_P(Paths, ReadvWays, ways(), name_of);

TEST_F(Readv, ABatchOfManyPiecesIsReadByTheGpuPath)
{
    open();
    spread(kPieces, 64);
    gpunvme_ioc_readv v = read_batch(kPieces);
    EXPECT_EQ(v.path, GPUNVME_PATH_GPU);
    EXPECT_EQ(v.bytes, bytes_of(kPieces));
    expect_pieces(kPieces);
}

// No engine reads the list of another one, but each reads the pieces of such a list one by one.
TEST_F(Readv, PiecesOfAListOfAnotherPathTakeThePathOfTheBuffer)
{
    for (bool list_bounces : {true, false}) {
        rig_buffer other = {};

        if (list_bounces)
            open();
        rig_set_bounces(rig_, !list_bounces);
        ASSERT_EQ(rig_register(rig_, kBytes, 0, &other), 0);
        std::swap(buffer_, other);
        rig_forget(&other);
        rig_set_bounces(rig_, list_bounces);
        ASSERT_EQ(rig_register_list(rig_, kPieces * sizeof(gpunvme_piece), 0, &other), 0);
        std::swap(list_, other);
        rig_forget(&other);
        spread(20, 4096);
        gpunvme_ioc_readv v = read_batch(20, list_bounces ? GPUNVME_NO_FALLBACK : 0);
        EXPECT_EQ(v.path, list_bounces ? GPUNVME_PATH_GPU : GPUNVME_PATH_BOUNCE);
        EXPECT_GT(v.commands, 0u);
        expect_pieces(20);
    }
}

TEST_F(Readv, OnlyTheNamedPiecesOfTheListAreReadAndChanged)
{
    open();
    spread(10, 4096);
    gpunvme_ioc_readv v = request(3);
    v.first = 4;
    ASSERT_EQ(rig_readv(rig_, 0, &v), 0);
    expect_pieces(7, 4);
    EXPECT_EQ(pieces()[3].result, -1);
    EXPECT_EQ(pieces()[7].result, -1);
}

// In a batch it would take one command per LBA.
TEST_F(Readv, ALongPieceAtAnOddAddressIsReadByFewCommands)
{
    open();
    pieces()[0] = {4097, 0, 1u << 20, -1};
    pieces()[1] = {4097, 3u << 20, 100, -1};
    gpunvme_ioc_readv v = read_batch(2);
    EXPECT_EQ(v.path, GPUNVME_PATH_GPU);
    EXPECT_LT(v.commands, 500u);
    expect_pieces(2);
}

// More extents than one map of the executor: several parts, and pieces across
// two of them.
TEST_F(Readv, AFileInVeryManyExtentsIsReadInParts)
{
    open(with(&rig_config::image_bytes, 512u << 20));
    constexpr uint64_t kFrom = 8u << 20, kTo = kFrom + 36000 * 8192ull;
    ASSERT_EQ(rig_fragment(rig_, kFrom, kTo), 0);
    content_.resize(kTo, 0);
    std::vector<unsigned char> some(4096);
    for (uint64_t i = 0; i < 36000; i += 97) {
        std::fill(some.begin(), some.end(), static_cast<unsigned char>(random_()));
        ASSERT_EQ(rig_write_file(rig_, kFrom + i * 8192, some.data(), some.size()), 0);
        memcpy(&content_[kFrom + i * 8192], some.data(), some.size());
    }
    constexpr uint64_t kCount = 3000;
    for (uint64_t i = 0; i < kCount; i++) {
        uint64_t at = kFrom + random_() % 372 * 97 * 8192;
        uint64_t offset = i % 100 ? at + random_() % 4096 : i / 100 * (kTo - 4096) / 30;
        pieces()[i] = {offset, i * 1000, 1000, -1};
    }
    pieces()[7].len = pieces()[8].len = 0;
    pieces()[9] = {kFrom + 32760 * 8192ull, kBytes - 400000, 400000, -1};
    gpunvme_ioc_readv v = read_batch(kCount);
    EXPECT_EQ(v.path, GPUNVME_PATH_GPU);
    expect_pieces(kCount);
}

// --- When the drive fails ------------------------------------------------------------------------

TEST_F(Readv, APieceTheDriveRefusesIsReadThroughHostMemoryOrAgain)
{
    open();
    for (uint32_t flags : {0u, GPUNVME_NO_FALLBACK}) {
        fail(SIM_FAULT_STATUS, kUnrecoveredRead, 5, 2);
        spread(100, 4096);
        gpunvme_ioc_readv v = read_batch(100, flags);
        EXPECT_EQ(v.path, flags ? GPUNVME_PATH_GPU : GPUNVME_PATH_MIXED);
        EXPECT_EQ(v.nvme_status & 0x7ffu, kUnrecoveredRead);
        expect_pieces(100);
    }
}

TEST_F(Readv, WithoutFallbackARefusedPieceHasItsErrorAndTheOthersAreRead)
{
    open();
    fail(SIM_FAULT_STATUS, kUnrecoveredRead | 0x4000, 5, 2);
    spread(100, 4096);
    gpunvme_ioc_readv v = read_batch(100, GPUNVME_NO_FALLBACK);
    EXPECT_EQ(v.path, GPUNVME_PATH_GPU);
    EXPECT_EQ(v.nvme_status & 0x7ffu, kUnrecoveredRead);
    unsigned failed = count_failed(-EIO);
    EXPECT_GE(failed, 1u);
    EXPECT_LE(failed, 2u);
    EXPECT_EQ(v.bytes, bytes_of(100));
}

TEST_F(Readv, ALostCommandFallsBackAndTheQueueReturns)
{
    open(with(&rig_config::deadline_ms, RIG_DEADLINE_MS));
    fail(SIM_FAULT_LOSE, 0, 20, 1);
    for (uint32_t path : {GPUNVME_PATH_MIXED, GPUNVME_PATH_GPU}) {
        spread(100, 4096);
        gpunvme_ioc_readv v = read_batch(100);
        EXPECT_TRUE(v.path == path || (path == GPUNVME_PATH_MIXED && v.path)) << v.path;
        EXPECT_EQ(rig_quarantined(rig_), 0u) << "no command is under way";
        expect_pieces(100);
    }
    fail(SIM_FAULT_LOSE, 0, 20, 1);
    spread(100, 4096);
    gpunvme_ioc_readv v = read_batch(100, GPUNVME_NO_FALLBACK);
    EXPECT_EQ(v.path, GPUNVME_PATH_GPU) << "without fallback it only costs time";
    EXPECT_EQ(rig_quarantined(rig_), 0u);
    EXPECT_EQ(v.bytes, bytes_of(100));
    expect_pieces(100);
}

// However many: the drive is ready when they are read again.
TEST_F(Readv, WithoutFallbackPiecesOfADriveThatWasNotReadyAreReadAgain)
{
    open(with(&rig_config::deadline_ms, RIG_DEADLINE_MS));
    for (uint64_t i = 0; i < 100; i++)
        pieces()[i] = {i * 4096, i * 4096, 4096, -1}; // a command each
    fail(SIM_FAULT_STATUS, kNotReady, 0, 100);
    gpunvme_ioc_readv v = read_batch(100, GPUNVME_NO_FALLBACK);
    EXPECT_EQ(v.bytes, bytes_of(100));
    expect_pieces(100);
}

TEST_F(Readv, WithoutFallbackPiecesThatTheDriveAlwaysRefusesHaveItsError)
{
    open();
    fail(SIM_FAULT_STATUS, kUnrecoveredRead, 5, 0);
    spread(100, 4096);
    gpunvme_ioc_readv v = read_batch(100, GPUNVME_NO_FALLBACK);
    unsigned failed = count_failed(-EIO);
    EXPECT_GE(failed, 80u);
    EXPECT_EQ(v.bytes, bytes_of(100));
}

TEST_F(Readv, WithoutFallbackABatchWhoseCommandsAreAlwaysLostEnds)
{
    open(with(&rig_config::deadline_ms, RIG_DEADLINE_MS));
    for (uint64_t i = 0; i < 100; i++)
        pieces()[i] = {i * 4096, i * 4096, 4096, -1}; // a command each
    fail(SIM_FAULT_LOSE, 0, 20, 0);
    gpunvme_ioc_readv v = read_batch(100, GPUNVME_NO_FALLBACK);
    unsigned failed = count_failed(-ETIMEDOUT);
    EXPECT_GE(failed, 60u);
    EXPECT_LT(v.commands, 110u) << "not each piece alone";
    EXPECT_EQ(rig_quarantined(rig_), 0u);
}

TEST_F(Readv, AControllerThatStopsIsResetAndTheRestIsRead)
{
    open(with(&rig_config::deadline_ms, RIG_DEADLINE_MS));
    fail(SIM_FAULT_FATAL, 0, 30000, 1);
    spread(kPieces, 64);
    gpunvme_ioc_readv v = read_batch(kPieces);
    EXPECT_EQ(v.bytes, bytes_of(kPieces));
    expect_pieces(kPieces);
}

// Two resets: after three in a row the controller is declared failed.
TEST_F(Readv, ResetsByOthersAreInvisible)
{
    open();
    spread(kPieces, 64);
    gpunvme_ioc_readv v = request(kPieces);
    std::atomic<int> err{1};
    std::thread reader([&] { err = rig_readv(rig_, 0, &v); });
    for (int i = 0; i < 2 && err == 1; i++) {
        EXPECT_EQ(rig_reset(rig_), 0);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    reader.join();
    EXPECT_EQ(err, 0);
    EXPECT_EQ(v.path, GPUNVME_PATH_GPU);
    EXPECT_EQ(v.bytes, bytes_of(kPieces));
    expect_pieces(kPieces);
}

TEST_F(Readv, TheCallersDeadlineEndsTheBatch)
{
    open(with(&rig_config::deadline_ms, 2000));
    fail(SIM_FAULT_LOSE, 0, 0, 1);
    spread(100, 4096);
    gpunvme_ioc_readv v = request(100);
    v.deadline_ms = 50;
    EXPECT_EQ(rig_readv(rig_, 0, &v), -ETIMEDOUT);
    unsigned cancelled = count_failed(-ECANCELED);
    EXPECT_GE(cancelled, 1u);
    EXPECT_EQ(rig_quarantined(rig_), 0u);
}

TEST_F(Readv, ACancelledBatchIsInterruptedAndEveryPieceReportsIt)
{
    open();
    spread(kPieces, 4096);
    gpunvme_ioc_readv v = request(kPieces);
    EXPECT_EQ(rig_readv_cancelled(rig_, &v), -EINTR);
    EXPECT_EQ(v.bytes, 0u);
    for (uint64_t i = 0; i < kPieces; i++)
        ASSERT_EQ(pieces()[i].result, -ECANCELED) << i;
}

TEST_F(Readv, MemoryOutOfTheDrivesReachIsStagedByTheExecutor)
{
    open(with(&rig_config::unreachable, true));
    spread(100, 4096);
    gpunvme_ioc_readv v = read_batch(100);
    EXPECT_EQ(v.path, GPUNVME_PATH_GPU);
    EXPECT_GT(v.commands, 0u);
    expect_pieces(100);
    v = request(100, GPUNVME_NO_FALLBACK);
    EXPECT_EQ(rig_readv(rig_, 0, &v), 0);
}

TEST_F(Readv, AnEndingListOrBufferEndsTheBatch)
{
    for (bool list : {true, false}) {
        open(with(&rig_config::bytes_per_sec, 8u << 20));
        spread(20000, 512);
        gpunvme_ioc_readv v = request(20000);
        int err = -1;
        const uint64_t before = reads();
        std::thread reader([&] { err = rig_readv(rig_, 0, &v); });
        await_read(before);
        EXPECT_EQ(rig_unregister(rig_, list ? &list_ : &buffer_, 0), 0);
        EXPECT_EQ(rig_buffers(rig_), 1u);
        reader.join();
        EXPECT_EQ(err, -EINTR);
        EXPECT_EQ(v.bytes, bytes_of(20000));
        if (list)
            TearDown();
    }
}

// --- Lists ---------------------------------------------------------------------------------------

// BadBatchTest has the batches that are invalid for any caller.
TEST_F(Readv, RefusesListsOfOthersAndOfThePast)
{
    open();
    spread(2, 512);
    gpunvme_ioc_readv v = request(2);
    EXPECT_EQ(rig_readv(rig_, 1000, &v), -EACCES) << "another user";
    EXPECT_EQ(pieces()[0].result, -1) << "nothing was begun";
    EXPECT_EQ(buffer_.data[0], 0xee);
    EXPECT_EQ(rig_unregister(rig_, &list_, 0), 0);
    EXPECT_EQ(rig_readv(rig_, 0, &v), -ENOENT) << "stale";
}

// With a list that changes meanwhile, no byte outside the buffer changes, and
// the batch ends.
TEST_F(Readv, AListThatChangesMeanwhileDoesNoHarm)
{
    open();
    std::atomic<bool> stop{false};
    constexpr uint64_t kCount = 5000;
    spread(kCount, 64);
    std::thread changer([&] {
        std::mt19937_64 random(9);
        auto *words = reinterpret_cast<volatile uint64_t *>(list_.data);
        while (!stop) {
            uint64_t r = random();
            words[r % (kCount * 3)] = r % 3 ? random() % 8192 : random();
        }
    });
    for (int i = 0; i < 3; i++) {
        gpunvme_ioc_readv v = request(kCount);
        EXPECT_EQ(rig_readv(rig_, 0, &v), 0);
        EXPECT_EQ(v.path & ~GPUNVME_PATH_MIXED, 0u);
    }
    stop = true;
    changer.join();
    spread(kCount, 64);
    gpunvme_ioc_readv v = read_batch(kCount);
    EXPECT_EQ(v.path, GPUNVME_PATH_GPU);
    expect_pieces(kCount);
}

// A result overwritten by the client with an error has the piece read again.
TEST_F(Readv, ResultsWrittenByOthersDoNoHarm)
{
    open();
    std::atomic<bool> stop{false};
    constexpr uint64_t kCount = 500;
    spread(kCount, 512);
    std::thread changer([&] {
        const int32_t odd[] = {-EIO, -EAGAIN, -E2BIG, -1, 0, INT32_MAX, INT32_MIN};
        for (uint64_t i = 0; !stop; i++) {
            static_cast<volatile gpunvme_piece *>(pieces())[i * 7 % kCount].result = odd[i % 7];
            if (i % 64 == 0) // yields on a busy machine
                std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
    });
    for (int i = 0; i < 10; i++) {
        fail(SIM_FAULT_STATUS, kUnrecoveredRead, 100, 1); // so that they are looked at
        gpunvme_ioc_readv v = request(kCount);
        int err = rig_readv(rig_, 0, &v);
        EXPECT_TRUE(err == 0 || err == -E2BIG) << err;
        EXPECT_LE(v.commands, 2 * (2 * kCount + 2));
    }
    stop = true;
    changer.join();
    spread(kCount, 512);
    read_batch(kCount);
    expect_pieces(kCount);
}

TEST_F(Readv, ManyThreadsReadAtOnce)
{
    open();
    constexpr uint64_t kThreads = 6, kEach = 5000;
    spread(kThreads * kEach, 128);
    std::vector<int> errors(kThreads, -1);
    in_threads(kThreads, [&](uint64_t t) {
        gpunvme_ioc_readv v = request(kEach);
        v.first = t * kEach;
        errors[t] = rig_readv(rig_, 0, &v);
    });
    EXPECT_EQ(errors, std::vector<int>(kThreads, 0));
    expect_pieces(kThreads * kEach);
}

// --- The limit of bytes of a list ----------------------------------------------------------------

constexpr uint64_t kMost = 4ull << 30; // bytes of all pieces, for a buffer that is shorter

constexpr uint64_t kZeros = 1u << 30;

using ReadvLength = ReadvWays;

TEST_P(ReadvLength, AListOfMaximumLengthIsReadCompletely)
{
    open(config_of(GetParam()));
    ASSERT_EQ(rig_write_file(rig_, kZeros + kBytes, content_.data(), 1), 0);
    constexpr uint64_t kCount = kMost / kBytes;
    std::fill_n(pieces(), kCount, gpunvme_piece{kZeros, 0, kBytes, -1});
    std::fill_n(pieces() + kCount, kCount, gpunvme_piece{1ull << 40, 0, kBytes, -1});
    gpunvme_ioc_readv v = request(2 * kCount);
    ASSERT_EQ(rig_readv(rig_, 0, &v), 0) << "what is past the end is no byte";
    EXPECT_EQ(v.bytes, kMost);
    for (uint64_t i = 0; i < 2 * kCount; i++)
        ASSERT_EQ(pieces()[i].result, i < kCount ? static_cast<int32_t>(kBytes) : 0) << i;
}

// One queue: it stops soon after the bytes exceed the limit.
TEST_P(ReadvLength, ALongerListIsReadUpToTheLimit)
{
    open(config_of(GetParam()));
    ASSERT_EQ(rig_write_file(rig_, kZeros + kBytes, content_.data(), 1), 0);
    constexpr uint64_t kCount = 3 * kMost / kBytes;
    std::fill_n(pieces(), kCount, gpunvme_piece{kZeros, 0, kBytes, -1});
    gpunvme_ioc_readv v = request(kCount);
    EXPECT_EQ(rig_readv(rig_, 0, &v), -E2BIG);
    EXPECT_EQ(v.path, path());
    EXPECT_GE(v.bytes, kMost - kBytes);
    EXPECT_LE(v.bytes, 2 * kMost);
    EXPECT_EQ(v.bytes, bytes_of(kCount));
    for (uint64_t i = 0; i < kCount; i++)
        ASSERT_TRUE(pieces()[i].result == static_cast<int32_t>(kBytes) ||
                    pieces()[i].result == -E2BIG)
            << i << ": " << pieces()[i].result;
}

INSTANTIATE_TEST_SUITE_P(Paths, ReadvLength, ways_of_one_queue(), name_of);

// The second part of the map exhausts the limit; pieces of the first part that
// follow are left out.
TEST_F(Readv, ATooLongListKeepsTheResultsOfItsParts)
{
    open(with(&rig_config::image_bytes, 512u << 20));
    ASSERT_EQ(rig_fragment(rig_, 8u << 20, (8u << 20) + 36000 * 8192ull), 0);
    ASSERT_EQ(rig_write_file(rig_, kZeros + kBytes, content_.data(), 1), 0);
    constexpr uint32_t kLength = kBytes - 65536;
    constexpr uint64_t kLong = 3 * kMost / kLength, kCount = kLong + 1000;
    spread(kCount, 64);
    std::fill_n(pieces(), kLong, gpunvme_piece{kZeros, 0, kLength, -1});
    for (uint64_t i = kLong; i < kCount; i++)
        pieces()[i].buffer_offset = kLength + (i - kLong) * 64;
    gpunvme_ioc_readv v = request(kCount);
    EXPECT_EQ(rig_readv(rig_, 0, &v), -E2BIG);
    EXPECT_GE(v.bytes, kMost - kBytes);
    EXPECT_LE(v.bytes, kMost + kMost / 2) << "nor is the rest read piece by piece";
    EXPECT_EQ(v.bytes, bytes_of(kCount));
    EXPECT_EQ(pieces()[kLong - 1].result, -E2BIG);
    expect_pieces(kCount, kLong);
}

// A slow batch whose last pieces are empty until it has begun.
class ReadvGrowing : public ReadvWays
{
  protected:
    static constexpr uint64_t kGrown = kPieces - 3000;

    void SetUp() override
    {
        rig_config config = config_of(GetParam());
        config.bytes_per_sec = 8u << 20;
        open(config);
        ASSERT_EQ(rig_write_file(rig_, kZeros + kBytes, content_.data(), 1), 0);
    }
    void read_and_grow(gpunvme_ioc_readv *v)
    {
        std::fill_n(pieces(), kPieces, gpunvme_piece{kZeros, 0, 0, -1});
        spread(2000, 512);
        const uint64_t before = reads();
        std::atomic<int> err{1};
        std::thread reader([&] { err = rig_readv(rig_, 0, v); });
        while (err == 1 && reads() <= before + 10)
            std::this_thread::yield();
        for (uint64_t i = kGrown; i < kPieces; i++)
            pieces()[i].len = kBytes;
        reader.join();
        EXPECT_TRUE(err == -E2BIG || (err == 0 && pieces()[kGrown].result == 0)) << err;
    }
};

TEST_P(ReadvGrowing, IsNotReadToItsEnd)
{
    gpunvme_ioc_readv v;
    do {
        v = request(kPieces);
        read_and_grow(&v);
    } while (pieces()[kGrown].result == 0); // too late
    EXPECT_EQ(pieces()[0].result, expected(pieces()[0]));
    EXPECT_EQ(pieces()[kGrown].result, static_cast<int32_t>(kBytes));
    EXPECT_EQ(pieces()[kPieces - 1].result, -E2BIG);
    EXPECT_LE(v.bytes, 2 * kMost);
}

INSTANTIATE_TEST_SUITE_P(Paths, ReadvGrowing, ways_of_one_queue(), name_of);

} // namespace
