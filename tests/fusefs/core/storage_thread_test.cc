/* SPDX-License-Identifier: BSD-2-Clause */
// Many threads: handles, commits, lookups and pins at once, with the background thread.
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "tests/fusefs/core/storage_fixture.h"
#include "tests/threads.h"

namespace
{

class Threads : public StorageTest
{
  protected:
    void SetUp() override
    {
        opts.no_thread = false;
        opts.commit_ms = 1;
        opts.cache_bytes = 1;
        make(64u << 20, 256);
        ASSERT_EQ(mount(), 0) << why;
        for (int i = 0; i < 40; i++) {
            Inode inode;
            ASSERT_EQ(new_inode(inode.out()), 0);
            inos.push_back(ffs_ino(inode));
        }
    }
    // One round of a thread that allocates, pins, changes, frees and syncs.
    void round(std::mt19937 &random)
    {
        uint64_t block, len;
        ffs_pin *pin;
        int err = handle([&](ffs_tx *tx) { return ffs_alloc(tx, 0, 1, 40, 1, &block, &len); });
        ASSERT_EQ(err, 0);
        ffs_segment all = {0, len << 12, block << 12, false};
        ASSERT_EQ(ffs_pin_add(fs, &all, 1, &pin), 0);
        ASSERT_EQ(set_uid(inos[random() % inos.size()], random()), 0);
        ASSERT_EQ(handle([&](ffs_tx *tx) { return ffs_free(tx, block, len); }), 0);
        ASSERT_EQ(random() % 4 ? 0 : ffs_sync(fs), 0);
        ffs_pin_drop(fs, pin);
    }

    // The newest commit of the log, which the background thread writes.
    lay_log_commit newest_now()
    {
        lay_geometry geo = *ffs_geometry(fs);
        std::vector<uint8_t> log(geo.log_blocks << LAY_BLOCK_SHIFT);
        EXPECT_EQ(bd_read(dev->dev(), geo.log_start << LAY_BLOCK_SHIFT, log.data(), log.size()), 0);
        geo.log_start = 0;
        return *image_newest_commit(log.data(), &geo);
    }
    static bool begins_with_itself(const lay_log_commit &c)
    {
        return lay_get64(c.tail_tid) == lay_get64(c.head.tid);
    }

    std::vector<uint64_t> inos;
};

TEST_F(Threads, WorkTogether)
{
    std::vector<std::thread> threads;
    std::atomic<bool> stop{false};
    for (unsigned t = 0; t < 4; t++) {
        threads.emplace_back([&, t] {
            std::mt19937 random(t);
            for (int i = 0; i < 150; i++)
                round(random);
        });
    }
    std::thread reader([&] {
        for (unsigned i = 0; !stop; i++)
            ASSERT_GE(uid(inos[i % inos.size()]), 0);
    });
    for (std::thread &t : threads)
        t.join();
    stop = true;
    reader.join();
    uint64_t left = free_blocks();
    remount();
    EXPECT_EQ(free_blocks(), left);
}

TEST_F(Threads, AllWaitForTheSameCommit)
{
    constexpr unsigned THREADS = 8, SYNCS = 5;
    size_t ops = 0;
    dev->slow(2000);
    // A commit is at least three operations; sharing makes it fewer than each on its own. A busy
    // machine may run the threads one after another.
    for (int tries = 0; tries < 20 && (tries == 0 || ops >= 3 * THREADS * SYNCS); tries++) {
        dev->record();
        in_threads(THREADS, [&](unsigned t) {
            for (uint32_t i = 0; i < SYNCS; i++) {
                ASSERT_EQ(set_uid(inos[t], i), 0);
                ASSERT_EQ(commit(), 0);
            }
        });
        ops = dev->ops();
    }
    dev->slow(0);
    EXPECT_LT(ops, 3 * THREADS * SYNCS);
}

TEST_F(Threads, AWriteErrorReachesAllOfThem)
{
    dev->fail_writes(20);
    in_threads(4, [&](unsigned t) {
        int err = 0;
        while (!err) {
            err = set_uid(inos[t], 1);
            err = err ? err : ffs_sync(fs);
        }
        EXPECT_TRUE(err == -EIO || err == -EROFS) << err;
    });
    dev->fail_writes(-1);
    EXPECT_NE(unmount(), 0);
    EXPECT_EQ(mount(), 0) << why;
}

// What the log holds is in place then: nothing but its newest commit is needed any more.
TEST_F(Threads, ALogWithoutNewCommitsIsEmptied)
{
    dev->record();
    ASSERT_EQ(set_uid(inos[3], 77), 0);
    ASSERT_EQ(ffs_sync(fs), 0);
    const lay_geometry geo = *ffs_geometry(fs);
    auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!begins_with_itself(newest_now()) && std::chrono::steady_clock::now() < until)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const lay_log_commit newest = newest_now();
    ASSERT_TRUE(begins_with_itself(newest));
    Device after = dev->cut(dev->ops(), CRASH_DROP, 0);
    for (uint64_t pos = 0; pos < geo.log_blocks; pos++) {
        if (pos != lay_get64(newest.tail_pos))
            memset(after->bytes() + ((geo.log_start + pos) << 12), 0, 4096);
    }
    ASSERT_EQ(unmount(), 0);
    ASSERT_EQ(mount(after.get()), 0) << why;
    EXPECT_EQ(uid(inos[3]), 77);
    EXPECT_EQ(unmount(), 0);
}

} // namespace
