/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Copies by another process: their selection, and copies that it does not make.
 */
#include "tests/sim/gpu/sim_peer_window_rig.h"

namespace
{

TEST_F(SimPeerWindow, ReadsIntoItsBufferAreMadeByTheOwner)
{
    Owner &o = owner();
    std::vector<sim_gather> copies;

    for (unsigned i = 0; i < 200; i++)
        copies.push_back(read(o, i * 8192, (199 - i) * 4096, 4096));
    ASSERT_EQ(submit(copies, &peer_copy), 0);
    EXPECT_EQ(peer_copy.n_local, 0u);
    ASSERT_EQ(peer_copy.n_parts, 1u);
    ASSERT_EQ(wait(&peer_copy, &lost), 1);
    for (unsigned i = 0; i < 200; i++)
        ASSERT_EQ(memcmp(&o.there[i * 8192], &media[(199 - i) * 4096], 4096), 0) << i;
    EXPECT_EQ(o.here, Bytes(kLen, 0)) << "made here as well";
    EXPECT_EQ(o.copies, 200u);
}

TEST_F(SimPeerWindow, OtherLengthsAreCutIntoPowersOfTwo)
{
    Owner &o = owner();
    std::vector<sim_gather> copies = {read(o, 0, 8192, 12288), read(o, 1 << 20, 512, 65024),
                                      read(o, 2 << 20, 0, 512)};

    ASSERT_EQ(submit(copies, &peer_copy), 0);
    EXPECT_EQ(peer_copy.n_local, 0u);
    ASSERT_EQ(wait(&peer_copy, &lost), 1);
    EXPECT_EQ(memcmp(&o.there[0], &media[8192], 12288), 0);
    EXPECT_EQ(memcmp(&o.there[1 << 20], &media[512], 65024), 0);
    EXPECT_EQ(memcmp(&o.there[2 << 20], &media[0], 512), 0);
    EXPECT_GT(o.copies, 3u);
}

TEST_F(SimPeerWindow, EverythingElseStaysHereInOrder)
{
    Owner &o = owner();
    Bytes bounce(8192), other(8192);
    std::vector<sim_gather> mine = {
        {address(other.data()), address(media.data()), 4096},   /* not a buffer of the owner */
        {address(o.here.data()), address(bounce.data()), 4096}, /* not from the media */
        {address(o.here.data() + kLen - 4096), address(media.data()), 8192}, /* past its end */
        {address(o.here.data() + 8), address(media.data()), 4096},           /* not aligned */
        read(o, 0, 0, 520), /* no slot encodes this */
    };
    std::vector<sim_gather> copies = mine;

    copies.insert(copies.begin() + 2, read(o, 8192, 8192, 4096));
    ASSERT_EQ(submit(copies, &peer_copy), 0);
    ASSERT_EQ(peer_copy.n_local, mine.size());
    ASSERT_EQ(peer_copy.n_parts, 1u);
    for (unsigned i = 0; i < mine.size(); i++)
        EXPECT_EQ(memcmp(&copies[i], &mine[i], sizeof(mine[i])), 0) << i;
    EXPECT_EQ(peer_copy.parts[0].first, mine.size());
    EXPECT_EQ(peer_copy.parts[0].n, 1u);
    EXPECT_EQ(wait(&peer_copy, &lost), 1);
}

TEST_F(SimPeerWindow, ARepeatedWindowReplacesTheOldOne)
{
    Owner &a = owner(), &b = owner(true, false);

    for (unsigned i = 0; i <= SIM_PEER_WINDOWS; i++)
        ASSERT_NO_FATAL_FAILURE(add_window(a));
    ASSERT_NO_FATAL_FAILURE(add_window(b));
    std::vector<sim_gather> copies = {read(a, 0, 8192, 4096), read(b, 4096, 0, 4096)};
    ASSERT_EQ(submit(copies, &peer_copy), 0);
    EXPECT_EQ(peer_copy.n_local, 0u);
    ASSERT_EQ(wait(&peer_copy, &lost), 1);
    EXPECT_EQ(memcmp(&a.there[0], &media[8192], 4096), 0);
    EXPECT_EQ(memcmp(&b.there[4096], &media[0], 4096), 0);
}

TEST_F(SimPeerWindow, WithoutWindowsAllCopiesStayHere)
{
    Owner &o = owner(true, false);
    std::vector<sim_gather> copies = {read(o, 0, 0, 4096)};

    EXPECT_FALSE(sim_peer_windows_exist(windows));
    add_window(o);
    EXPECT_TRUE(sim_peer_windows_exist(windows));
    sim_peer_window_remove(windows, &o);
    EXPECT_FALSE(sim_peer_windows_exist(windows));
    ASSERT_EQ(submit(copies, &peer_copy), 0);
    EXPECT_EQ(peer_copy.n_local, 1u);
    EXPECT_EQ(wait(&peer_copy, &lost), 1);
}

TEST_F(SimPeerWindow, TwoOwnersGetTheirCopies)
{
    Owner &a = owner(), &b = owner();
    std::vector<sim_gather> copies;

    for (unsigned i = 0; i < 60; i++)
        copies.push_back(read(i % 3 ? a : b, i * 4096, i * 4096, 4096));
    ASSERT_EQ(submit(copies, &peer_copy), 0);
    EXPECT_EQ(peer_copy.n_parts, 2u);
    ASSERT_EQ(wait(&peer_copy, &lost), 1);
    for (unsigned i = 0; i < 60; i++)
        ASSERT_EQ(memcmp(&(i % 3 ? a : b).there[i * 4096], &media[i * 4096], 4096), 0) << i;
    EXPECT_EQ(a.copies, 40u);
    EXPECT_EQ(b.copies, 20u);
}

TEST_F(SimPeerWindow, AKeeperThatSleepsIsWoken)
{
    Owner &o = owner();

    for (unsigned round = 0; round < 20; round++) {
        std::vector<sim_gather> copies = {read(o, round * 4096, 4096, 4096)};
        auto since = Clock::now();

        while (!o.process->is_asleep() && Clock::now() - since < std::chrono::seconds(10))
            std::this_thread::yield();
        ASSERT_TRUE(o.process->is_asleep()) << "it parks when there is nothing to do";
        ASSERT_EQ(submit(copies, &peer_copy), 0);
        ASSERT_EQ(wait(&peer_copy, &lost), 1);
    }
    EXPECT_GE(o.process->launches, 20u) << "each time its kernel had ended";
    EXPECT_EQ(o.dropped, 0);
}

TEST_F(SimPeerWindow, APeerThatDoesNotRespondIsDroppedOnce)
{
    Owner &o = owner(false), &fine = owner();
    std::vector<sim_gather> copies = {read(fine, 0, 0, 4096), read(o, 0, 4096, 4096),
                                      read(o, 4096, 8192, 4096)};
    sim_peer_copy second = {};
    std::vector<sim_gather> more = copies;

    ASSERT_EQ(submit(copies, &peer_copy), 0);
    ASSERT_EQ(submit(more, &second), 0);
    ASSERT_EQ(wait(&peer_copy, &lost), -ESTALE);
    const sim_peer_window_part &part = peer_copy.parts[lost];
    ASSERT_EQ(part.n, 2u);
    for (unsigned i = 0; i < part.n; i++)
        make(copies[part.first + i]);
    EXPECT_EQ(memcmp(&o.here[0], &media[4096], 8192), 0) << "the list is what was to be copied";
    EXPECT_EQ(wait(&peer_copy, &lost), 1) << "the part counts as done";
    EXPECT_EQ(wait(&second, &lost), -ESTALE);
    EXPECT_EQ(wait(&second, &lost), 1);
    EXPECT_EQ(memcmp(&fine.there[0], &media[0], 4096), 0) << "its neighbour was served";
    EXPECT_EQ(o.dropped, 1);
    ASSERT_EQ(submit(copies, &peer_copy), 0);
    EXPECT_EQ(peer_copy.n_local, 2u) << "no more is sent there";
    EXPECT_EQ(wait(&peer_copy, &lost), 1);
}

/*
 * For example after a turn of other kernels. The buffer may have newer data by
 * then.
 */
TEST_F(SimPeerWindow, ADroppedPeerMakesNoLateCopies)
{
    for (bool ends : {false, true}) {
        Owner &o = owner(false);
        std::vector<sim_gather> copies = {read(o, 0, 4096, 4096), read(o, 8192, 0, 512)};

        ASSERT_EQ(submit(copies, &peer_copy), 0);
        EXPECT_EQ(poll(&peer_copy, &lost), 0);
        int fd = dup(sim_peer_fd(o.peer));
        size_t len = sim_peer_len(o.peer);
        if (ends)
            end(o);
        else
            EXPECT_EQ(wait(&peer_copy, &lost), -ESTALE);
        o.process = std::make_unique<FakePeer>(fd, len, kChannels, kBlocks, o.copies);
        close(fd);
        while (!o.process->is_asleep()) /* without work */
            std::this_thread::yield();
        EXPECT_EQ(o.copies, 0u) << ends;
    }
}

TEST_F(SimPeerWindow, WaitsForSeveralPeersRunTogether)
{
    Owner &a = owner(false), &b = owner(false);
    std::vector<sim_gather> copies = {read(a, 0, 0, 4096), read(b, 0, 4096, 4096)};

    ASSERT_EQ(submit(copies, &peer_copy), 0);
    ASSERT_EQ(wait(&peer_copy, &lost), -ESTALE);
    usleep(50000); /* they were asked one after another */
    EXPECT_EQ(poll(&peer_copy, &lost), -ESTALE);
    EXPECT_EQ(poll(&peer_copy, &lost), 1);
    EXPECT_EQ(a.dropped + b.dropped, 2);
}

TEST_F(SimPeerWindow, CopiesOfAnEndedOwnerComeBackAtOnce)
{
    Owner &o = owner(false);
    std::vector<sim_gather> copies = {read(o, 0, 4096, 4096)};

    ASSERT_EQ(submit(copies, &peer_copy), 0);
    EXPECT_EQ(poll(&peer_copy, &lost), 0);
    end(o);
    EXPECT_FALSE(sim_peer_windows_exist(windows));
    owner(); /* takes the entry */
    EXPECT_EQ(poll(&peer_copy, &lost), -ESTALE);
    EXPECT_EQ(lost, 0u);
    EXPECT_EQ(poll(&peer_copy, &lost), 1);
    EXPECT_EQ(o.dropped, 0);
}

TEST_F(SimPeerWindow, CopiesOfARemovedWindowEnd)
{
    Owner &o = owner(false);
    std::vector<sim_gather> copies = {read(o, 0, 4096, 4096)};

    ASSERT_EQ(submit(copies, &peer_copy), 0);
    sim_peer_window_remove(windows, &o);
    EXPECT_EQ(poll(&peer_copy, &lost), 0);
    answer(o);
    EXPECT_EQ(wait(&peer_copy, &lost), 1);
    EXPECT_EQ(memcmp(&o.there[0], &media[4096], 4096), 0);
}

TEST_F(SimPeerWindow, FullMailboxesTakeNoCopies)
{
    Owner &o = owner(false);
    std::vector<sim_peer_copy> parts;
    int err = 0;

    for (unsigned i = 0; i < 100 && !err; i++) {
        std::vector<sim_gather> copies = {read(o, i * 4096, i * 4096, 4096)};

        parts.emplace_back();
        err = submit(copies, &parts.back());
    }
    EXPECT_EQ(err, -EAGAIN);
    parts.pop_back();
    EXPECT_EQ(parts.size(), kBlocks * SIM_COPY_KERNEL_SLOTS);
    answer(o);
    for (auto &p : parts)
        ASSERT_EQ(wait(&p, &lost), 1);
}

TEST_F(SimPeerWindow, CopiesThatNeverFitStayHere)
{
    Owner &o = owner();
    std::vector<sim_gather> copies;

    /* Adjacent copies of different lengths do not share a slot. */
    for (unsigned i = 0; i < kBlocks * SIM_COPY_KERNEL_SLOTS + 1; i++)
        copies.push_back(read(o, i * 4096, 0, i % 2 ? 512 : 1024));
    ASSERT_EQ(submit(copies, &peer_copy), 0);
    EXPECT_EQ(peer_copy.n_local, copies.size());
    EXPECT_EQ(peer_copy.n_parts, 0u);
}

TEST_F(SimPeerWindow, WrongCountsHaveNoEffectHere)
{
    Owner &o = owner(false);
    Bytes counts = random_bytes(sizeof(sim_copy_kernel_counts), 7);
    void *at = mmap(nullptr, sim_peer_len(o.peer), PROT_READ | PROT_WRITE, MAP_SHARED,
                    sim_peer_fd(o.peer), 0);
    ASSERT_NE(at, MAP_FAILED);
    sim_mailboxes *m = sim_mailbox_set(static_cast<sim_mailbox_head *>(at), 0);
    std::mt19937 rng(8);
    unsigned refused = 0, done = 0, stale = 0;

    for (unsigned round = 0; round < 2000 && !o.dropped; round++) {
        std::vector<sim_gather> copies;

        for (auto *c : {&m->posted, &m->done, &m->ended, &m->launched}) {
            for (auto &n : c->of)
                __atomic_store_n(&n, (uint32_t)rng(), __ATOMIC_RELAXED);
        }
        __atomic_store_n(&static_cast<sim_mailbox_head *>(at)->asleep, rng(), __ATOMIC_RELAXED);
        for (unsigned i = 0; i < 40; i++)
            copies.push_back(read(o, i * 4096, i * 4096, 4096));
        int err = submit(copies, &peer_copy);
        ASSERT_TRUE(err == 0 || err == -EAGAIN) << err;
        refused += err != 0;
        int rc = err ? 0 : poll(&peer_copy, &lost);
        done += rc == 1;
        stale += rc == -ESTALE;
    }
    EXPECT_GT(refused + done + stale, 0u);
    EXPECT_EQ(ftruncate(sim_peer_fd(o.peer), 0), -1) << "the memory cannot be cut";
    munmap(at, sim_peer_len(o.peer));
}

TEST_F(SimPeerWindow, APeerWithoutRoomIsDropped)
{
    Owner &o = owner(false);
    void *at = mmap(nullptr, sim_peer_len(o.peer), PROT_READ | PROT_WRITE, MAP_SHARED,
                    sim_peer_fd(o.peer), 0);
    ASSERT_NE(at, MAP_FAILED);
    for (auto &n : sim_mailbox_set(static_cast<sim_mailbox_head *>(at), 0)->done.of)
        __atomic_store_n(&n, 1000000u, __ATOMIC_RELAXED);
    std::vector<sim_gather> copies = {read(o, 0, 0, 4096)};
    int err = -EAGAIN;

    for (auto since = Clock::now();
         err == -EAGAIN && Clock::now() - since < std::chrono::seconds(30);)
        err = submit(copies, &peer_copy);
    ASSERT_EQ(err, 0) << "no copy is in flight, so there is no poll";
    EXPECT_EQ(peer_copy.n_local, 1u);
    EXPECT_EQ(o.dropped, 1);
    munmap(at, sim_peer_len(o.peer));
}

TEST_F(SimPeerWindow, RefusesAddressesThatASlotCannotEncode)
{
    Owner &o = owner(true, false);
    sim_peer_window r = {&o, address(o.here.data()), kLen, 1ull << 60, address(media_there.data())};

    EXPECT_EQ(sim_peer_window_add(o.peer, &r), -EINVAL);
    r.there = SIM_COPY_KERNEL_VALUE - kLen + 1;
    EXPECT_EQ(sim_peer_window_add(o.peer, &r), -EINVAL);
    r = {&o, address(o.here.data()), kLen, 4096, UINT64_MAX};
    EXPECT_EQ(sim_peer_window_add(o.peer, &r), -EINVAL);
}

TEST_F(SimPeerWindow, OnlySoManyAtOnce)
{
    sim_peer *one_more;
    sim_peer_options opts = {};

    for (unsigned i = 0; i < SIM_PEERS; i++)
        owner(false, i == 0);
    opts.blocks = 1;
    EXPECT_EQ(sim_peer_open(windows, &opts, &one_more), -EMFILE);
    Bytes buffers(SIM_PEER_WINDOWS);
    sim_peer_window r = {nullptr, 0x1000, 4096, 0x1000, 0x1000};
    for (unsigned i = 1; i < SIM_PEER_WINDOWS; i++) {
        r.owner = &buffers[i];
        ASSERT_EQ(sim_peer_window_add(owners[i % SIM_PEERS]->peer, &r), 0);
    }
    r.owner = &buffers[0];
    EXPECT_EQ(sim_peer_window_add(owners[0]->peer, &r), -ENOSPC);
}

/* Thread of a channel: copies at random places; lost copies are made here. */
class Worker
{
  public:
    Worker(sim_peer_windows *windows, unsigned channel, const Bytes &media, Owner &o)
        : windows_(windows), channel_(channel), media_(media), owner_(o)
    {
    }
    void run(std::atomic<bool> &stop)
    {
        std::mt19937 rng(channel_);

        for (; !stop; rounds++) {
            std::vector<sim_gather> copies;

            for (unsigned i = 0; i < 32; i++) {
                size_t at = (channel_ * 32 + i) * 4096, from = rng() % (kLen / 4096) * 4096;
                copies.push_back({address(&owner_.here[at]), address(&media_[from]), 4096});
            }
            std::vector<sim_gather> wanted = copies;
            if (transfer(copies))
                check(wanted);
        }
    }
    uint64_t rounds = 0, wrong = 0;

  private:
    bool transfer(std::vector<sim_gather> &copies)
    {
        sim_peer_copy peer_copy;
        unsigned lost;
        int rc = 0;

        FakePeer::sync(owner_.copies);
        sim_peer_windows_lock(windows_, channel_);
        int err = sim_peer_windows_plan(windows_, channel_, copies.data(), (unsigned)copies.size(),
                                        &peer_copy);
        if (!err)
            sim_peer_windows_post(windows_, channel_, &peer_copy);
        sim_peer_windows_unlock(windows_, channel_);
        if (err)
            return false;
        here_ = peer_copy.n_local != 0;
        for (unsigned i = 0; i < peer_copy.n_local; i++)
            memcpy((void *)copies[i].dst, (const void *)copies[i].src, copies[i].len);
        while (rc != 1) {
            sim_peer_windows_lock(windows_, channel_);
            rc = sim_peer_windows_poll(windows_, channel_, &peer_copy, &lost);
            sim_peer_windows_unlock(windows_, channel_);
            here_ |= rc < 0;
            for (unsigned i = 0; rc < 0 && i < peer_copy.parts[lost].n; i++) {
                const sim_gather &g = copies[peer_copy.parts[lost].first + i];
                memcpy((void *)g.dst, (const void *)g.src, g.len);
            }
        }
        return true;
    }
    /*
     * All copies of a submission have one owner, so they are made on one side.
     */
    void check(const std::vector<sim_gather> &wanted)
    {
        FakePeer::sync(owner_.copies);
        for (const auto &g : wanted) {
            size_t at = g.dst - address(owner_.here.data());
            const Bytes &got = here_ ? owner_.here : owner_.there;

            wrong += memcmp(&got[at], (const void *)g.src, g.len) != 0;
        }
    }

    sim_peer_windows *windows_;
    unsigned channel_;
    const Bytes &media_;
    Owner &owner_;
    bool here_ = false; /* the last submission was copied here, at the latest at its end */
};

TEST_F(SimPeerWindow, OwnersComeAndGoWhileChannelsCopy)
{
    Owner &o = owner();
    std::atomic<bool> stop{false};
    std::vector<Worker> workers;
    std::vector<std::thread> threads;

    for (unsigned i = 0; i < kChannels; i++)
        workers.emplace_back(windows, i, media, o);
    for (auto &w : workers)
        threads.emplace_back([&w, &stop] { w.run(stop); });
    for (unsigned i = 0; i < 30; i++) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        if (i % 3)
            sim_peer_window_remove(windows, &o);
        else
            end(o);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        if (i % 3 == 0) {
            open(o);
            answer(o);
        }
        add_window(o);
    }
    stop = true;
    for (auto &t : threads)
        t.join();
    for (auto &w : workers) {
        EXPECT_GT(w.rounds, 0u);
        EXPECT_EQ(w.wrong, 0u);
    }
}

} // namespace
