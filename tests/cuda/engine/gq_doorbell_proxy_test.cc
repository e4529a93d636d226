/* SPDX-License-Identifier: BSD-2-Clause */
/* Doorbells by proxy: what the executor stores reaches the controller, and nothing else does. */
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

extern "C" {
#include "blockdev/transport.h"
#include "cuda/engine/gq_doorbell_proxy.h"
}

namespace
{

/* A controller that only has doorbells, and counts kicks. */
struct Bells : nvme_transport {
    nvme_transport_ops table = {};
    uint32_t words[8] = {};
    std::atomic<unsigned> kicks{0};
    gq_proxied_doorbell *proxied_doorbells;
    gq_doorbell_proxy *r = nullptr;

    Bells() : nvme_transport()
    {
        table.wake = [](nvme_transport *t, unsigned) { static_cast<Bells *>(t)->kicks++; };
        ops = &table;
        proxied_doorbells =
            (gq_proxied_doorbell *)calloc(GQ_MAX_QUEUES, sizeof(*proxied_doorbells));
        EXPECT_EQ(gq_doorbell_proxy_open(this, proxied_doorbells, &r), 0);
        for (unsigned i = 0; i < 2; i++) {
            nvme_qpair qp = {};

            qp.depth = 4096;
            qp.sq_doorbell = &words[2 * i];
            qp.cq_doorbell = &words[2 * i + 1];
            gq_doorbell_proxy_add(r, i, &qp);
        }
    }

    ~Bells()
    {
        gq_doorbell_proxy_close(r);
        free(proxied_doorbells);
    }

    /* As the queue protocol does: the head goes first. */
    void store(unsigned i, uint32_t tail, uint32_t head)
    {
        __atomic_store_n(&proxied_doorbells[i].cq_head, head, __ATOMIC_RELEASE);
        __atomic_store_n(&proxied_doorbells[i].sq_tail, tail, __ATOMIC_RELEASE);
    }

    uint32_t load(unsigned word) { return __atomic_load_n(&words[word], __ATOMIC_ACQUIRE); }

    bool waits_for(unsigned word, uint32_t value)
    {
        for (unsigned i = 0; i < 10000 && load(word) != value; i++)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return load(word) == value;
    }
};

class GqDoorbellProxy : public ::testing::Test
{
  protected:
    Bells b;
};

TEST_F(GqDoorbellProxy, PassesOnWhatChanges)
{
    gq_doorbell_proxy_begin(b.r);
    b.store(1, 3, 2);
    EXPECT_TRUE(b.waits_for(2, 3));
    EXPECT_EQ(b.load(3), 2u) << "the head goes before the tail";
    EXPECT_EQ(b.load(0) | b.load(1), 0u) << "nobody stored to the other pair";
    EXPECT_GE(b.kicks, 1u);
    b.store(0, 1, 0);
    EXPECT_TRUE(b.waits_for(0, 1));
    gq_doorbell_proxy_end(b.r);
}

TEST_F(GqDoorbellProxy, WakesFromItsSleep)
{
    for (uint32_t i = 1; i <= 3; i++) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        gq_doorbell_proxy_begin(b.r);
        b.store(0, i, i);
        EXPECT_TRUE(b.waits_for(0, i));
        gq_doorbell_proxy_end(b.r);
    }
}

TEST_F(GqDoorbellProxy, PassesOnTheLastValuesWhenDrivingEnds)
{
    for (uint32_t i = 1; i <= 1000; i++) {
        gq_doorbell_proxy_begin(b.r);
        b.store(0, i, i + 1);
        gq_doorbell_proxy_end(b.r);
        ASSERT_EQ(b.load(0), i);
        ASSERT_EQ(b.load(1), i + 1);
    }
}

/* A fresh pair never hears of the tail of the old one, whatever else goes on. */
TEST_F(GqDoorbellProxy, RingsNothingForAPairThatWasCreatedAgain)
{
    gq_doorbell_proxy_begin(b.r);
    for (uint32_t i = 1; i <= 2000; i++) {
        gq_doorbell_proxy_begin(b.r);
        b.store(0, 5, 4);
        gq_doorbell_proxy_end(b.r);
        b.words[0] = b.words[1] = 0; /* the controller's part of the creation */
        gq_doorbell_proxy_set(b.r, 0, 0, 0);
        b.store(1, i, i);
        ASSERT_EQ(b.load(0) | b.load(1), 0u) << i;
    }
    EXPECT_TRUE(b.waits_for(2, 2000));
    EXPECT_EQ(b.load(0) | b.load(1), 0u);
    gq_doorbell_proxy_end(b.r);
}

TEST_F(GqDoorbellProxy, CountsWhatWasSubmittedAcrossTheEndOfTheRing)
{
    for (uint32_t tail : {0u, 5u, 4000u, 4095u, 3u, 3u}) {
        gq_doorbell_proxy_begin(b.r);
        b.store(1, tail, 0);
        gq_doorbell_proxy_end(b.r);
    }
    EXPECT_EQ(gq_doorbell_proxy_submitted(b.r, 1), 4096u + 3);
    EXPECT_EQ(gq_doorbell_proxy_submitted(b.r, 0), 0u);
    gq_doorbell_proxy_remove(b.r, 1);
    EXPECT_EQ(gq_doorbell_proxy_submitted(b.r, 1), 4096u + 3) << "until the pair is another one";
}

TEST_F(GqDoorbellProxy, SilentOneRingsNothing)
{
    gq_doorbell_proxy_begin(b.r);
    gq_doorbell_proxy_silence(b.r);
    b.store(0, 7, 7);
    gq_doorbell_proxy_end(b.r);
    EXPECT_EQ(b.load(0) | b.load(1), 0u);
    EXPECT_EQ(b.kicks, 0u);
}

/* Proxied doorbells may be mapped by another process. */
TEST_F(GqDoorbellProxy, PassesOnNoPlaceBeyondTheQueue)
{
    gq_doorbell_proxy_begin(b.r);
    b.store(0, 4096, UINT32_MAX);
    b.store(1, 1, 1);
    EXPECT_TRUE(b.waits_for(2, 1)) << "one bad pair keeps nobody waiting";
    b.store(0, 9, UINT32_MAX);
    EXPECT_TRUE(b.waits_for(0, 9));
    b.store(0, 4095, 4095);
    EXPECT_TRUE(b.waits_for(0, 4095));
    b.store(0, UINT32_MAX, 4096);
    gq_doorbell_proxy_end(b.r);
    EXPECT_EQ(b.load(0), 4095u);
    EXPECT_EQ(b.load(1), 4095u);
}

TEST_F(GqDoorbellProxy, RingsNothingForAPairThatWasRemoved)
{
    gq_doorbell_proxy_begin(b.r);
    b.store(0, 3, 3);
    EXPECT_TRUE(b.waits_for(0, 3));
    gq_doorbell_proxy_remove(b.r, 0);
    b.store(0, 5, 5);
    b.store(1, 7, 7);
    EXPECT_TRUE(b.waits_for(2, 7));
    gq_doorbell_proxy_end(b.r);
    EXPECT_EQ(b.load(0), 3u);
    EXPECT_EQ(b.load(1), 3u);
}

} // namespace
