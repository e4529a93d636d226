/* SPDX-License-Identifier: BSD-2-Clause */
/* Peers whose processes are threads, and a caller that makes the copies left to it. */
#ifndef TESTS_SIM_GPU_SIM_PEER_WINDOW_RIG_H
#define TESTS_SIM_GPU_SIM_PEER_WINDOW_RIG_H

#include <cerrno>
#include <chrono>
#include <gtest/gtest.h>
#include <memory>
#include <random>

#include "tests/sim/gpu/sim_fake_peer.h"

using Bytes = std::vector<unsigned char>;
using Clock = std::chrono::steady_clock;

constexpr unsigned kChannels = 4, kBlocks = 3;
constexpr unsigned kNever = 1000000; /* ms without progress */
constexpr size_t kLen = 4 << 20;

inline Bytes random_bytes(size_t len, unsigned seed)
{
    std::mt19937 rng(seed);
    Bytes out(len);

    for (auto &b : out)
        b = (unsigned char)rng();
    return out;
}

inline uint64_t address(const void *p)
{
    return (uint64_t)(uintptr_t)p;
}

/*
 * The process of a peer has media and buffer at other addresses; `here` is
 * copied by the caller.
 */
struct Owner {
    sim_peer *peer = nullptr;
    Bytes *media_there;
    Bytes here = Bytes(kLen, 0), there = Bytes(kLen, 0);
    std::atomic<int> dropped{0};
    std::atomic<uint64_t> copies{0};
    std::unique_ptr<FakePeer> process;
};

class SimPeerWindow : public testing::Test
{
  protected:
    SimPeerWindow()
    {
        EXPECT_EQ(sim_peer_windows_open(kChannels, &windows), 0);
    }
    ~SimPeerWindow() override
    {
        for (auto &o : owners)
            end(*o);
        sim_peer_windows_close(windows);
    }

    Owner &owner(bool answers = true, bool peer_copy = true, unsigned pause_ms = kNever)
    {
        owners.push_back(std::make_unique<Owner>());
        Owner &o = *owners.back();

        o.media_there = &media_there;
        open(o, pause_ms);
        if (answers)
            answer(o);
        if (peer_copy)
            add_window(o);
        return o;
    }
    void open(Owner &o, unsigned pause_ms = kNever)
    {
        sim_peer_options opts = {};

        opts.media = media.data();
        opts.media_len = media.size();
        opts.blocks = kBlocks;
        opts.pause_ms = pause_ms;
        opts.dropped = [](void *ctx) { static_cast<Owner *>(ctx)->dropped++; };
        opts.ctx = &o;
        ASSERT_EQ(sim_peer_open(windows, &opts, &o.peer), 0);
    }
    static void answer(Owner &o)
    {
        o.process = std::make_unique<FakePeer>(sim_peer_fd(o.peer), sim_peer_len(o.peer), kChannels,
                                               kBlocks, o.copies);
    }
    void add_window(Owner &o)
    {
        sim_peer_window r = {&o, address(o.here.data()), kLen, address(o.there.data()),
                             address(media_there.data())};

        ASSERT_EQ(sim_peer_window_add(o.peer, &r), 0);
    }
    static void end(Owner &o)
    {
        if (o.peer)
            sim_peer_close(o.peer);
        o.peer = nullptr;
        o.process.reset();
    }

    sim_gather read(const Owner &o, size_t at, size_t from, size_t len) const
    {
        return {address(o.here.data() + at), address(media.data() + from), len};
    }

    int submit(std::vector<sim_gather> &copies, sim_peer_copy *peer_copy, unsigned channel = 0)
    {
        for (auto &o : owners)
            FakePeer::sync(o->copies);
        sim_peer_windows_lock(windows, channel);
        int err = sim_peer_windows_plan(windows, channel, copies.data(), (unsigned)copies.size(),
                                        peer_copy);
        if (!err)
            sim_peer_windows_post(windows, channel, peer_copy);
        sim_peer_windows_unlock(windows, channel);
        return err;
    }
    int poll(sim_peer_copy *peer_copy, unsigned *lost, unsigned channel = 0)
    {
        sim_peer_windows_lock(windows, channel);
        int rc = sim_peer_windows_poll(windows, channel, peer_copy, lost);
        sim_peer_windows_unlock(windows, channel);
        for (auto &o : owners)
            FakePeer::sync(o->copies);
        return rc;
    }
    /* Polls until the end. 1, or -ESTALE and the part. */
    int wait(sim_peer_copy *peer_copy, unsigned *lost, unsigned channel = 0)
    {
        int rc = 0;

        for (auto since = Clock::now(); rc == 0 && Clock::now() - since < std::chrono::seconds(30);)
            rc = poll(peer_copy, lost, channel);
        return rc;
    }
    static void make(const sim_gather &g)
    {
        memcpy((void *)g.dst, (const void *)g.src, g.len);
    }

    sim_peer_windows *windows = nullptr;
    const Bytes media = random_bytes(kLen, 1);
    Bytes media_there = media;
    std::vector<std::unique_ptr<Owner>> owners;
    sim_peer_copy peer_copy = {};
    unsigned lost = UINT32_MAX;
};

#endif
