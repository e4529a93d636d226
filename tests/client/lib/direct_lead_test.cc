/* SPDX-License-Identifier: BSD-2-Clause */
// Rounds of the leader of a shared queue (cuda/queue/gq_lead.h) over rings in memory.
#include <algorithm>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "tests/client/lib/direct_shared_rig.h"
}

namespace
{

// n completions of the CIDs from 0 on, in order.
void complete(struct shared_queue *q, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        q->cq[i].cid = static_cast<uint16_t>(i);
        q->cq[i].status = 1;
    }
}

void publish(struct shared_queue *q, uint32_t cid)
{
    q->cmds[cid].slba = 1000 + cid;
    q->states[cid] = GQ_CID_PENDING;
    q->cids.pending[cid / 32] |= 1u << cid % 32;
}

void nothing(struct shared_queue *)
{
}

// A command that no round has posted yet.
void publish_next(struct shared_queue *q)
{
    uint32_t cid = 200;
    while (q->states[cid])
        cid++;
    publish(q, cid);
}

// More than the group has lanes, of all words but one.
TEST(DirectLead, PostsThePendingCommandsOfAllWordsInOneRound)
{
    auto q = std::make_unique<struct shared_queue>();
    std::vector<uint32_t> cids = {0, 31, 32, 63, 95};
    for (uint32_t cid = 128; cid < 255; cid += cid < 160 ? 1 : 3)
        cids.push_back(cid);
    for (uint32_t cid : cids)
        publish(q.get(), cid);
    shared_lead(q.get(), 1, nothing);
    ASSERT_EQ(q->in_flight, cids.size());
    EXPECT_EQ(q->doorbells[0], cids.size());
    for (size_t i = 0; i < cids.size(); i++) {
        EXPECT_EQ(q->sq[i].cid & 255u, cids[i]) << i;
        EXPECT_EQ(q->sq[i].cdw10, 1000 + cids[i]) << i;
        EXPECT_EQ(q->states[cids[i]], GQ_CID_POSTED | q->sq[i].cid) << i;
    }
    for (uint32_t word : q->cids.pending)
        EXPECT_EQ(word, 0u);
}

// A round looks at a completion for each lane, behind a full one at two, if it posts commands.
TEST(DirectLead, TakesMoreCompletionsAfterAFullRound)
{
    struct {
        unsigned rounds;
        uint32_t head;
    } cases[] = {{1, 32}, {2, 96}, {3, 150}};
    for (const auto &c : cases) {
        auto q = std::make_unique<struct shared_queue>();
        q->in_flight = 160;
        complete(q.get(), 150);
        shared_lead(q.get(), c.rounds, publish_next);
        EXPECT_EQ(q->head, c.head) << c.rounds;
        EXPECT_EQ(q->in_flight, 160 + c.rounds - c.head) << c.rounds;
        EXPECT_FALSE(q->broken);
        for (uint32_t cid = 0; cid < 160; cid++)
            EXPECT_EQ(q->states[cid], cid < c.head ? GQ_ENDED : GQ_CID_POSTED | cid) << cid;
    }
}

// No fence has acquired what those would tell.
TEST(DirectLead, TakesNoMoreCompletionsWithoutAPost)
{
    auto q = std::make_unique<struct shared_queue>();
    q->in_flight = 160;
    complete(q.get(), 150);
    shared_lead(q.get(), 2, nothing);
    EXPECT_EQ(q->head, 64u);
}

TEST(DirectLead, KeepsTheCompletionsOfItsOwnCommands)
{
    auto q = std::make_unique<struct shared_queue>();
    q->in_flight = 40;
    q->own = 7;
    complete(q.get(), 40);
    std::swap(q->cq[3].cid, q->cq[30].cid);
    std::swap(q->cq[5].cid, q->cq[39].cid);
    shared_lead(q.get(), 1, nothing);
    EXPECT_EQ(q->ended, 0x5fu);
    EXPECT_FALSE(q->broken);
    for (uint32_t cid = 0; cid < 7; cid++)
        EXPECT_EQ(q->states[cid], 0u) << cid;
    EXPECT_EQ(q->states[30], GQ_ENDED);
    EXPECT_EQ(q->states[39], GQ_ENDED);
    EXPECT_EQ(q->states[32], GQ_CID_POSTED | 32);
}

TEST(DirectLead, FindsTwoCompletionsOfAnOwnCommandAndTheQueueBroken)
{
    for (uint32_t same : {1u, 20u}) {
        auto q = std::make_unique<struct shared_queue>();
        q->in_flight = 30;
        q->own = 2;
        complete(q.get(), 30);
        q->cq[same == 1 ? 0 : same].cid = 1;
        shared_lead(q.get(), 1, nothing);
        EXPECT_TRUE(q->broken) << same;
    }
}

} // namespace
