/* Queues of every shape: depth, wrap, order, number, and how many threads use them at once. */
#include <chrono>
#include <memory>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

#include "tests/cuda/gq_rig.h"

namespace
{

class GqQueue : public GqTest
{
};

/* Reads the whole namespace, a command per 512 bytes, and compares it. */
void read_all(Rig &rig)
{
    Memory m(rig.x.kind, rig.media.size());
    gq_buffer *b = rig.add(m, 0, rig.media.size());

    ASSERT_EQ(rig.move(GQ_READ, b, 0, {{0, rig.media.size()}}, 0, rig.media.size()), 0);
    EXPECT_EQ(rig.result.commands, rig.media.size() / 512);
    EXPECT_TRUE(m.read(0, rig.media.size()) == rig.media);
    gq_buffer_unregister(b);
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
    Rig rig(GetParam(), 512, 64u << 10);

    rig.open();
    Memory m(rig.x.kind, 4096);
    gq_buffer *b = rig.add(m, 0, 4096);
    for (uint64_t i = 0; i < 1500; i++) {
        auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(i % 500);
        uint64_t lba = i * 37 % 120;

        while (std::chrono::steady_clock::now() < until)
            ;
        ASSERT_EQ(rig.move(GQ_READ, b, 0, {{lba, 4096}}, 0, 4096), 0) << i;
        ASSERT_EQ(m.read(0, 4096)[i % 4096], rig.media[lba * 512 + i % 4096]) << i;
    }
    EXPECT_EQ(rig.stats().timeouts, 0u);
    gq_buffer_unregister(b);
}

TEST_P(GqQueue, KeepsPhaseAndPositionFromTransferToTransfer)
{
    Rig rig(GetParam(), 512, 64u << 10);

    rig.opts.queues = 1;
    rig.opts.depth = 5;
    rig.open();
    Memory m(rig.x.kind, 4096);
    gq_buffer *b = rig.add(m, 0, 4096);
    for (uint64_t i = 0; i < 200; i++) {
        uint64_t lba = i * 37 % 128;

        ASSERT_EQ(rig.move(GQ_READ, b, 0, {{lba, 512}}, 0, 512), 0) << i;
        ASSERT_EQ(m.read(0, 512)[17], rig.media[lba * 512 + 17]) << i;
    }
    gq_buffer_unregister(b);
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
 * More transfers at once than slots: some wait for others. Memory is taken and given back outside
 * the threads: cudaMalloc and cudaFree may wait for running kernels, which wait for copies that
 * the simulator cannot start meanwhile.
 */
TEST_P(GqQueue, ServesManyThreadsAtOnce)
{
    const size_t len = 256u << 10;
    Rig rig(GetParam(), 4096, 4u << 20);
    std::vector<std::unique_ptr<Memory>> memory;
    std::vector<std::thread> threads;

    rig.opts.queues = 4;
    rig.opts.max_command = 4096;
    rig.open();
    for (unsigned t = 0; t < 6; t++)
        memory.push_back(std::make_unique<Memory>(rig.x.kind, len));
    for (unsigned t = 0; t < 6; t++) {
        threads.emplace_back([&rig, &memory, t] {
            Memory &m = *memory[t];
            gq_buffer *b = rig.add(m, 0, len);

            for (unsigned i = 0; i < 10; i++) {
                gq_extent x = {(t * 7 + i * 13) % 960, len};
                gq_request req = {GQ_READ, b, 0, 0, len, &x, 1, 0, nullptr};
                gq_result result;

                EXPECT_EQ(gq_transfer(rig.e, &req, &result), 0);
                Bytes got = m.read(0, len);
                EXPECT_TRUE(std::equal(got.begin(), got.end(),
                                       rig.media.begin() + (ptrdiff_t)(x.lba * 4096)));
            }
            gq_buffer_unregister(b);
        });
    }
    for (std::thread &t : threads)
        t.join();
    EXPECT_EQ(rig.stats().transfers, 60u);
    EXPECT_EQ(rig.stats().buffers, 0u);
}

/* A memfd is what another process hands to the CPU executor. */
TEST(GqQueueMemory, ReadsIntoAMemfdFromAnyOffset)
{
    Rig rig(kExecutors[0], 512, 1u << 20);
    int fd = memfd_create("gq-test", MFD_CLOEXEC);

    rig.open();
    ASSERT_EQ(ftruncate(fd, 300000), 0);
    gq_mem mem = {GQ_MEM_FD, nullptr, fd, 5003, 200000, {}, false};
    gq_buffer *b = nullptr;
    ASSERT_EQ(gq_buffer_register(rig.e, &mem, &b), 0);
    ASSERT_EQ(rig.move(GQ_READ, b, 0, {{0, 1u << 20}}, 77, 200000), 0);
    Bytes got(300000);
    ASSERT_EQ(pread(fd, got.data(), got.size(), 0), 300000);
    EXPECT_TRUE(std::equal(got.begin() + 5003, got.begin() + 205003, rig.media.begin() + 77));
    EXPECT_EQ(got[5002] | got[205003], 0);
    gq_buffer_unregister(b);
    mem.len = 300000;
    EXPECT_EQ(gq_buffer_register(rig.e, &mem, &b), -EFAULT) << "past the end of the file";
    close(fd);
}

GQ_FOR_EXECUTORS(GqQueue);

} // namespace
