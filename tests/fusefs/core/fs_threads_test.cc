/* SPDX-License-Identifier: BSD-2-Clause */
// Many threads on the same files: each sees whole writes, and the image stays consistent.
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "tests/fusefs/core/fs_fixture.h"
#include "tests/threads.h"

class FsThreads : public FsTest
{
  protected:
    void SetUp() override
    {
        opts.commit_ms = 5;
        FsTest::SetUp();
        unmount();
        opts.no_thread = false;
        ASSERT_EQ(mount(), 0);
    }
    using Work = std::function<void(unsigned, std::mt19937 &)>;
    void run(unsigned threads, const Work &work, int steps);
    void change_data(unsigned id, std::mt19937 &rng);
    void change_names(unsigned id, std::mt19937 &rng);

    static constexpr size_t record = 12288;
};

void FsThreads::run(unsigned threads, const Work &work, int steps)
{
    in_threads(threads, [&](unsigned id) {
        std::mt19937 rng(id);
        for (int i = 0; i < steps; i++)
            work(id, rng);
    });
}

// Records are written whole, so each is read as one letter, up to a zeroed or cut end.
void FsThreads::change_data(unsigned id, std::mt19937 &rng)
{
    Inode f = lookup("f" + std::to_string(rng() % 2));
    uint64_t at = rng() % 40 * record;
    ffs_map map;
    switch (rng() % 8) {
    case 0:
        truncate(f, at);
        break;
    case 1:
        ffs_fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, record);
        ffs_fallocate(f, FALLOC_FL_KEEP_SIZE, at, record);
        break;
    case 2:
        ffs_fsync(f, rng() % 2);
        break;
    case 3:
        EXPECT_EQ(ffs_map_read(f, at, record, &map), 0);
        ffs_map_release(&map);
        break;
    case 4:
    case 5:
        EXPECT_EQ(write(f, at, std::string(record, static_cast<char>('a' + id))),
                  static_cast<ssize_t>(record));
        break;
    default:
        std::string got = read(f, at, record);
        EXPECT_EQ(got.find_first_not_of(got[0]), std::string::npos);
    }
}

void FsThreads::change_names(unsigned id, std::mt19937 &rng)
{
    std::string mine = "t" + std::to_string(id), a = "n" + std::to_string(rng() % 8),
                b = "n" + std::to_string(rng() % 8);
    Inode d, i;
    EXPECT_EQ(ffs_lookup(root, mine.c_str(), d.out()), 0);
    switch (rng() % 7) {
    case 0:
        ffs_mkdir(root, a.c_str(), 0700, &cred, i.out());
        break;
    case 1:
        ffs_rmdir(root, a.c_str());
        break;
    case 2:
        if (ffs_mknod(root, a.c_str(), S_IFREG | 0600, 0, &cred, i.out()) == 0)
            write(i, 0, mine);
        break;
    case 3:
        ffs_unlink(root, a.c_str());
        break;
    case 4:
        ffs_rename(root, a.c_str(), rng() % 2 ? root : d, b.c_str(), 0);
        break;
    case 5:
        ffs_rename(d, a.c_str(), root, b.c_str(), rng() % 2 ? RENAME_EXCHANGE : 0);
        break;
    default:
        EXPECT_GE(names(root).size(), 6u);
    }
}

TEST_F(FsThreads, DataStaysWholeUnderConcurrentChanges)
{
    create("f0");
    create("f1");
    run(
        4, [this](unsigned id, std::mt19937 &rng) { change_data(id, rng); }, 400);
}

TEST_F(FsThreads, NamesStayConsistentUnderConcurrentChanges)
{
    for (unsigned id = 0; id < 4; id++)
        mkdir("t" + std::to_string(id));
    run(
        4, [this](unsigned id, std::mt19937 &rng) { change_names(id, rng); }, 600);
}

TEST_F(FsThreads, AWriterWaitsForAMapForWriting)
{
    Inode f = create("f");
    ffs_map map;
    ASSERT_EQ(ffs_map_write(f, 0, 4096, &map), 0);
    std::atomic<bool> done{false};
    std::thread other([&] {
        write(f, 0, "second");
        done = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(done);
    memset(device.bytes() + map.segments[0].device, 'f', 4096);
    ASSERT_EQ(ffs_map_write_end(&map, 4096, nullptr), 0);
    other.join();
    EXPECT_EQ(read(f, 0, 8), "secondff");
}

// A drive whose commands of one kind take until they are let go. An error is told once, as
// fdatasync(2) does.
class FsPaused : public FsThreads
{
  protected:
    void hold_back(bd_op kind, int error = 0)
    {
        error_ = error;
        held_ = true;
        device.before_submit = [this, kind](bd_io *ios, size_t) {
            return ios[0].op == kind ? wait() : 0;
        };
    }
    void wait_for_the_first()
    {
        std::unique_lock<std::mutex> hold(lock_);
        bool begins = changed_.wait_for(hold, std::chrono::seconds(10), [&] { return begun == 1; });
        EXPECT_TRUE(begins) << "no such command";
    }
    void mount_without_thread()
    {
        unmount();
        opts.no_thread = true;
        ASSERT_EQ(mount(), 0);
    }
    void let_go()
    {
        std::lock_guard<std::mutex> hold(lock_);
        held_ = false;
        changed_.notify_all();
    }

    unsigned begun = 0, most = 0;

  private:
    int wait()
    {
        std::unique_lock<std::mutex> hold(lock_);
        begun++;
        most = std::max(most, ++under_way_);
        changed_.notify_all();
        changed_.wait(hold, [this] { return !held_; });
        under_way_--;
        return std::exchange(error_, 0);
    }

    std::mutex lock_;
    std::condition_variable changed_;
    unsigned under_way_ = 0;
    int error_ = 0;
    bool held_ = false;
};

class FsFlushes : public FsPaused
{
  protected:
    // One flush is under way while six further ones are requested: counts the calls that failed.
    int sync_by_seven(int error)
    {
        mount_without_thread();
        create("f");
        EXPECT_EQ(ffs_sync(fs), 0);
        hold_back(BD_FLUSH, error);
        std::vector<std::thread> all;
        std::atomic<int> failed{0};
        auto sync = [&] { failed += ffs_sync(fs) != 0; };
        all.emplace_back(sync);
        wait_for_the_first();
        for (int i = 0; i < 6; i++)
            all.emplace_back(sync);
        std::this_thread::sleep_for(std::chrono::milliseconds(50)); // for them to come that far
        EXPECT_EQ(begun, 1u);
        let_go();
        for (std::thread &t : all)
            t.join();
        return failed;
    }
};

// Each has a queue pair of the drive for as long as it takes.
TEST_F(FsFlushes, RunOneAtATimeAndServeAllWaiters)
{
    EXPECT_EQ(sync_by_seven(0), 0);
    EXPECT_EQ(most, 1u);
    EXPECT_GE(begun, 2u) << "the first began before the others were asked for";
}

TEST_F(FsFlushes, FailForAllWaitersAndAreNotRetried)
{
    check_at_end = false;
    EXPECT_EQ(sync_by_seven(-EIO), 7);
    EXPECT_EQ(begun, 1u);
}

// New files of seven threads, the first of which is being made durable while the rest are written.
TEST_F(FsFlushes, AreSharedByFsyncsThatOverlap)
{
    mount_without_thread();
    std::vector<Inode> files(7);
    for (size_t i = 0; i < files.size(); i++)
        files[i] = create("f" + std::to_string(i));
    hold_back(BD_FLUSH);
    std::vector<std::thread> all;
    std::atomic<size_t> failed{0}, written{0};
    auto save = [&](size_t i) {
        failed += ffs_write(files[i], 0, "text", 4) != 4;
        written++;
        failed += ffs_fsync(files[i], false) != 0;
    };
    all.emplace_back(save, 0);
    wait_for_the_first();
    for (size_t i = 1; i < files.size(); i++)
        all.emplace_back(save, i);
    for (int i = 0; i < 30000 && written < files.size(); i++)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(50)); // for them to come that far
    let_go();
    for (std::thread &t : all)
        t.join();
    EXPECT_EQ(failed, 0u);
    EXPECT_LT(begun, 5u) << "the second flush serves all that wait for it";
}

// A read that is under way sees none of a later write.
TEST_F(FsPaused, AWriterWaitsForAReader)
{
    mount_without_thread();
    Inode f = create("f");
    std::string old(65536, 'o'), seen;
    write(f, 0, old);
    hold_back(BD_READ);
    std::atomic<bool> written{false};
    std::thread reader([&] { seen = read(f, 0, old.size()); });
    wait_for_the_first();
    std::thread writer([&] {
        write(f, 0, std::string(65536, 'n'));
        written = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50)); // for it to come that far
    EXPECT_FALSE(written);
    let_go();
    reader.join();
    writer.join();
    EXPECT_EQ(seen, old);
}

TEST_F(FsPaused, WritersOfAFileTakeTurns)
{
    mount_without_thread();
    Inode f = create_with("f", std::string(65536, 'o'));
    hold_back(BD_WRITE);
    std::thread first([&] { write(f, 0, std::string(8192, '1')); });
    wait_for_the_first();
    std::thread second([&] { write(f, 4096, std::string(8192, '2')); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(begun, 1u);
    let_go();
    first.join();
    second.join();
    EXPECT_EQ(read(f, 0, 12288), std::string(4096, '1') + std::string(8192, '2'));
}

// Its blocks are on their way out: another one that finds its number would use them.
TEST_F(FsPaused, AnInodeThatIsBeingFreedIsNotFound)
{
    write(create("f"), 0, std::string(65536, 'x'));
    mount_without_thread();
    Inode f = lookup("f"), again;
    uint64_t ino = ffs_ino(f);
    ASSERT_EQ(ffs_unlink(root, "f"), 0);
    ASSERT_EQ(ffs_iget(fs, ino, again.out()), 0) << "open, without a name";
    again.reset();
    hold_back(BD_READ); // of the bitmap
    std::thread last([&] { f.reset(); });
    wait_for_the_first();
    EXPECT_EQ(ffs_iget(fs, ino, again.out()), -ESTALE);
    let_go();
    last.join();
}
