/* SPDX-License-Identifier: BSD-2-Clause */
// The library's copy kernel with the peer windows of the DMA engine: one side
// posts, the other copies, both sleep.
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "gpunvme/gpunvme.h"
#include "sim/gpu/sim_mailbox.h"
#include "sim/gpu/sim_peer_window.h"
#include "tests/client/lib/copy_kernel_rig.h"

namespace
{

using Clock = std::chrono::steady_clock;

constexpr unsigned kChannels = 3, kBlocks = 2;
constexpr size_t kMedia = 1u << 20, kPage = 4096;

// The daemon's side: media in a memfd, and a buffer at another address.
class CopyKernelTest : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        media_fd_ = memfd_create("media", MFD_CLOEXEC);
        ASSERT_EQ(ftruncate(media_fd_, kMedia), 0);
        void *at = mmap(nullptr, kMedia, PROT_READ | PROT_WRITE, MAP_SHARED, media_fd_, 0);
        ASSERT_NE(at, MAP_FAILED);
        media_ = static_cast<unsigned char *>(at);
        std::mt19937 rng(1);
        for (size_t i = 0; i < kMedia; i++)
            media_[i] = static_cast<unsigned char>(rng());
        ASSERT_EQ(sim_peer_windows_open(kChannels, &windows_), 0);
        sim_peer_options opts = {};
        opts.media = media_;
        opts.media_len = kMedia;
        opts.blocks = kBlocks;
        opts.pause_ms = 1000000;
        ASSERT_EQ(sim_peer_open(windows_, &opts, &peer_), 0);
        mount_ = {"sim", {}, {sim_peer_fd(peer_), media_fd_}, 0};
        mount_.reply.len = sim_peer_len(peer_);
        mount_.reply.media_len = kMedia;
        mount_.reply.layout = GPUNVME_COPY_KERNEL_LAYOUT;
        mount_.reply.sets = kChannels;
        mount_.reply.blocks = kBlocks;
    }
    void TearDown() override
    {
        if (rig_)
            copy_kernel_rig_close(rig_);
        sim_peer_close(peer_);
        sim_peer_windows_close(windows_);
        munmap(media_, kMedia);
        close(media_fd_);
    }
    void attach()
    {
        ASSERT_EQ(copy_kernel_rig_open(&mount_, true, &rig_), 0);
        ASSERT_TRUE(copy_kernel_rig_has_copy_kernel(rig_));
        ASSERT_EQ(copy_kernel_rig_attach(rig_, 7), 0);
        copy_kernel_rig_add(rig_, 40, reinterpret_cast<uint64_t>(there_.data()));
        window();
    }
    // Does for the last COPY_KERNEL ioctl what the mount does.
    void window()
    {
        gpunvme_ioc_copy_kernel arg;
        ASSERT_GT(copy_kernel_rig_calls(rig_, &arg), 0u);
        sim_peer_window r = {this, reinterpret_cast<uint64_t>(here_.data()), here_.size(), arg.addr,
                             arg.media};
        ASSERT_EQ(sim_peer_window_add(peer_, &r), 0);
    }
    // Copies `n` pages of the media into the buffer: 1, or the result of the
    // peer windows, within 30 s.
    int copy(unsigned channel, unsigned n, size_t from)
    {
        std::vector<sim_gather> copies;
        sim_peer_copy peer_copy;
        unsigned lost;
        for (unsigned i = 0; i < n; i++)
            copies.push_back({reinterpret_cast<uint64_t>(&here_[i * kPage]),
                              reinterpret_cast<uint64_t>(&media_[from + i * 2 * kPage]), kPage});
        copy_kernel_rig_sync(rig_);
        sim_peer_windows_lock(windows_, channel);
        int rc = sim_peer_windows_plan(windows_, channel, copies.data(), n, &peer_copy);
        if (!rc)
            sim_peer_windows_post(windows_, channel, &peer_copy);
        sim_peer_windows_unlock(windows_, channel);
        if (rc || peer_copy.n_local)
            return rc ? rc : -ENOTSUP;
        for (auto since = Clock::now();
             rc == 0 && Clock::now() - since < std::chrono::seconds(30);) {
            sim_peer_windows_lock(windows_, channel);
            rc = sim_peer_windows_poll(windows_, channel, &peer_copy, &lost);
            sim_peer_windows_unlock(windows_, channel);
        }
        copy_kernel_rig_sync(rig_);
        return rc;
    }
    ::testing::AssertionResult arrived(unsigned n, size_t from)
    {
        for (unsigned i = 0; i < n; i++) {
            if (memcmp(&there_[i * kPage], &media_[from + i * 2 * kPage], kPage) != 0)
                return ::testing::AssertionFailure() << "page " << i;
        }
        return ::testing::AssertionSuccess();
    }
    bool falls_asleep()
    {
        void *at = mmap(nullptr, kPage, PROT_READ, MAP_SHARED, sim_peer_fd(peer_), 0);
        auto *head = static_cast<const sim_mailbox_head *>(at);
        bool asleep = false;
        for (auto since = Clock::now();
             !asleep && Clock::now() - since < std::chrono::seconds(20);) {
            asleep = __atomic_load_n(&head->asleep, __ATOMIC_ACQUIRE) != 0;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        munmap(at, kPage);
        return asleep;
    }

    int media_fd_ = -1;
    unsigned char *media_ = nullptr;
    sim_peer_windows *windows_ = nullptr;
    sim_peer *peer_ = nullptr;
    copy_kernel_rig_mount mount_ = {};
    copy_kernel_rig *rig_ = nullptr;
    std::vector<unsigned char> here_ = std::vector<unsigned char>(64 * kPage);
    std::vector<unsigned char> there_ = std::vector<unsigned char>(64 * kPage);
};

TEST_F(CopyKernelTest, CopiesWhatIsPostedOnEveryChannel)
{
    ASSERT_NO_FATAL_FAILURE(attach());
    for (unsigned round = 0; round < 60; round++) {
        ASSERT_EQ(copy(round % kChannels, 40, round * kPage), 1) << round;
        ASSERT_TRUE(arrived(40, round * kPage)) << round;
    }
}

TEST_F(CopyKernelTest, SleepsAndIsWoken)
{
    ASSERT_NO_FATAL_FAILURE(attach());
    for (unsigned round = 0; round < 10; round++) {
        ASSERT_TRUE(falls_asleep()) << round;
        ASSERT_EQ(copy(0, 3, round * kPage), 1);
        ASSERT_TRUE(arrived(3, round * kPage));
    }
    EXPECT_GT(copy_kernel_rig_launches(rig_), 0u);
}

TEST_F(CopyKernelTest, ANewLeaseGetsTheRemainingBuffers)
{
    gpunvme_ioc_copy_kernel last;
    ASSERT_NO_FATAL_FAILURE(attach());
    copy_kernel_rig_add(rig_, 50, 4096);
    EXPECT_EQ(copy_kernel_rig_calls(rig_, &last), 2u);
    EXPECT_EQ(last.id, 50u);
    EXPECT_EQ(last.key, 51u);
    EXPECT_EQ(last.addr, 4096u);
    EXPECT_EQ(last.lease_id, 7u);
    copy_kernel_rig_remove(rig_, 50);
    copy_kernel_rig_detach(rig_);
    copy_kernel_rig_add(rig_, 60, 8192);
    EXPECT_EQ(copy_kernel_rig_calls(rig_, &last), 2u) << "there is no lease";
    ASSERT_EQ(copy_kernel_rig_attach(rig_, 9), 0);
    EXPECT_EQ(copy_kernel_rig_calls(rig_, &last), 4u);
    EXPECT_EQ(last.id, 60u);
    EXPECT_EQ(last.lease_id, 9u);
    EXPECT_EQ(last.lease_key, 10u);
}

TEST_F(CopyKernelTest, NothingIsLeftOfALeaseThatEnded)
{
    ASSERT_NO_FATAL_FAILURE(attach());
    ASSERT_EQ(copy(1, 8, 0), 1);
    copy_kernel_rig_detach(rig_);
    EXPECT_EQ(copy_kernel_rig_held(rig_), 1) << "the kernel's code";
    copy_kernel_rig_detach(rig_);
}

TEST_F(CopyKernelTest, AGpuThatFailsEndsItsServiceAndNothingElse)
{
    ASSERT_NO_FATAL_FAILURE(attach());
    copy_kernel_rig_fail(rig_, true);
    EXPECT_EQ(copy(0, 4, 0), -ESTALE) << "the mount copies then";
    EXPECT_EQ(copy(0, 4, 0), -ENOTSUP);
    copy_kernel_rig_detach(rig_);
    EXPECT_EQ(copy_kernel_rig_held(rig_), 1);
}

TEST_F(CopyKernelTest, OthersThanSimulatedDrivesHaveNone)
{
    for (bool gpu : {true, false}) {
        mount_.transport = gpu ? "vfio" : "sim";
        ASSERT_EQ(copy_kernel_rig_open(&mount_, gpu, &rig_), 0);
        EXPECT_FALSE(copy_kernel_rig_has_copy_kernel(rig_));
        copy_kernel_rig_close(rig_);
        rig_ = nullptr;
    }
}

TEST_F(CopyKernelTest, ARefusalHasAReason)
{
    const struct {
        int refusal, error;
        const char *word;
    } all[] = {{-EDQUOT, -EDQUOT, "this user"},
               {-EBUSY, -EBUSY, "all copy kernels"},
               {-ENOENT, -ENOENT, ""}};
    for (const auto &a : all) {
        mount_.refusal = a.refusal;
        ASSERT_EQ(copy_kernel_rig_open(&mount_, true, &rig_), 0);
        EXPECT_EQ(copy_kernel_rig_attach(rig_, 7), a.error);
        EXPECT_NE(strstr(gpunvme_error(), a.word), nullptr) << gpunvme_error();
        EXPECT_EQ(copy_kernel_rig_held(rig_), 1);
        copy_kernel_rig_close(rig_);
        rig_ = nullptr;
    }
}

TEST_F(CopyKernelTest, NonsenseIsNotBelieved)
{
    const gpunvme_reply_copy_kernel right = mount_.reply;
    auto reply = [&](auto change) {
        mount_.reply = right;
        change(mount_.reply);
        copy_kernel_rig *rig = nullptr;
        EXPECT_EQ(copy_kernel_rig_open(&mount_, true, &rig), 0);
        EXPECT_EQ(copy_kernel_rig_attach(rig, 7), -EPROTO);
        EXPECT_EQ(copy_kernel_rig_held(rig), 1);
        copy_kernel_rig_close(rig);
    };
    reply([](gpunvme_reply_copy_kernel &t) { t.layout++; });
    reply([](gpunvme_reply_copy_kernel &t) { t.sets = 0; });
    reply([](gpunvme_reply_copy_kernel &t) { t.sets = 1000000; });
    reply([](gpunvme_reply_copy_kernel &t) { t.blocks = 0; });
    reply([](gpunvme_reply_copy_kernel &t) { t.blocks = SIM_COPY_KERNEL_BLOCKS + 1; });
    reply([](gpunvme_reply_copy_kernel &t) { t.len--; });
}

} // namespace
