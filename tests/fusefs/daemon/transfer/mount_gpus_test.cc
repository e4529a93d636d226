/* SPDX-License-Identifier: BSD-2-Clause */
// Tests a mount with several GPUs, for which CPU executors stand in.
#include <errno.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "fusefs/daemon/start/mount_gpus.h"
#include "tests/fusefs/daemon/rig_test.h"

// Time that has passed for the daemon only.
static std::atomic<int> skipped_s;

extern "C" int __real_clock_gettime(clockid_t clock, timespec *ts);
extern "C" int __wrap_clock_gettime(clockid_t clock, timespec *ts)
{
    int err = __real_clock_gettime(clock, ts);

    ts->tv_sec += skipped_s;
    return err;
}

// Number of the CPU executor that does not start, or -1.
static std::atomic<int> broken{-1};
// Opening an executor takes until this is false.
static std::atomic<bool> opening_waits, opening;
static std::atomic<unsigned> wait_ms; // of the next table; 0: as in the daemon

extern "C" int __real_gq_engine_open(nvme_ctrlr *c, uint32_t nsid, const gq_options *options,
                                     gq_engine **out);
extern "C" int __wrap_gq_engine_open(nvme_ctrlr *c, uint32_t nsid, const gq_options *options,
                                     gq_engine **out)
{
    opening = true;
    while (opening_waits)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return options->device == broken ? -ENODEV : __real_gq_engine_open(c, nsid, options, out);
}

extern "C" int __real_gpus_open(const gpus_config *config, gpus **out, gq_info *info);
extern "C" int __wrap_gpus_open(const gpus_config *config, gpus **out, gq_info *info)
{
    gpus_config changed = *config;

    changed.wait_ms = wait_ms ? wait_ms.load() : config->wait_ms;
    return __real_gpus_open(&changed, out, info);
}

namespace
{

constexpr uint64_t kBytes = 2u << 20;
constexpr unsigned kIdleSeconds = 10;

class MountGpus : public RigTest
{
  protected:
    void SetUp() override { open(0); }
    void open(unsigned first_gpu)
    {
        ASSERT_NO_FATAL_FAILURE(
            open_rig(with(&rig_config::first_gpu, first_gpu, with(&rig_config::gpus, 3))));
        write_content(kBytes);
    }
    void TearDown() override
    {
        for (unsigned i = 0; i < 3; i++)
            rig_lose_gpu(rig_, i, false);
        for (rig_buffer &b : buffers_)
            rig_forget(&b);
        RigTest::TearDown();
        skipped_s = 0;
        broken = -1;
    }
    rig_buffer on(unsigned gpu)
    {
        rig_buffer b = {};

        EXPECT_EQ(rig_register_on(rig_, gpu, kBytes, 0, &b), 0);
        memset(b.data, 0xa5, kBytes);
        buffers_.push_back(b);
        return b;
    }
    // Returns the path of a read of the whole file, or -errno.
    int read(const rig_buffer &b, uint32_t flags = 0)
    {
        gpunvme_ioc_rw rw = request_of(b, kBytes, flags);
        int err = rig_transfer(rig_, false, 0, &rw);

        if (err)
            return err;
        EXPECT_EQ(rw.bytes, kBytes);
        EXPECT_EQ(memcmp(b.data, content_.data(), kBytes), 0);
        return static_cast<int>(rw.path);
    }
    // Returns the path of a READV of every second page, or -errno.
    int read_list(const rig_buffer &b, const rig_buffer &list)
    {
        auto *pieces = reinterpret_cast<gpunvme_piece *>(list.data);
        gpunvme_ioc_readv v = list_of(b, list, kBytes / 8192);

        for (uint64_t i = 0; i < v.count; i++)
            pieces[i] = {i * 8192, i * 8192, 4096, -1};
        int err = rig_readv(rig_, 0, &v);
        for (uint64_t i = 0; i < v.count && !err; i++) {
            EXPECT_EQ(pieces[i].result, 4096);
            EXPECT_EQ(memcmp(b.data + i * 8192, &content_[i * 8192], 4096), 0) << "piece " << i;
        }
        return err ? err : static_cast<int>(v.path);
    }

    std::vector<rig_buffer> buffers_;
};

TEST_F(MountGpus, EachGpuServesItsBuffers)
{
    rig_buffer b[] = {on(0), on(1), on(2)};

    for (unsigned i = 0; i < 3; i++) {
        EXPECT_EQ(read(b[i]), GPUNVME_PATH_GPU);
        for (unsigned j = 0; j < 3; j++)
            EXPECT_EQ(rig_gpu(rig_, j).bytes_read, j <= i ? kBytes : 0) << j << " after " << i;
    }
    gpunvme_ioc_rw rw = request_of(b[1], kBytes);
    content_.assign(kBytes, 'w');
    memset(b[1].data, 'w', kBytes);
    ASSERT_EQ(rig_transfer(rig_, true, 0, &rw), 0);
    EXPECT_EQ(rw.path, GPUNVME_PATH_GPU);
    EXPECT_EQ(read(b[2]), GPUNVME_PATH_GPU);
}

TEST_F(MountGpus, AListServesTheBuffersOfAllGpus)
{
    rig_buffer list = {}, b[] = {on(0), on(1), on(2)};

    ASSERT_EQ(rig_register_list(rig_, 65536, 0, &list), 0);
    EXPECT_EQ(rig_gpu(rig_, 1).buffers, 1u);
    for (const rig_buffer &each : b) {
        EXPECT_EQ(read_list(each, list), GPUNVME_PATH_GPU);
        memset(each.data, 0, kBytes);
        EXPECT_EQ(read_list(each, list), GPUNVME_PATH_GPU);
    }
    EXPECT_EQ(rig_gpu(rig_, 1).buffers, 2u) << "the list, too";
    EXPECT_EQ(rig_unregister(rig_, &list, 0), 0);
    EXPECT_EQ(rig_gpu(rig_, 1).buffers, 1u);
    rig_forget(&list);
}

TEST_F(MountGpus, AGpuThatTheMountDoesNotServeIsRefused)
{
    rig_buffer b = {};

    EXPECT_EQ(rig_register_on(rig_, 3, kBytes, 0, &b), -EXDEV);
    EXPECT_EQ(rig_buffers(rig_), 0u);
}

// Only the first executor stays open without buffers.
TEST_F(MountGpus, AnExecutorIsOpenWhileItsGpuHasBuffers)
{
    EXPECT_TRUE(rig_gpu(rig_, 0).open);
    EXPECT_FALSE(rig_gpu(rig_, 1).open);
    rig_buffer b = on(1);
    EXPECT_TRUE(rig_gpu(rig_, 1).open);
    EXPECT_FALSE(rig_gpu(rig_, 2).open);
    EXPECT_EQ(read(b), GPUNVME_PATH_GPU);

    skipped_s += 2 * kIdleSeconds;
    rig_tend(rig_);
    EXPECT_TRUE(rig_gpu(rig_, 1).open) << "it has a buffer";
    EXPECT_EQ(rig_unregister(rig_, &b, 0), 0);
    rig_tend(rig_);
    EXPECT_TRUE(rig_gpu(rig_, 1).open) << "the next buffer may follow";
    skipped_s += kIdleSeconds + 1;
    rig_tend(rig_);
    EXPECT_FALSE(rig_gpu(rig_, 1).open);
    EXPECT_TRUE(rig_gpu(rig_, 0).open);
    EXPECT_EQ(rig_gpu(rig_, 1).bytes_read, kBytes) << "counters stay";

    EXPECT_EQ(read(on(1)), GPUNVME_PATH_GPU);
    EXPECT_EQ(rig_gpu(rig_, 1).bytes_read, 2 * kBytes);
}

TEST_F(MountGpus, OnlyTransfersOfALostGpuLeaveTheGpuPath)
{
    constexpr int kEnough = 20;
    rig_buffer b[] = {on(0), on(1)};
    std::atomic<int> on_the_gpu[2] = {}, lost_reads{0};
    std::atomic<bool> stop{false};
    auto reader = [&](int i) {
        while (!stop) {
            int path = read(b[i]);
            on_the_gpu[i] += path == GPUNVME_PATH_GPU;
            lost_reads += path != GPUNVME_PATH_GPU && i == 1;
            EXPECT_TRUE(i == 1 || path == GPUNVME_PATH_GPU) << path;
        }
    };
    auto await = [](const std::atomic<int> &n, int most) {
        while (n < most && !::testing::Test::HasFailure())
            std::this_thread::yield();
    };
    std::thread first(reader, 0), second(reader, 1);
    await(on_the_gpu[1], kEnough);
    rig_lose_gpu(rig_, 1, true);
    await(lost_reads, kEnough);
    int before = on_the_gpu[0];
    await(on_the_gpu[0], before + kEnough);
    stop = true;
    first.join();
    second.join();
    EXPECT_TRUE(rig_gpu(rig_, 1).lost);
    EXPECT_FALSE(rig_gpu(rig_, 0).lost);
    EXPECT_EQ(read(b[1], GPUNVME_NO_FALLBACK), -EREMOTEIO);
}

TEST_F(MountGpus, ALostGpuIsTakenUpAgainWithoutBuffers)
{
    rig_buffer refused = {}, b[] = {on(1), on(1)};

    rig_lose_gpu(rig_, 1, true);
    EXPECT_EQ(read(b[0]), GPUNVME_PATH_BOUNCE);
    rig_lose_gpu(rig_, 1, false);
    EXPECT_EQ(read(b[0]), GPUNVME_PATH_BOUNCE) << "its executor has failed";
    EXPECT_EQ(rig_register_on(rig_, 1, kBytes, 0, &refused), -ENODEV);
    EXPECT_EQ(rig_unregister(rig_, &b[0], 0), 0);
    rig_tend(rig_);
    EXPECT_TRUE(rig_gpu(rig_, 1).open) << "the other buffer is in use";
    EXPECT_EQ(rig_unregister(rig_, &b[1], 0), 0);
    rig_tend(rig_);
    EXPECT_FALSE(rig_gpu(rig_, 1).open);
    EXPECT_EQ(read(on(1)), GPUNVME_PATH_GPU);
    EXPECT_FALSE(rig_gpu(rig_, 1).lost);
}

// Memory of the host may go to any GPU.
TEST_F(MountGpus, ALostFirstGpuIsReplacedByTheNext)
{
    rig_buffer b = on(0), host = {};

    rig_lose_gpu(rig_, 0, true);
    EXPECT_EQ(read(b), GPUNVME_PATH_BOUNCE);
    ASSERT_EQ(rig_register(rig_, kBytes, 0, &host), 0);
    buffers_.push_back(host);
    EXPECT_EQ(read(host), GPUNVME_PATH_GPU);
    EXPECT_EQ(rig_gpu(rig_, 1).bytes_read, kBytes);
}

TEST_F(MountGpus, AFirstGpuThatDoesNotWorkLeavesTheOthers)
{
    rig_buffer host = {}, refused = {};

    ASSERT_EQ(rig_close(rig_), 0);
    broken = 1;
    ASSERT_NO_FATAL_FAILURE(open(1));
    EXPECT_TRUE(rig_gpu(rig_, 0).lost);
    EXPECT_TRUE(rig_gpu(rig_, 1).open);
    ASSERT_EQ(rig_register(rig_, kBytes, 0, &host), 0);
    buffers_.push_back(host);
    EXPECT_EQ(read(host), GPUNVME_PATH_GPU);
    EXPECT_EQ(rig_gpu(rig_, 1).bytes_read, kBytes);
    EXPECT_EQ(read(on(3)), GPUNVME_PATH_GPU);
    EXPECT_EQ(rig_register_on(rig_, 1, kBytes, 0, &refused), -ENODEV);
    rig_forget(&refused);
    broken = -1;
    EXPECT_EQ(read(on(1)), GPUNVME_PATH_GPU) << "it works now";
    EXPECT_FALSE(rig_gpu(rig_, 0).lost);
}

TEST_F(MountGpus, AResetGoesOnWithAllExecutors)
{
    rig_buffer b[] = {on(0), on(1), on(2)};

    ASSERT_EQ(rig_reset(rig_), 0);
    for (const rig_buffer &each : b)
        EXPECT_EQ(read(each), GPUNVME_PATH_GPU);
}

class SlowExecutor : public MountGpus
{
  protected:
    void SetUp() override
    {
        wait_ms = 100;
        MountGpus::SetUp();
        wait_ms = 0;
    }
};

TEST_F(SlowExecutor, OthersDoNotWaitForItWithoutEnd)
{
    rig_buffer first = {}, second = {};
    int err = 0;

    opening = false;
    opening_waits = true;
    std::thread slow([&] { err = rig_register_on(rig_, 1, kBytes, 0, &first); });
    while (!opening)
        std::this_thread::yield();
    EXPECT_EQ(rig_register_on(rig_, 1, kBytes, 0, &second), -ETIMEDOUT);
    EXPECT_EQ(read(on(0)), GPUNVME_PATH_GPU);
    opening_waits = false;
    slow.join();
    ASSERT_EQ(err, 0);
    buffers_.push_back(first);
    memset(first.data, 0xa5, kBytes);
    EXPECT_EQ(read(first), GPUNVME_PATH_GPU);
    EXPECT_EQ(read(on(1)), GPUNVME_PATH_GPU);
}

} // namespace
