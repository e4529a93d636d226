/* SPDX-License-Identifier: BSD-2-Clause */
/* Drives that fail in the middle: one small queue, or four transfers at a time. */
#ifndef TESTS_CUDA_ENGINE_GQ_RECOVER_RIG_H
#define TESTS_CUDA_ENGINE_GQ_RECOVER_RIG_H

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "tests/cuda/gq_file.h"
#include "tests/cuda/gq_rig.h"

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

inline constexpr size_t kMib = 1u << 20;
inline constexpr unsigned kSlackMs =
    10000; /* of a loaded machine with sanitizers, on top of a bound */

/* Where admin commands are lost; elsewhere none may miss its deadline, on a busy machine either. */
inline constexpr unsigned kLostAdminMs = 1000;

/* What takes its time: not for every executor. */
inline const Executor kForBusy[] = {kExecutors[0], kExecutors[2], kExecutors[4], kExecutors[5]};

inline sim_fault lost_admin(uint8_t opcode)
{
    sim_fault f = once(SIM_FAULT_LOSE);

    f.admin = true;
    f.match_opcode = true;
    f.opcode = opcode;
    return f;
}

/*
 * One queue of depth 5 and a buffer, the smallest case. A transfer that must
 * time out has a short deadline of its own; the other ones have the engine's
 * long deadline, for loaded machines.
 */
class Small
{
  public:
    explicit Small(const Executor &x) : rig(x, 512, 256u << 10)
    {
        rig.opts.queues = 1;
        rig.opts.depth = 5;
        rig.opts.max_command = 512;
    }

    void open()
    {
        rig.open();
        memory = std::make_unique<Target>(rig, 64u << 10);
    }

    int read(uint64_t lba, uint64_t lbas, unsigned deadline_ms = 0)
    {
        rig.req.deadline_ms = deadline_ms;
        return rig.move(GQ_READ, *memory, 0, {{lba, lbas * 512}}, 0, lbas * 512);
    }

    /* The first commands of a read are lost; when it returns, all else that it sent has ended. */
    int lose(unsigned commands)
    {
        sim_fault f = once(SIM_FAULT_LOSE);
        sim_stats before, now;

        f.times = commands;
        rig.fault(f);
        sim_get_stats(rig.s, &before);
        int err = read(0, 20, 100);
        auto end = Clock::now() + milliseconds(kSlackMs);
        do
            sim_get_stats(rig.s, &now);
        while ((now.commands < before.commands + rig.result.commands ||
                now.reads + commands < before.reads + rig.result.commands) &&
               Clock::now() < end);
        return err;
    }

    /* The first command of a transfer is lost, and its queue with it. */
    void lose_one()
    {
        ASSERT_EQ(lose(1), -ETIMEDOUT);
        ASSERT_TRUE(rig.result.unsettled);
        ASSERT_EQ(rig.stats().quarantined, 1u);
    }

    /* Several times round the rings: head, tail and phase are what the controller thinks. */
    void expect_in_step()
    {
        EXPECT_EQ(rig.stats().quarantined, 0u);
        for (uint64_t i = 0; i < 40; i++) {
            uint64_t lba = i * 37 % 384, lbas = 1 + i % 17;
            Bytes want(rig.media.begin() + (ptrdiff_t)(lba * 512),
                       rig.media.begin() + (ptrdiff_t)((lba + lbas) * 512));

            memory->fill(0xee);
            ASSERT_EQ(read(lba, lbas), 0) << "after " << i;
            ASSERT_TRUE(memory->holds(0, want)) << "after " << i;
        }
    }

    void expect_steps(uint64_t aborts, uint64_t recreates, uint64_t resets)
    {
        gq_stats st = rig.stats();

        EXPECT_EQ(st.aborts, aborts);
        EXPECT_EQ(st.recreates, recreates);
        EXPECT_EQ(st.resets, resets);
    }

    Rig rig;
    std::unique_ptr<Target> memory;
};

/*
 * One file over the whole namespace of a MiB, read in pieces of 4 KiB, to memory of the same size.
 */
class Whole
{
  public:
    explicit Whole(const Executor &x) : rig(x, 512, kMib) { rig.opts.max_command = 4096; }

    void open()
    {
        rig.open();
        file = std::make_unique<File>(rig, std::vector<gq_file_extent>{{0, 0}}, kMib);
        memory = std::make_unique<Target>(rig, kMib);
        batch = std::make_unique<Batch>(*memory, *file, std::vector<gq_read>());
        for (uint64_t at = 0; at < kMib; at += 4096)
            batch->reads.push_back({at, at, 4096});
    }

    /*
     * Pieces reported as read are right. Of the remaining ones the content is not defined, and the
     * controller may still write it.
     */
    void expect_what_is_ok()
    {
        uint64_t bytes = 0;

        for (size_t i = 0; i < batch->reads.size(); i++) {
            const gq_read &r = batch->reads[i];

            if (!batch->is_good(i))
                continue;
            bytes += r.len;
            Bytes got = memory->read(r.at, r.len);
            ASSERT_TRUE(
                std::equal(got.begin(), got.end(), rig.media.begin() + (ptrdiff_t)r.file_offset))
                << i;
        }
        EXPECT_EQ(rig.result.bytes, bytes);
    }

    void expect_all_right()
    {
        memory->fill(0x77);
        EXPECT_EQ(batch->run(rig), 0);
        EXPECT_EQ(batch->count_good(), batch->reads.size());
        EXPECT_FALSE(rig.result.partial);
        EXPECT_TRUE(memory->holds(0, rig.media));
    }

    Rig rig;
    std::unique_ptr<Target> memory;
    std::unique_ptr<File> file;
    std::unique_ptr<Batch> batch;
};

/* Threads that write, read back and compare, each a MiB of the namespace of its own. */
class Load
{
  public:
    Load(Rig &rig, unsigned n) : results(n), rig_(rig)
    {
        for (unsigned i = 0; i < n; i++)
            memory_.push_back(std::make_unique<Memory>(rig.x.kind, kMib));
    }

    /* Memory is taken and given back while no transfer runs. */
    void start()
    {
        for (unsigned i = 0; i < memory_.size(); i++) {
            buffers_.push_back(rig_.add(*memory_[i], 0, kMib));
            memory_[i]->write(0, random_bytes(kMib, 50 + i));
        }
        for (unsigned i = 0; i < memory_.size(); i++)
            threads_.emplace_back([this, i] { work(i); });
    }

    void wait_rounds(unsigned n)
    {
        for (unsigned until = rounds + n; rounds < until && !failed;)
            std::this_thread::sleep_for(milliseconds(1));
    }

    void join(bool at_once = true)
    {
        stop_ = at_once;
        for (std::thread &t : threads_)
            t.join();
        threads_.clear();
        for (gq_buffer *b : buffers_)
            gq_buffer_unregister(b);
        buffers_.clear();
    }

    void expect_right()
    {
        join();
        EXPECT_EQ(failed, 0u) << "the last: " << strerror(-error);
        EXPECT_EQ(unsettled, 0u) << "resets have ended all that was left";
        for (unsigned i = 0; i < memory_.size(); i++)
            EXPECT_TRUE(rig_.peek(i * kMib, kMib) == random_bytes(kMib, 50 + i)) << i;
    }

    std::atomic<unsigned> rounds{0}, failed{0};
    std::atomic<int> error{0};
    std::atomic<unsigned> deadline_ms{0}; /* of each transfer */
    std::atomic<unsigned> unsettled{0};   /* transfers that ended so */
    std::vector<gq_result> results;       /* of each thread's last one, after join() */

  private:
    int move(gq_op op, unsigned i, uint64_t offset, uint64_t len)
    {
        gq_file_extent x = {0, i * kMib / 512};
        gq_request req = {op, buffers_[i], offset,      offset,  len,    &x,
                          1,  kMib,        deadline_ms, nullptr, nullptr};
        int err = gq_transfer(rig_.e, &req, &results[i]);

        unsettled += results[i].unsettled;
        return err;
    }

    /* A read restores the same bytes, so that the memory always has the written content. */
    void work(unsigned i)
    {
        std::mt19937 rng(i);

        do { /* once at least, for the namespace is looked at afterwards */
            uint64_t at = rng() % 1024 * 512;
            int err = move(GQ_WRITE, i, 0, kMib);

            if (!err)
                err = move(GQ_READ, i, at + rng() % 512, 1 + rng() % (kMib / 2 - 512));
            if (err) {
                error = err;
                failed++;
                return;
            }
            rounds++;
        } while (!stop_);
    }

    Rig &rig_;
    std::atomic<bool> stop_{false};
    std::vector<std::unique_ptr<Memory>> memory_;
    std::vector<gq_buffer *> buffers_;
    std::vector<std::thread> threads_;
};

/* Four transfers at a time, many commands each. */
class Busy
{
  public:
    explicit Busy(const Executor &x) : rig(x, 512, 4 * kMib), load(rig, 4)
    {
        rig.opts.queues = 8;
        rig.opts.depth = 16;
        rig.opts.max_command = 8192;
        rig.cfg.latency_ns = 200000;
        rig.cfg.reorder = true;
        rig.driver.admin_timeout_ms = 1000;
    }

    void start()
    {
        rig.open();
        load.start();
        load.wait_rounds(4);
    }

    Rig rig;
    Load load;
};

#endif
