/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Peers without progress: a GPU without room for the copy kernel, whose copies
 * are made here until it runs again.
 */
#include "tests/sim/gpu/sim_peer_window_rig.h"

namespace
{

constexpr unsigned kSoon = 2; /* ms without progress */

class SimPeerPause : public SimPeerWindow
{
  protected:
    std::vector<sim_gather> pages(const Owner &o, unsigned n) const
    {
        std::vector<sim_gather> copies;

        for (unsigned i = 0; i < n; i++)
            copies.push_back(read(o, i * 8192, (i + 1) * 4096, 4096));
        return copies;
    }
    /* Posts copies and waits until they are to be made here. */
    void lose(std::vector<sim_gather> &copies)
    {
        ASSERT_EQ(submit(copies, &peer_copy), 0);
        ASSERT_EQ(peer_copy.n_parts, 1u);
        ASSERT_EQ(wait(&peer_copy, &lost), -ESTALE);
        ASSERT_EQ(peer_copy.parts[lost].n, copies.size());
        ASSERT_EQ(wait(&peer_copy, &lost), 1) << "the part counts as done";
    }
    /* The mailbox of channel 0, as the process of the owner maps it. */
    sim_mailboxes *mailbox(const Owner &o)
    {
        len_ = sim_peer_len(o.peer);
        at_ = mmap(nullptr, len_, PROT_READ | PROT_WRITE, MAP_SHARED, sim_peer_fd(o.peer), 0);
        EXPECT_NE(at_, MAP_FAILED);
        return sim_mailbox_set(static_cast<sim_mailbox_head *>(at_), 0);
    }
    ~SimPeerPause() override
    {
        if (at_ != MAP_FAILED)
            munmap(at_, len_);
    }

  private:
    void *at_ = MAP_FAILED;
    size_t len_ = 0;
};

TEST_F(SimPeerPause, WithoutAKernelCopiesStayHereAndItIsNotDropped)
{
    Owner &o = owner(false, true, kSoon);
    std::vector<sim_gather> copies = pages(o, 40);

    ASSERT_NO_FATAL_FAILURE(lose(copies));
    ASSERT_EQ(submit(copies, &peer_copy), 0);
    EXPECT_EQ(peer_copy.n_local, 40u) << "without another wait";
    EXPECT_TRUE(peer_copy.by_engine);
    EXPECT_EQ(wait(&peer_copy, &lost), 1);
    EXPECT_EQ(o.dropped, 0);
}

TEST_F(SimPeerPause, AKernelThatFindsRoomMakesNoOldCopiesAndAllNewOnes)
{
    Owner &o = owner(false, true, kSoon);
    std::vector<sim_gather> copies = pages(o, 100), more;

    ASSERT_NO_FATAL_FAILURE(lose(copies));
    answer(o);
    while (!o.process->is_asleep()) /* all is counted */
        std::this_thread::yield();
    EXPECT_EQ(o.copies, 0u);
    EXPECT_EQ(o.there, Bytes(kLen, 0)) << "newer data would be overwritten";
    /* A thread of a busy machine may be late: the peer is passed over once more. */
    for (auto since = Clock::now(); Clock::now() - since < std::chrono::seconds(30);) {
        more = pages(o, 100);
        ASSERT_EQ(submit(more, &peer_copy), 0);
        if (wait(&peer_copy, &lost) == 1 && peer_copy.n_parts && !peer_copy.by_engine)
            break;
    }
    EXPECT_FALSE(peer_copy.by_engine);
    for (unsigned i = 0; i < 100; i++)
        ASSERT_EQ(memcmp(&o.there[i * 8192], &media[(i + 1) * 4096], 4096), 0) << i;
    EXPECT_EQ(o.dropped, 0);
}

/* It may have loaded the batch before it was cancelled. */
TEST_F(SimPeerPause, CopiesOfARunningKernelAreReturnedAtItsCountOrItsEnd)
{
    for (bool ends : {false, true}) {
        Owner &o = owner(false, true, kSoon);
        std::vector<sim_gather> copies = pages(o, 1);
        sim_mailboxes *m = mailbox(o);

        __atomic_store_n(&m->launched.of[0], 1u, __ATOMIC_SEQ_CST);
        __atomic_store_n(&m->started.of[0], 1u, __ATOMIC_SEQ_CST);
        ASSERT_EQ(submit(copies, &peer_copy), 0);
        for (auto since = Clock::now(); !(m->slots[0].words[0] & SIM_COPY_KERNEL_VOID) &&
                                        Clock::now() - since < std::chrono::seconds(30);)
            ASSERT_EQ(poll(&peer_copy, &lost), 0);
        EXPECT_EQ(m->slots[0].words[0] & 0xff, 0u) << "no copies";
        EXPECT_EQ(poll(&peer_copy, &lost), 0) << "the kernel may be copying";
        __atomic_store_n(ends ? &m->ended.of[0] : &m->done.of[0], 1u, __ATOMIC_SEQ_CST);
        EXPECT_EQ(poll(&peer_copy, &lost), -ESTALE) << "counted, but perhaps void";
        EXPECT_EQ(o.dropped, 0);
        end(o);
    }
}

TEST_F(SimPeerPause, ARunningKernelWithoutProgressIsDropped)
{
    Owner &o = owner(false, true, kSoon);
    std::vector<sim_gather> copies = pages(o, 1);

    __atomic_store_n(&mailbox(o)->started.of[0], 1u, __ATOMIC_SEQ_CST);
    ASSERT_EQ(submit(copies, &peer_copy), 0);
    EXPECT_EQ(wait(&peer_copy, &lost), -ESTALE);
    EXPECT_EQ(o.dropped, 1);
}

TEST_F(SimPeerPause, FullMailboxesDoNotHoldUpTheNextCopies)
{
    Owner &o = owner(false, true, kSoon);
    std::vector<sim_peer_copy> parts;
    std::vector<sim_gather> copies = pages(o, 1);
    int err = 0;

    for (auto since = Clock::now(); Clock::now() - since < std::chrono::seconds(30);) {
        parts.emplace_back();
        err = submit(copies, &parts.back());
        if (!err && !parts.back().n_parts)
            break;
        if (err)
            parts.pop_back();
    }
    ASSERT_EQ(err, 0);
    EXPECT_EQ(parts.back().n_local, 1u);
    EXPECT_TRUE(parts.back().by_engine);
    for (size_t i = 0; i + 1 < parts.size(); i++)
        ASSERT_EQ(wait(&parts[i], &lost), -ESTALE) << i;
    EXPECT_EQ(o.dropped, 0);
}

TEST_F(SimPeerPause, AChannelThatIsServedKeepsItsPeer)
{
    Owner &o = owner(false, true, kSoon);
    std::vector<sim_gather> copies = pages(o, 4);

    ASSERT_NO_FATAL_FAILURE(lose(copies));
    ASSERT_EQ(submit(copies, &peer_copy, 1), 0);
    EXPECT_EQ(peer_copy.n_parts, 1u) << "the other channel's kernel may have room";
    EXPECT_EQ(wait(&peer_copy, &lost, 1), -ESTALE);
}

} // namespace
