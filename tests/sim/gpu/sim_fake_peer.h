/* SPDX-License-Identifier: BSD-2-Clause */
/* A fake peer: keeper and kernel are one thread, copies are memcpy(). */
#ifndef TESTS_SIM_GPU_SIM_FAKE_PEER_H
#define TESTS_SIM_GPU_SIM_FAKE_PEER_H

#include <atomic>
#include <cstring>
#include <linux/futex.h>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "sim/gpu/sim_peer_window.h"

class FakePeer
{
  public:
    /*
     * Blocks end after `idle` rounds without work. `copies` counts the copies.
     * ThreadSanitizer does not know that mailboxes are mapped twice: sync() on
     * the count, before posting and after polling, shows it the order.
     */
    FakePeer(int fd, size_t len, unsigned sets, unsigned blocks, std::atomic<uint64_t> &copies,
             unsigned idle = 50)
        : copies_(copies), len_(len), idle_(idle), sets_(sets)
    {
        void *at = mmap(nullptr, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

        if (at == MAP_FAILED)
            throw std::runtime_error("mmap");
        head_ = static_cast<sim_mailbox_head *>(at);
        for (unsigned i = 0; i < sets; i++) {
            sim_mailboxes *m = sim_mailbox_set(head_, i);

            sim_keeper_init(&sets_[i].keeper, m, (uint64_t)m, blocks, 0);
            sets_[i].keeper.run = run;
            sets_[i].keeper.ctx = &sets_[i];
            sets_[i].blocks.resize(blocks);
        }
        thread_ = std::thread([this] { serve(); });
    }

    ~FakePeer()
    {
        stop_ = true;
        wake();
        thread_.join();
        munmap(head_, len_);
    }

    static void sync(std::atomic<uint64_t> &copies)
    {
        copies.fetch_add(0);
    }

    bool is_asleep() const
    {
        return __atomic_load_n(&head_->asleep, __ATOMIC_SEQ_CST) != 0;
    }

    std::atomic<uint64_t> launches{0};

  private:
    struct Block {
        uint32_t launch = 0, batch = 0; /* launch 0: not running */
        unsigned idle = 0;
    };
    struct Set {
        sim_keeper keeper;
        std::vector<Block> blocks;
        bool launched = false;
    };

    static int run(void *ctx, const sim_copy_kernel_launch *l, unsigned blocks, unsigned stream)
    {
        Set *set = static_cast<Set *>(ctx);

        if (stream >= SIM_KEEPER_STREAMS)
            return -1;
        for (unsigned b = 0; b < blocks; b++) {
            if (l->launch[b])
                set->blocks[b] = {l->launch[b], l->first[b], 0};
            if (l->launch[b])
                __atomic_store_n(&l->started[b], l->launch[b], __ATOMIC_SEQ_CST);
        }
        set->launched = true;
        return 0;
    }

    /* The kernel: a slot is new if its words have the tag of its filling. */
    bool serve_block(Set &set, unsigned b)
    {
        Block &k = set.blocks[b];
        sim_mailboxes *m = set.keeper.m;
        sim_copy_slot *slot =
            &m->slots[b * SIM_COPY_KERNEL_SLOTS + k.batch % SIM_COPY_KERNEL_SLOTS];
        uint64_t tag = SIM_COPY_KERNEL_TAG(k.batch / SIM_COPY_KERNEL_SLOTS + 1);
        uint64_t head = __atomic_load_n(&slot->words[0], __ATOMIC_SEQ_CST);

        if (!k.launch)
            return false;
        if ((head & ~SIM_COPY_KERNEL_VALUE) != tag) {
            if (++k.idle == idle_) {
                __atomic_store_n(&m->ended.of[b], k.launch, __ATOMIC_RELEASE);
                k.launch = 0;
            }
            return false;
        }
        k.idle = 0;
        sync(copies_);
        for (unsigned i = 0; i < (head & 0xff); i++) {
            memcpy((void *)(slot->words[2 + 2 * i] & SIM_COPY_KERNEL_VALUE),
                   (void *)(slot->words[3 + 2 * i] & SIM_COPY_KERNEL_VALUE),
                   1ull << (head >> 8 & 0xff));
            copies_++;
        }
        __atomic_store_n(&m->done.of[b], ++k.batch, __ATOMIC_RELEASE);
        return true;
    }

    bool serve_set(Set &set)
    {
        bool busy = false;

        sim_keeper_peek(&set.keeper);
        launches += set.launched;
        set.launched = false;
        for (unsigned b = 0; b < set.blocks.size(); b++) {
            serve_block(set, b);
            busy |= set.blocks[b].launch != 0;
        }
        return busy || sim_keeper_is_needed(&set.keeper);
    }

    void serve()
    {
        while (!stop_) {
            bool busy = false;

            for (Set &set : sets_)
                busy |= serve_set(set);
            if (!busy)
                sleep();
        }
    }

    /* Sleeps as the thread of a keeper must. */
    void sleep()
    {
        const timespec bound = {5, 0};
        bool work = false;

        __atomic_exchange_n(&head_->asleep, 1, __ATOMIC_ACQ_REL);
        for (Set &set : sets_)
            work |= sim_keeper_is_needed(&set.keeper);
        if (!work && !stop_)
            syscall(SYS_futex, &head_->asleep, FUTEX_WAIT, 1, &bound, nullptr, 0);
        __atomic_store_n(&head_->asleep, 0, __ATOMIC_SEQ_CST);
    }

    void wake()
    {
        __atomic_store_n(&head_->asleep, 0, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &head_->asleep, FUTEX_WAKE, 1, nullptr, nullptr, 0);
    }

    std::atomic<uint64_t> &copies_;
    sim_mailbox_head *head_;
    size_t len_;
    unsigned idle_;
    std::vector<Set> sets_;
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

#endif
