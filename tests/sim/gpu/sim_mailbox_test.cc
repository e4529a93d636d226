/* SPDX-License-Identifier: BSD-2-Clause */
/* Guarantees of a mailbox to the kernel that takes slots. */
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <memory>

extern "C" {
#include "sim/gpu/sim_mailbox.h"
}

namespace
{

/* One block, whose kernel executes each batch as soon as it is posted. */
class SimMailbox : public testing::Test
{
  protected:
    void post(unsigned n)
    {
        sim_gather copies[SIM_COPY_KERNEL_BATCH];
        sim_copy_kernel_ticket ticket;

        for (unsigned i = 0; i < n; i++)
            copies[i] = {0x10000 + i * 512, 0x20000 + i * 512, 512};
        ASSERT_EQ(sim_poster_room(&poster, copies, n), 0);
        sim_poster_post(&poster, copies, n, &ticket);
        m->done.of[0] = poster.posted[0];
    }

    /* The slot that is filled next, and the number of its filling. */
    const sim_copy_slot &next_slot() const
    {
        return m->slots[poster.posted[0] % SIM_COPY_KERNEL_SLOTS];
    }

    uint32_t next_fill() const
    {
        return poster.posted[0] / SIM_COPY_KERNEL_SLOTS + 1;
    }

    /* Posts batches and checks the slot before each filling. */
    void expect_no_word_looks_new(unsigned batches)
    {
        for (unsigned batch = 0; batch < batches; batch++) {
            for (unsigned i = 0; i < SIM_COPY_KERNEL_WORDS; i++)
                ASSERT_NE(next_slot().words[i] >> SIM_COPY_KERNEL_TAG_SHIFT, next_fill() & 0x7f)
                    << "word " << i << ", filling " << next_fill();
            post(next_fill() % 128 == 1 ? SIM_COPY_KERNEL_BATCH : 1);
        }
    }

    std::unique_ptr<sim_mailboxes> m = std::make_unique<sim_mailboxes>();
    sim_poster poster = {.m = m.get(), .blocks = 1, .posted = {}, .cancellations = 0};
};

/*
 * All words are loaded at once: no word may have the tag of a filling before it
 * is written.
 */
TEST_F(SimMailbox, NoWordLooksNewBeforeItIsFilled)
{
    expect_no_word_looks_new(600 * SIM_COPY_KERNEL_SLOTS);
}

/* Tags continue where the number of batches wraps around to 0. */
TEST_F(SimMailbox, NoWordLooksNewWhereNumbersWrapAround)
{
    poster.posted[0] = m->done.of[0] = 0 - 100 * SIM_COPY_KERNEL_SLOTS;
    expect_no_word_looks_new(600 * SIM_COPY_KERNEL_SLOTS);
    EXPECT_EQ(poster.posted[0], 500 * SIM_COPY_KERNEL_SLOTS);
}

TEST_F(SimMailbox, ABoxSaysHowMuchThereIs)
{
    for (unsigned n = 1; n <= SIM_COPY_KERNEL_BATCH; n++) {
        const sim_copy_slot &slot = next_slot();
        uint64_t tag = SIM_COPY_KERNEL_TAG(next_fill());

        post(n);
        EXPECT_EQ(slot.words[0], tag | 9u << 8 | n);
        for (unsigned i = 0; i < n; i++) {
            EXPECT_EQ(slot.words[2 + 2 * i], tag | (0x10000 + i * 512));
            EXPECT_EQ(slot.words[3 + 2 * i], tag | (0x20000 + i * 512));
        }
    }
}

/*
 * Blocks get work one after another, while the blocks before run and the
 * remaining ones end.
 */
TEST(SimKeeper, ABlockIsLaunchedWhileAllOthersRun)
{
    auto m = std::make_unique<sim_mailboxes>();
    sim_keeper keeper;

    sim_keeper_init(&keeper, m.get(), reinterpret_cast<uintptr_t>(m.get()), SIM_KEEPER_STREAMS, 0);
    keeper.run = [](void *, const sim_copy_kernel_launch *, unsigned, unsigned) { return 0; };
    for (unsigned block = 0; block < SIM_KEEPER_STREAMS; block++) {
        uint32_t before = m->launched.of[block];

        m->posted.of[block]++;
        EXPECT_EQ(sim_keeper_peek(&keeper), 0);
        EXPECT_EQ(m->launched.of[block], before + 1) << "block " << block;
        for (unsigned other = block + 1; other < SIM_KEEPER_STREAMS; other++)
            m->ended.of[other] = m->launched.of[other];
    }
    EXPECT_FALSE(sim_keeper_is_needed(&keeper));
}

/* Otherwise the keeper would wait for its end without limit. */
TEST(SimKeeper, ALaunchThatFailedIsNoLaunch)
{
    auto m = std::make_unique<sim_mailboxes>();
    sim_poster poster = {m.get(), 2, {}, 0};
    sim_keeper keeper;
    int result = 0;

    sim_keeper_init(&keeper, m.get(), reinterpret_cast<uintptr_t>(m.get()), 2, 0);
    keeper.run = [](void *ctx, const sim_copy_kernel_launch *, unsigned, unsigned) {
        return *static_cast<int *>(ctx);
    };
    keeper.ctx = &result;
    for (unsigned i = 0; i < 2 * SIM_KEEPER_STREAMS; i++) {
        sim_copy_kernel_ticket ticket;
        sim_gather copy = {uint64_t{1} << 20, uint64_t{1} << 21, 512};

        sim_poster_post(&poster, &copy, 1, &ticket);
        result = -EIO;
        for (unsigned tries = 0; tries <= SIM_KEEPER_STREAMS; tries++) {
            EXPECT_EQ(sim_keeper_peek(&keeper), -EIO);
            EXPECT_TRUE(sim_keeper_is_needed(&keeper));
            EXPECT_TRUE(sim_poster_is_stuck(&poster));
        }
        result = 0;
        EXPECT_EQ(sim_keeper_peek(&keeper), 0);
        EXPECT_FALSE(sim_keeper_is_needed(&keeper));
        EXPECT_FALSE(sim_poster_is_stuck(&poster));
        EXPECT_EQ(m->launched.of[0], i + 1) << "by the number that was not used";
        memcpy(m->done.of, m->posted.of, sizeof(m->done.of));
        memcpy(m->ended.of, m->launched.of, sizeof(m->ended.of));
    }
}

/* 0 means a block that is not started, whose work would wait without limit. */
TEST(SimKeeper, NumbersOfLaunchesWrapAroundPastZero)
{
    auto m = std::make_unique<sim_mailboxes>();
    sim_keeper keeper;

    sim_keeper_init(&keeper, m.get(), reinterpret_cast<uintptr_t>(m.get()), 1, 0);
    keeper.run = [](void *, const sim_copy_kernel_launch *l, unsigned, unsigned) {
        return l->launch[0] ? 0 : -1;
    };
    keeper.launched[0] = m->ended.of[0] = UINT32_MAX - 3 * SIM_KEEPER_STREAMS;
    for (unsigned i = 0; i < 6 * SIM_KEEPER_STREAMS; i++) {
        m->posted.of[0]++;
        ASSERT_TRUE(sim_keeper_is_needed(&keeper));
        ASSERT_EQ(sim_keeper_peek(&keeper), 0);
        ASSERT_FALSE(sim_keeper_is_needed(&keeper)) << "it was launched";
        m->done.of[0]++;
        m->ended.of[0] = m->launched.of[0];
    }
    EXPECT_EQ(m->launched.of[0], 3 * SIM_KEEPER_STREAMS);
}

} // namespace
