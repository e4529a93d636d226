/* SPDX-License-Identifier: BSD-2-Clause */
/* Queues of every shape: depth, wrap, order, number, and how many threads use them at once. */
#include <algorithm>
#include <chrono>
#include <memory>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cuda/gq_rig.h"
#include "tests/threads.h"

namespace
{

using GqQueue = GqTest;

/* Reads the whole namespace, a command per 512 bytes, and compares it. */
void read_all(Rig &rig)
{
    Target m(rig, rig.media.size());

    ASSERT_EQ(rig.move(GQ_READ, m, 0, {{0, rig.media.size()}}, 0, rig.media.size()), 0);
    EXPECT_EQ(rig.result.commands, rig.media.size() / 512);
    EXPECT_TRUE(m.holds(0, rig.media));
}

TEST_P(GqQueue, WorksAtAnyDepthWithCompletionsOutOfOrder)
{
    for (unsigned depth : {2, 3, 4, 5, 31, 32, 33, 34, 64, 1024}) {
        Rig rig(GetParam(), 512, 1u << 20);

        rig.opts.queues = 1;
        rig.opts.depth = depth;
        rig.opts.max_command = 512;
        rig.cfg.reorder = true;
        rig.cfg.seed = depth;
        rig.open();
        SCOPED_TRACE(depth);
        read_all(rig);
    }
}

/* What serves short lists on a GPU leaves after a while, just now perhaps, and has to come back. */
TEST_P(GqQueue, ServesShortReadsAfterPausesOfAnyLength)
{
    OpenRig rig(GetParam(), 512, 64u << 10);
    Target m(rig, 4096);
    for (uint64_t i = 0; i < 1500; i++) {
        auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(i % 500);
        uint64_t lba = i * 37 % 120;

        while (std::chrono::steady_clock::now() < until)
            ;
        ASSERT_EQ(rig.move(GQ_READ, m, 0, {{lba, 4096}}, 0, 4096), 0) << i;
        ASSERT_EQ(m.read(0, 4096)[i % 4096], rig.media[lba * 512 + i % 4096]) << i;
    }
    EXPECT_EQ(rig.stats().timeouts, 0u);
}

TEST_P(GqQueue, KeepsPhaseAndPositionFromTransferToTransfer)
{
    Rig rig(GetParam(), 512, 64u << 10);

    rig.opts.queues = 1;
    rig.opts.depth = 5;
    rig.open();
    Target m(rig, 4096);
    for (uint64_t i = 0; i < 200; i++) {
        uint64_t lba = i * 37 % 128;

        ASSERT_EQ(rig.move(GQ_READ, m, 0, {{lba, 512}}, 0, 512), 0) << i;
        ASSERT_EQ(m.read(0, 512)[17], rig.media[lba * 512 + 17]) << i;
    }
}

TEST_P(GqQueue, SpreadsALargeTransferOverManyQueues)
{
    Rig rig(GetParam(), 512, 4u << 20);

    rig.opts.queues = 32;
    rig.opts.depth = 8;
    rig.opts.max_command = 512;
    rig.cfg.reorder = true;
    rig.cfg.threads = 2;
    rig.open();
    gq_info info;
    gq_engine_info(rig.e, &info);
    EXPECT_EQ(info.queues, 32u);
    read_all(rig);
}

TEST_P(GqQueue, TakesWhatTheControllerGives)
{
    Rig rig(GetParam(), 512, 1u << 20);

    rig.cfg.io_queues = 3;
    rig.cfg.max_depth = 16;
    rig.opts.queues = 64;
    rig.opts.depth = 4096;
    rig.opts.max_command = 512;
    rig.open();
    gq_info info;
    gq_engine_info(rig.e, &info);
    EXPECT_EQ(info.queues, 3u);
    EXPECT_EQ(info.depth, 16u);
    read_all(rig);
}

TEST_P(GqQueue, DrivesQueuesFromSeveralThreads)
{
    Rig rig(GetParam(), 512, 2u << 20);

    rig.opts.queues = 8;
    rig.opts.cpu_threads = 3;
    rig.opts.max_command = 512;
    rig.open();
    read_all(rig);
}

/*
 * More transfers at once than workspaces: some wait. Memory is allocated and
 * freed outside the threads: cudaMalloc and cudaFree may wait for running
 * kernels, which wait for copies that the simulator cannot start meanwhile.
 */
TEST_P(GqQueue, ServesManyThreadsAtOnce)
{
    const size_t len = 256u << 10;
    Rig rig(GetParam(), 4096, 4u << 20);
    std::vector<std::unique_ptr<Memory>> memory;

    rig.opts.queues = 4;
    rig.opts.max_command = 4096;
    rig.open();
    for (unsigned t = 0; t < 6; t++)
        memory.push_back(std::make_unique<Memory>(rig.x.kind, len));
    in_threads(6, [&](unsigned t) {
        Memory &m = *memory[t];
        gq_buffer *b = rig.add(m, 0, len);

        for (unsigned i = 0; i < 10; i++) {
            gq_file_extent x = {0, (t * 7 + i * 13) % 960};
            gq_request req = {GQ_READ, b, 0, 0, len, &x, 1, len, 0, nullptr, nullptr};
            gq_result result;

            EXPECT_EQ(gq_transfer(rig.e, &req, &result), 0);
            Bytes got = m.read(0, len);
            EXPECT_TRUE(
                std::equal(got.begin(), got.end(), rig.media.begin() + (ptrdiff_t)(x.lba * 4096)));
        }
        gq_buffer_unregister(b);
    });
    EXPECT_EQ(rig.stats().transfers, 60u);
    EXPECT_EQ(rig.stats().buffers, 0u);
}

/* What another process hands over by descriptor: 200000 bytes at an odd place of it. */
class SharedMemory : public GqQueue
{
  protected:
    static constexpr size_t kAll = 300000, kAt = 5003, kLen = 200000;

    void TearDown() override { close(fd_); }
    gq_buffer *add(Rig &rig)
    {
        gq_mem mem = {GQ_MEM_FD, nullptr, fd_, kAt, kLen, {}, nullptr, 0, false, false, false};
        gq_buffer *b = nullptr;

        EXPECT_EQ(ftruncate(fd_, kAll), 0);
        EXPECT_EQ(gq_buffer_register(rig.e, &mem, &b), 0);
        return b;
    }
    Bytes all()
    {
        Bytes got(kAll);

        EXPECT_EQ(pread(fd_, got.data(), kAll, 0), (ssize_t)kAll);
        return got;
    }

    int fd_ = memfd_create("gq-test", MFD_CLOEXEC);
};

/* Also where the controller reaches no memory of a device. */
TEST_P(SharedMemory, IsReadIntoFromAnyOffset)
{
    for (bool no_peer : {false, true}) {
        Rig rig(GetParam(), 512, 1u << 20);
        rig.no_peer = no_peer;
        rig.open();
        gq_buffer *b = add(rig);
        ASSERT_TRUE(b);
        EXPECT_NE(gq_buffer_is_reachable(b), rig.x.staged && rig.x.kind == GQ_EXECUTOR_CPU)
            << "pinned host memory is in reach";
        ASSERT_EQ(rig.move(GQ_READ, b, 0, {{0, 1u << 20}}, 77, kLen), 0);
        Bytes got = all();
        EXPECT_TRUE(std::equal(got.begin() + kAt, got.begin() + kAt + kLen, &rig.media[77]));
        EXPECT_EQ(got[kAt - 1] | got[kAt + kLen], 0);
        ASSERT_EQ(rig.move(GQ_READ, b, 1000, {{GQ_LBA_ZERO, 8192}, {0, 4096}}, 5, 12000), 0);
        got = all();
        EXPECT_EQ(std::count(&got[kAt + 1000], &got[kAt + 1000 + 8187], 0), 8187) << "a hole";
        EXPECT_TRUE(std::equal(&got[kAt + 9187], &got[kAt + 13000], rig.media.begin()));
        gq_buffer_unregister(b);
    }
}

TEST_P(SharedMemory, IsWrittenFromAndCopied)
{
    OpenRig rig(GetParam(), 512, 1u << 20);
    Bytes data = random_bytes(70000, 5), back(data.size());

    gq_buffer *b = add(rig);
    ASSERT_TRUE(b);
    ASSERT_EQ(gq_buffer_put(b, 300, data.data(), data.size()), 0);
    Bytes got = all();
    EXPECT_TRUE(std::equal(data.begin(), data.end(), &got[kAt + 300]));
    ASSERT_EQ(rig.move(GQ_WRITE, b, 300, {{16, 69632}}, 0, 69632), 0);
    EXPECT_TRUE(rig.peek(8192, 69632) == Bytes(data.begin(), data.begin() + 69632));
    const char zeros[10] = {};
    ASSERT_EQ(gq_buffer_put(b, 301, zeros, sizeof(zeros)), 0);
    ASSERT_EQ(gq_buffer_get(b, 300, back.data(), back.size()), 0);
    std::fill_n(data.begin() + 1, 10, 0);
    EXPECT_TRUE(back == data);
    gq_buffer_unregister(b);
}

TEST_P(SharedMemory, IsRefusedPastItsEnd)
{
    OpenRig rig(GetParam(), 512, 1u << 20);
    gq_mem mem = {GQ_MEM_FD, nullptr, fd_, kAt, kAll, {}, nullptr, 0, false, false, false};
    gq_buffer *b = nullptr;

    ASSERT_EQ(ftruncate(fd_, kAll), 0);
    EXPECT_EQ(gq_buffer_register(rig.e, &mem, &b), -EFAULT);
    mem.offset = UINT64_MAX - 4096;
    EXPECT_EQ(gq_buffer_register(rig.e, &mem, &b), -EINVAL) << "wraps";
    EXPECT_EQ(rig.stats().buffers, 0u);
}

GQ_FOR_EXECUTORS(GqQueue);
GQ_FOR_EXECUTORS(SharedMemory);

} // namespace
