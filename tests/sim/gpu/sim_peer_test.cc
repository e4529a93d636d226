/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads into GPU memory of another process, whose copy kernel makes the copies.
 */
#include <atomic>
#include <cerrno>
#include <chrono>
#include <sys/mman.h>

#include "sim/gpu/sim_gpu.h"
#include "sim/gpu/sim_mailbox.h"
#include "tests/cuda/gq_child.h"
#include "tests/cuda/gq_rig.h"

namespace
{

using Clock = std::chrono::steady_clock;

constexpr size_t kLen = 2u << 20;

/* Media on tmpfs: CUDA cannot pin pages of most other file systems. */
class SimPeer : public GqTest
{
  protected:
    void SetUp() override
    {
        GqTest::SetUp();
        if (IsSkipped())
            return;
        setenv("TMPDIR", "/dev/shm", 1);
        rig = std::make_unique<Rig>(GetParam(), 4096);
        rig->open();
        hooks = sim_gpu_hooks(rig->gpu);
        ASSERT_EQ(
            hooks->ops->peer_open(
                hooks, [](void *ctx) { static_cast<SimPeer *>(ctx)->dropped++; }, this, &peer),
            0);
        hooks->ops->peer_shared(peer, &shared);
        start();
    }

    void TearDown() override
    {
        if (b)
            gq_buffer_unregister(b);
        if (peer)
            hooks->ops->peer_close(peer);
        child.reset();
        rig.reset();
    }

    void start()
    {
        child = std::make_unique<Child>(
            "sim_peer_child",
            std::vector<std::string>{std::to_string(shared.sets), std::to_string(shared.blocks),
                                     std::to_string(shared.len), std::to_string(shared.media_len),
                                     std::to_string(kLen)},
            std::vector<int>{shared.fd, shared.media_fd});
        Bytes said = child->read(80);
        ASSERT_EQ(said.size(), 80u) << "no GPU memory, or it cannot be shared";
        gq_mem mem = {};
        uint64_t at[2];
        mem.kind = GQ_MEM_CUDA_IPC;
        mem.fd = -1;
        mem.len = kLen;
        std::copy_n(said.begin(), 64, mem.ipc);
        memcpy(at, &said[64], sizeof(at));
        ASSERT_EQ(gq_buffer_register(rig->e, &mem, &b), 0);
        gq_copies_window window = {};
        window.owner = b;
        window.there = at[0];
        window.media_there = at[1];
        ASSERT_EQ(gq_buffer_device(b, &window.device, &window.len), 0);
        ASSERT_EQ(hooks->ops->peer_window(peer, &window), 0);
    }

    /*
     * Reads extents of 4 KiB of the media, none adjacent. Returns their contents.
     */
    Bytes scatter(uint64_t seed)
    {
        std::mt19937_64 rng(seed);
        Bytes want;

        extents.clear();
        for (size_t i = 0; i < kLen / 4096; i++) {
            uint64_t lba = rng() % (rig->media.size() / 4096);
            extents.push_back({lba, 4096});
            want.insert(want.end(), rig->media.begin() + (ptrdiff_t)lba * 4096,
                        rig->media.begin() + (ptrdiff_t)(lba + 1) * 4096);
        }
        return want;
    }
    int read_extents()
    {
        return rig->move(GQ_READ, b, 0, extents, 0, kLen);
    }
    Bytes held()
    {
        Bytes out(kLen);

        EXPECT_EQ(gq_buffer_get(b, 0, out.data(), kLen), 0);
        return out;
    }

    /* Number of batches that the child has copied. */
    uint64_t batches()
    {
        void *at = mmap(nullptr, shared.len, PROT_READ, MAP_SHARED, shared.fd, 0);
        uint64_t sum = 0;

        EXPECT_NE(at, MAP_FAILED);
        for (unsigned i = 0; i < shared.sets; i++) {
            for (uint32_t n : sim_mailbox_set(static_cast<sim_mailbox_head *>(at), i)->done.of)
                sum += n;
        }
        munmap(at, shared.len);
        return sum;
    }

    std::unique_ptr<Rig> rig;
    gq_copies *hooks = nullptr;
    gq_copies_peer *peer = nullptr;
    gq_copies_shared shared = {};
    std::unique_ptr<Child> child;
    gq_buffer *b = nullptr;
    std::vector<Extent> extents;
    std::atomic<int> dropped{0};
};

TEST_P(SimPeer, TheOwnerCopiesSmallReads)
{
    for (unsigned round = 0; round < 20; round++) {
        uint64_t before = batches();
        Bytes want = scatter(round);

        ASSERT_EQ(read_extents(), 0);
        ASSERT_TRUE(held() == want) << round;
        EXPECT_GT(batches(), before);
    }
    EXPECT_EQ(dropped, 0);
    Bytes want = held();
    child->go();
    EXPECT_TRUE(child->read(kLen) == want) << "it sees the same memory";
}

TEST_P(SimPeer, AWholeMegabyteGoesByTheCopyEngine)
{
    ASSERT_EQ(rig->move(GQ_READ, b, 0, {{0, kLen}}, 0, kLen), 0);
    EXPECT_TRUE(held() == Bytes(rig->media.begin(), rig->media.begin() + kLen));
}

TEST_P(SimPeer, AKilledOwnerDelaysReadsForABoundedTime)
{
    Bytes want = scatter(7);

    ASSERT_EQ(read_extents(), 0);
    child->kill();
    uint64_t before = batches();
    want = scatter(8);
    auto since = Clock::now();
    ASSERT_EQ(read_extents(), 0);
    EXPECT_LT(Clock::now() - since, std::chrono::seconds(8));
    EXPECT_TRUE(held() == want);
    want = scatter(9);
    ASSERT_EQ(read_extents(), 0);
    EXPECT_TRUE(held() == want);
    EXPECT_EQ(batches(), before) << "the daemon made the copies";
}

/* As on a GPU that has no room for it: its kernel ends and is not launched again. */
TEST_P(SimPeer, AnOwnerWithoutAKernelIsPassedOverUntilItHasOne)
{
    Bytes want = scatter(5);

    ASSERT_EQ(read_extents(), 0);
    child->send(SIGSTOP);
    usleep(200000); /* the kernel ends, by its idle time or its limit */
    uint64_t before = batches();
    for (unsigned round = 0; round < 10; round++) {
        want = scatter(10 + round);
        ASSERT_EQ(read_extents(), 0);
        ASSERT_TRUE(held() == want) << round;
    }
    EXPECT_EQ(batches(), before);
    child->send(SIGCONT);
    for (auto since = Clock::now();
         batches() == before && Clock::now() - since < std::chrono::seconds(30);) {
        want = scatter(20);
        ASSERT_EQ(read_extents(), 0);
        ASSERT_TRUE(held() == want);
    }
    EXPECT_GT(batches(), before) << "cancelled ones are counted, and new ones";
    for (unsigned round = 0; round < 10; round++) {
        want = scatter(30 + round);
        ASSERT_EQ(read_extents(), 0);
        ASSERT_TRUE(held() == want) << "by no late copy: " << round;
    }
    EXPECT_EQ(dropped, 0);
}

TEST_P(SimPeer, AllIsCopiedHereAfterTheEndOfThePeer)
{
    Bytes want = scatter(3);

    ASSERT_EQ(read_extents(), 0);
    hooks->ops->peer_close(peer);
    peer = nullptr;
    want = scatter(4);
    ASSERT_EQ(read_extents(), 0);
    EXPECT_TRUE(held() == want);
    EXPECT_EQ(dropped, 0);
}

INSTANTIATE_TEST_SUITE_P(Executors, SimPeer, testing::Values(kExecutors[2]),
                         [](const testing::TestParamInfo<Executor> &i) {
                             return std::string(i.param.name);
                         });

} // namespace
