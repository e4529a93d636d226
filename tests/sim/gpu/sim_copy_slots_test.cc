/* SPDX-License-Identifier: BSD-2-Clause */
/* Guarantees of copy slots to the kernel that takes them. */
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <memory>

extern "C" {
#include "sim/gpu/sim_copy_slots.h"
}

namespace
{

/* One block, whose kernel executes each batch as soon as it is posted. */
class SimCopySlots : public testing::Test
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

    uint32_t next_fill() const { return poster.posted[0] / SIM_COPY_KERNEL_SLOTS + 1; }

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

    std::unique_ptr<sim_copy_slots> m = std::make_unique<sim_copy_slots>();
    sim_poster poster = {.m = m.get(), .blocks = 1, .posted = {}};
};

/*
 * All words are loaded at once: no word may have the tag of a filling before it
 * is written.
 */
TEST_F(SimCopySlots, NoWordLooksNewBeforeItIsFilled)
{
    expect_no_word_looks_new(600 * SIM_COPY_KERNEL_SLOTS);
}

/* Tags continue where the number of batches wraps around to 0. */
TEST_F(SimCopySlots, NoWordLooksNewWhereNumbersWrapAround)
{
    poster.posted[0] = m->done.of[0] = 0 - 100 * SIM_COPY_KERNEL_SLOTS;
    expect_no_word_looks_new(600 * SIM_COPY_KERNEL_SLOTS);
    EXPECT_EQ(poster.posted[0], 500 * SIM_COPY_KERNEL_SLOTS);
}

TEST_F(SimCopySlots, ASlotHoldsItsNumberOfCopies)
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

class SimKeeper : public testing::Test
{
  protected:
    void init(unsigned blocks)
    {
        poster.blocks = blocks;
        sim_keeper_init(&keeper, &poster, 0);
        keeper.run = [](void *ctx, const sim_copy_kernel_launch *l, unsigned n, unsigned) {
            return static_cast<SimKeeper *>(ctx)->run(*l, n);
        };
        keeper.ctx = this;
    }
    int run(const sim_copy_kernel_launch &l, unsigned n)
    {
        bool any = false;

        for (unsigned b = 0; b < n; b++)
            any |= l.launch[b] != 0;
        return any ? result : -EINVAL;
    }
    void post()
    {
        sim_gather copy = {uint64_t{1} << 20, uint64_t{1} << 21, 512};

        sim_poster_post(&poster, &copy, 1, &ticket);
    }

    std::unique_ptr<sim_copy_slots> m = std::make_unique<sim_copy_slots>();
    sim_poster poster = {.m = m.get(), .blocks = 1, .posted = {}};
    sim_keeper keeper;
    sim_copy_kernel_ticket ticket;
    int result = 0;
};

/*
 * Blocks get work one after another, while the blocks before run and the
 * remaining ones end.
 */
TEST_F(SimKeeper, ABlockIsLaunchedWhileAllOthersRun)
{
    init(SIM_KEEPER_STREAMS);
    for (unsigned block = 0; block < SIM_KEEPER_STREAMS; block++) {
        uint32_t before = keeper.launched[block];

        poster.posted[block]++;
        EXPECT_EQ(sim_keeper_peek(&keeper), 0);
        EXPECT_EQ(keeper.launched[block], before + 1) << "block " << block;
        for (unsigned other = block + 1; other < SIM_KEEPER_STREAMS; other++)
            m->ended.of[other] = keeper.launched[other];
    }
    EXPECT_FALSE(sim_keeper_is_needed(&keeper));
}

/* Otherwise the keeper would wait for its end without limit. */
TEST_F(SimKeeper, AFailedLaunchDoesNotCount)
{
    init(2);
    for (unsigned i = 0; i < 2 * SIM_KEEPER_STREAMS; i++) {
        post();
        result = -EIO;
        for (unsigned tries = 0; tries <= SIM_KEEPER_STREAMS; tries++) {
            EXPECT_EQ(sim_keeper_peek(&keeper), -EIO);
            EXPECT_TRUE(sim_keeper_is_needed(&keeper));
            EXPECT_TRUE(sim_keeper_has_lost(&keeper, &ticket));
        }
        result = 0;
        EXPECT_EQ(sim_keeper_peek(&keeper), 0);
        EXPECT_FALSE(sim_keeper_is_needed(&keeper));
        EXPECT_FALSE(sim_keeper_has_lost(&keeper, &ticket));
        EXPECT_EQ(keeper.launched[0], i + 1) << "by the number that was not used";
        memcpy(m->done.of, poster.posted, sizeof(poster.posted));
        memcpy(m->ended.of, keeper.launched, sizeof(keeper.launched));
    }
}

/* 0 means a block that is not started, whose work would wait without limit. */
TEST_F(SimKeeper, NumbersOfLaunchesWrapAroundPastZero)
{
    init(1);
    keeper.launched[0] = m->ended.of[0] = UINT32_MAX - 3 * SIM_KEEPER_STREAMS;
    for (unsigned i = 0; i < 6 * SIM_KEEPER_STREAMS; i++) {
        poster.posted[0]++;
        ASSERT_TRUE(sim_keeper_is_needed(&keeper));
        ASSERT_EQ(sim_keeper_peek(&keeper), 0);
        ASSERT_FALSE(sim_keeper_is_needed(&keeper)) << "it was launched";
        m->done.of[0]++;
        m->ended.of[0] = keeper.launched[0];
    }
    EXPECT_EQ(keeper.launched[0], 3 * SIM_KEEPER_STREAMS);
}

} // namespace
