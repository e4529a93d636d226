/* Guarantees of a mailbox to the kernel that takes slots. */
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <memory>

extern "C" {
#include "cuda/gq_mailbox.h"
}

namespace
{

/* One block, whose kernel executes each batch as soon as it is posted. */
class GqMailbox : public testing::Test
{
  protected:
    void post(unsigned n)
    {
        gq_gather copies[GQ_COPY_KERNEL_BATCH];
        gq_copy_kernel_ticket ticket;

        for (unsigned i = 0; i < n; i++)
            copies[i] = {0x10000 + i * 512, 0x20000 + i * 512, 512};
        ASSERT_EQ(gq_poster_room(&poster, copies, n), 0);
        gq_poster_post(&poster, copies, n, &ticket);
        m->done.of[0] = poster.posted[0];
    }

    /* The slot that is filled next, and the number of its filling. */
    const gq_copy_slot &next_slot() const
    {
        return m->slots[poster.posted[0] % GQ_COPY_KERNEL_SLOTS];
    }

    uint32_t next_fill() const
    {
        return poster.posted[0] / GQ_COPY_KERNEL_SLOTS + 1;
    }

    /* Posts batches and checks the slot before each filling. */
    void expect_no_word_looks_new(unsigned batches)
    {
        for (unsigned batch = 0; batch < batches; batch++) {
            for (unsigned i = 0; i < GQ_COPY_KERNEL_WORDS; i++)
                ASSERT_NE(next_slot().words[i] >> GQ_COPY_KERNEL_TAG_SHIFT, next_fill() & 0x7f)
                    << "word " << i << ", filling " << next_fill();
            post(next_fill() % 128 == 1 ? GQ_COPY_KERNEL_BATCH : 1);
        }
    }

    std::unique_ptr<gq_mailboxes> m = std::make_unique<gq_mailboxes>();
    gq_poster poster = {.m = m.get(), .blocks = 1, .posted = {}};
};

/*
 * All words are loaded at once: no word may have the tag of a filling before it
 * is written.
 */
TEST_F(GqMailbox, NoWordLooksNewBeforeItIsFilled)
{
    expect_no_word_looks_new(600 * GQ_COPY_KERNEL_SLOTS);
}

/* Tags continue where the number of batches wraps around to 0. */
TEST_F(GqMailbox, NoWordLooksNewWhereNumbersWrapAround)
{
    poster.posted[0] = m->done.of[0] = 0 - 100 * GQ_COPY_KERNEL_SLOTS;
    expect_no_word_looks_new(600 * GQ_COPY_KERNEL_SLOTS);
    EXPECT_EQ(poster.posted[0], 500 * GQ_COPY_KERNEL_SLOTS);
}

TEST_F(GqMailbox, ABoxSaysHowMuchThereIs)
{
    for (unsigned n = 1; n <= GQ_COPY_KERNEL_BATCH; n++) {
        const gq_copy_slot &slot = next_slot();
        uint64_t tag = GQ_COPY_KERNEL_TAG(next_fill());

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
TEST(GqKeeper, ABlockIsLaunchedWhileAllOthersRun)
{
    auto m = std::make_unique<gq_mailboxes>();
    gq_keeper keeper;

    gq_keeper_init(&keeper, m.get(), reinterpret_cast<uintptr_t>(m.get()), GQ_KEEPER_STREAMS, 0);
    keeper.run = [](void *, const gq_copy_kernel_launch *, unsigned, unsigned) { return 0; };
    for (unsigned block = 0; block < GQ_KEEPER_STREAMS; block++) {
        uint32_t before = m->launched.of[block];

        m->posted.of[block]++;
        EXPECT_EQ(gq_keeper_peek(&keeper), 0);
        EXPECT_EQ(m->launched.of[block], before + 1) << "block " << block;
        for (unsigned other = block + 1; other < GQ_KEEPER_STREAMS; other++)
            m->ended.of[other] = m->launched.of[other];
    }
    EXPECT_FALSE(gq_keeper_is_needed(&keeper));
}

/* Otherwise the keeper would wait for its end without limit. */
TEST(GqKeeper, ALaunchThatFailedIsNoLaunch)
{
    auto m = std::make_unique<gq_mailboxes>();
    gq_poster poster = {m.get(), 2, {}};
    gq_keeper keeper;
    int result = 0;

    gq_keeper_init(&keeper, m.get(), reinterpret_cast<uintptr_t>(m.get()), 2, 0);
    keeper.run = [](void *ctx, const gq_copy_kernel_launch *, unsigned, unsigned) {
        return *static_cast<int *>(ctx);
    };
    keeper.ctx = &result;
    for (unsigned i = 0; i < 2 * GQ_KEEPER_STREAMS; i++) {
        gq_copy_kernel_ticket ticket;
        gq_gather copy = {uint64_t{1} << 20, uint64_t{1} << 21, 512};

        gq_poster_post(&poster, &copy, 1, &ticket);
        result = -EIO;
        for (unsigned tries = 0; tries <= GQ_KEEPER_STREAMS; tries++) {
            EXPECT_EQ(gq_keeper_peek(&keeper), -EIO);
            EXPECT_TRUE(gq_keeper_is_needed(&keeper));
            EXPECT_TRUE(gq_poster_is_stuck(&poster));
        }
        result = 0;
        EXPECT_EQ(gq_keeper_peek(&keeper), 0);
        EXPECT_FALSE(gq_keeper_is_needed(&keeper));
        EXPECT_FALSE(gq_poster_is_stuck(&poster));
        EXPECT_EQ(m->launched.of[0], i + 1) << "by the number that was not used";
        memcpy(m->done.of, m->posted.of, sizeof(m->done.of));
        memcpy(m->ended.of, m->launched.of, sizeof(m->ended.of));
    }
}

/* 0 means a block that is not started, whose work would wait without limit. */
TEST(GqKeeper, NumbersOfLaunchesWrapAroundPastZero)
{
    auto m = std::make_unique<gq_mailboxes>();
    gq_keeper keeper;

    gq_keeper_init(&keeper, m.get(), reinterpret_cast<uintptr_t>(m.get()), 1, 0);
    keeper.run = [](void *, const gq_copy_kernel_launch *l, unsigned, unsigned) {
        return l->launch[0] ? 0 : -1;
    };
    keeper.launched[0] = m->ended.of[0] = UINT32_MAX - 3 * GQ_KEEPER_STREAMS;
    for (unsigned i = 0; i < 6 * GQ_KEEPER_STREAMS; i++) {
        m->posted.of[0]++;
        ASSERT_TRUE(gq_keeper_is_needed(&keeper));
        ASSERT_EQ(gq_keeper_peek(&keeper), 0);
        ASSERT_FALSE(gq_keeper_is_needed(&keeper)) << "it was launched";
        m->done.of[0]++;
        m->ended.of[0] = m->launched.of[0];
    }
    EXPECT_EQ(m->launched.of[0], 3 * GQ_KEEPER_STREAMS);
}

} // namespace
