// The library's copier against the mover's routes: one posts, the other copies, both sleep.
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "cuda/gq_mailbox.h"
#include "cuda/gq_route.h"
#include "gpunvme/gpunvme.h"
#include "tests/client/lib/copy_kernel_rig.h"

namespace
{

using Clock = std::chrono::steady_clock;

constexpr unsigned kChannels = 3, kBlocks = 2;
constexpr size_t kMedia = 1u << 20, kPage = 4096;

// The daemon's side: media in a memfd, and a buffer that it knows at another address.
class CopierTest : public ::testing::Test
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
        ASSERT_EQ(gq_routes_open(kChannels, &routes_), 0);
        gq_remote_options opts = {};
        opts.media = media_;
        opts.media_len = kMedia;
        opts.blocks = kBlocks;
        ASSERT_EQ(gq_remote_open(routes_, &opts, &remote_), 0);
        mount_ = {"sim", {}, {gq_remote_fd(remote_), media_fd_}, 0};
        mount_.told.len = gq_remote_len(remote_);
        mount_.told.media_len = kMedia;
        mount_.told.layout = GPUNVME_COPIER_LAYOUT;
        mount_.told.sets = kChannels;
        mount_.told.blocks = kBlocks;
    }
    void TearDown() override
    {
        if (rig_)
            copier_rig_close(rig_);
        gq_remote_close(remote_);
        gq_routes_close(routes_);
        munmap(media_, kMedia);
        close(media_fd_);
    }
    void attach()
    {
        ASSERT_EQ(copier_rig_open(&mount_, true, &rig_), 0);
        ASSERT_TRUE(copier_rig_has_copier(rig_));
        ASSERT_EQ(copier_rig_attach(rig_, 7), 0);
        copier_rig_add(rig_, 40, reinterpret_cast<uint64_t>(there_.data()));
        route();
    }
    // What the mount does with the COPIER ioctl.
    void route()
    {
        gpunvme_ioc_copier arg;
        ASSERT_GT(copier_rig_calls(rig_, &arg), 0u);
        gq_route r = {this, reinterpret_cast<uint64_t>(here_.data()), here_.size(), arg.addr,
                      arg.media};
        ASSERT_EQ(gq_route_add(remote_, &r), 0);
    }
    // `n` pages of the media into the buffer: 1, or what the routes say, within 30 s.
    int copy(unsigned channel, unsigned n, size_t from)
    {
        std::vector<gq_gather> copies;
        gq_routed routed;
        unsigned lost;
        for (unsigned i = 0; i < n; i++)
            copies.push_back({reinterpret_cast<uint64_t>(&here_[i * kPage]),
                              reinterpret_cast<uint64_t>(&media_[from + i * 2 * kPage]), kPage});
        copier_rig_sync(rig_);
        gq_routes_lock(routes_, channel);
        int rc = gq_routes_plan(routes_, channel, copies.data(), n, &routed);
        if (!rc)
            gq_routes_post(routes_, channel, &routed);
        gq_routes_unlock(routes_, channel);
        if (rc || routed.n_local)
            return rc ? rc : -ENOTSUP;
        for (auto since = Clock::now();
             rc == 0 && Clock::now() - since < std::chrono::seconds(30);) {
            gq_routes_lock(routes_, channel);
            rc = gq_routes_poll(routes_, channel, &routed, &lost);
            gq_routes_unlock(routes_, channel);
        }
        copier_rig_sync(rig_);
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
        void *at = mmap(nullptr, kPage, PROT_READ, MAP_SHARED, gq_remote_fd(remote_), 0);
        auto *head = static_cast<const gq_mailbox_head *>(at);
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
    gq_routes *routes_ = nullptr;
    gq_remote *remote_ = nullptr;
    copier_rig_mount mount_ = {};
    copier_rig *rig_ = nullptr;
    std::vector<unsigned char> here_ = std::vector<unsigned char>(64 * kPage);
    std::vector<unsigned char> there_ = std::vector<unsigned char>(64 * kPage);
};

TEST_F(CopierTest, CopiesWhatIsPostedOnEveryChannel)
{
    ASSERT_NO_FATAL_FAILURE(attach());
    for (unsigned round = 0; round < 60; round++) {
        ASSERT_EQ(copy(round % kChannels, 40, round * kPage), 1) << round;
        ASSERT_TRUE(arrived(40, round * kPage)) << round;
    }
}

TEST_F(CopierTest, SleepsAndIsWoken)
{
    ASSERT_NO_FATAL_FAILURE(attach());
    for (unsigned round = 0; round < 10; round++) {
        ASSERT_TRUE(falls_asleep()) << round;
        ASSERT_EQ(copy(0, 3, round * kPage), 1);
        ASSERT_TRUE(arrived(3, round * kPage));
    }
    EXPECT_GT(copier_rig_launches(rig_), 0u);
}

TEST_F(CopierTest, ANewLeaseIsToldTheBuffersThatAreLeft)
{
    gpunvme_ioc_copier last;
    ASSERT_NO_FATAL_FAILURE(attach());
    copier_rig_add(rig_, 50, 4096);
    EXPECT_EQ(copier_rig_calls(rig_, &last), 2u);
    EXPECT_EQ(last.id, 50u);
    EXPECT_EQ(last.key, 51u);
    EXPECT_EQ(last.addr, 4096u);
    EXPECT_EQ(last.lease_id, 7u);
    copier_rig_remove(rig_, 50);
    copier_rig_detach(rig_);
    copier_rig_add(rig_, 60, 8192);
    EXPECT_EQ(copier_rig_calls(rig_, &last), 2u) << "there is nobody to tell";
    ASSERT_EQ(copier_rig_attach(rig_, 9), 0);
    EXPECT_EQ(copier_rig_calls(rig_, &last), 4u);
    EXPECT_EQ(last.id, 60u);
    EXPECT_EQ(last.lease_id, 9u);
    EXPECT_EQ(last.lease_key, 10u);
}

TEST_F(CopierTest, NothingIsLeftOfALeaseThatEnded)
{
    ASSERT_NO_FATAL_FAILURE(attach());
    ASSERT_EQ(copy(1, 8, 0), 1);
    copier_rig_detach(rig_);
    EXPECT_EQ(copier_rig_held(rig_), 1) << "the kernel's code";
    copier_rig_detach(rig_);
}

TEST_F(CopierTest, AGpuThatFailsEndsItsServiceAndNothingElse)
{
    ASSERT_NO_FATAL_FAILURE(attach());
    copier_rig_fail(rig_, true);
    EXPECT_EQ(copy(0, 4, 0), -ESTALE) << "the mount copies then";
    EXPECT_EQ(copy(0, 4, 0), -ENOTSUP);
    copier_rig_detach(rig_);
    EXPECT_EQ(copier_rig_held(rig_), 1);
}

TEST_F(CopierTest, OthersThanSimulatedDrivesHaveNone)
{
    for (bool gpu : {true, false}) {
        mount_.transport = gpu ? "vfio" : "sim";
        ASSERT_EQ(copier_rig_open(&mount_, gpu, &rig_), 0);
        EXPECT_FALSE(copier_rig_has_copier(rig_));
        copier_rig_close(rig_);
        rig_ = nullptr;
    }
}

TEST_F(CopierTest, WhoGetsNoneHearsWhy)
{
    const struct {
        int refusal, error;
        const char *word;
    } all[] = {
        {-EDQUOT, -EDQUOT, "this user"}, {-EBUSY, -EBUSY, "all copiers"}, {-ENOENT, -ENOENT, ""}};
    for (const auto &a : all) {
        mount_.refusal = a.refusal;
        ASSERT_EQ(copier_rig_open(&mount_, true, &rig_), 0);
        EXPECT_EQ(copier_rig_attach(rig_, 7), a.error);
        EXPECT_NE(strstr(gpunvme_error(), a.word), nullptr) << gpunvme_error();
        EXPECT_EQ(copier_rig_held(rig_), 1);
        copier_rig_close(rig_);
        rig_ = nullptr;
    }
}

TEST_F(CopierTest, NonsenseIsNotBelieved)
{
    const gpunvme_told_copier right = mount_.told;
    auto told = [&](auto change) {
        mount_.told = right;
        change(mount_.told);
        copier_rig *rig = nullptr;
        EXPECT_EQ(copier_rig_open(&mount_, true, &rig), 0);
        EXPECT_EQ(copier_rig_attach(rig, 7), -EPROTO);
        EXPECT_EQ(copier_rig_held(rig), 1);
        copier_rig_close(rig);
    };
    told([](gpunvme_told_copier &t) { t.layout++; });
    told([](gpunvme_told_copier &t) { t.sets = 0; });
    told([](gpunvme_told_copier &t) { t.sets = 1000000; });
    told([](gpunvme_told_copier &t) { t.blocks = 0; });
    told([](gpunvme_told_copier &t) { t.blocks = GQ_COPIER_BLOCKS + 1; });
    told([](gpunvme_told_copier &t) { t.len--; });
}

} // namespace
