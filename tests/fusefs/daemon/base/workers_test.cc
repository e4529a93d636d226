/* SPDX-License-Identifier: BSD-2-Clause */
// Distribution of worker threads among users.
#include <sys/stat.h>
#include <sys/types.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "fusefs/daemon/base/workers.h"
}

namespace
{

constexpr unsigned kTransfers = 12, kTransfersOfUser = 8, kOfUser = 4;

class Workers : public ::testing::Test
{
  protected:
    static constexpr uid_t kNone = static_cast<uid_t>(-1);

    // A job that ends when it is released.
    struct Work {
        job j;
        Workers *test;
    };

    void SetUp() override { ASSERT_EQ(workers_open(kTransfers, &workers_), 0); }
    void TearDown() override
    {
        let_go();
        if (workers_)
            workers_close(workers_);
        for (Work *w : all_)
            delete w;
    }
    void add(work kind, uid_t uid, int n = 1)
    {
        for (; n > 0; n--) {
            all_.push_back(new Work{{run, uid, {}}, this});
            workers_add(workers_, kind, &all_.back()->j);
        }
    }
    void let_go()
    {
        std::lock_guard<std::mutex> hold(lock_);
        held_ = false;
        changed_.notify_all();
    }
    static void run(job *j)
    {
        Workers *t = reinterpret_cast<Work *>(j)->test;
        std::unique_lock<std::mutex> hold(t->lock_);
        t->begun_.push_back(j->uid);
        t->changed_.notify_all();
        t->changed_.wait(hold, [t, j] { return !t->held_ || t->released_ == j->uid; });
        t->released_ = kNone;
    }
    // Ends one job of a user.
    void release(uid_t uid)
    {
        std::lock_guard<std::mutex> hold(lock_);
        released_ = uid;
        changed_.notify_all();
    }
    size_t begun_of(uid_t uid)
    {
        return static_cast<size_t>(std::count(begun_.begin(), begun_.end(), uid));
    }
    // Waits until `n` jobs of a user have begun.
    bool begin(uid_t uid, size_t n)
    {
        std::unique_lock<std::mutex> hold(lock_);
        return changed_.wait_for(hold, std::chrono::seconds(60),
                                 [&] { return begun_of(uid) >= n; });
    }

    workers *workers_ = nullptr;
    std::vector<Work *> all_;
    std::mutex lock_;
    std::condition_variable changed_;
    bool held_ = true;
    uid_t released_ = kNone;
    std::vector<uid_t> begun_; // whose jobs, in order
};

// Names a kind of work, and the threads that the first and the second user get.
struct Shares {
    work kind;
    size_t first, second;
};

class WorkersOfAKind : public Workers, public ::testing::WithParamInterface<Shares>
{
};

// Eight transfers were all threads once, and one user could occupy them.
TEST_P(WorkersOfAKind, AUserLeavesThreadsToAnotherAndToRoot)
{
    const auto [kind, first, second] = GetParam();
    add(kind, 1, 100);
    EXPECT_TRUE(begin(1, first));
    add(kind, 2, 100);
    EXPECT_TRUE(begin(2, second));
    add(kind, 3);
    add(kind, 0);
    EXPECT_TRUE(begin(0, 1)) << "a thread is root's";
    std::lock_guard<std::mutex> hold(lock_);
    EXPECT_EQ(begun_of(1), first);
    EXPECT_EQ(begun_of(2) + begun_of(3), second);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, WorkersOfAKind,
    ::testing::Values(Shares{WORK_BUFFER, kOfUser, kOfUser}, Shares{WORK_SYNC, kOfUser, kOfUser},
                      Shares{WORK_TRANSFER, kTransfersOfUser, kTransfers - kTransfersOfUser - 1}));

TEST_F(Workers, TheUserWithTheFewestJobsIsNext)
{
    add(WORK_TRANSFER, 1, 100);
    ASSERT_TRUE(begin(1, kTransfersOfUser));
    for (uid_t uid = 2; uid < 5; uid++)
        add(WORK_TRANSFER, uid);
    ASSERT_TRUE(begin(4, 1)) << "with threads that are left";
    for (uid_t uid = 5; uid < 9; uid++)
        add(WORK_TRANSFER, uid);
    release(2);
    EXPECT_TRUE(begin(5, 1));
    release(1);
    EXPECT_TRUE(begin(6, 1)) << "before the user that was first, and has 92 waiting";
    std::lock_guard<std::mutex> hold(lock_);
    EXPECT_EQ(begun_of(1), kTransfersOfUser);
}

TEST_F(Workers, JobsOfRootDoNotReduceTheShareOfUsers)
{
    add(WORK_TRANSFER, 0, 100);
    ASSERT_TRUE(begin(0, kTransfersOfUser));
    for (uid_t uid = 1; uid <= kTransfers - kTransfersOfUser; uid++) {
        add(WORK_TRANSFER, uid);
        EXPECT_TRUE(begin(uid, 1)) << uid;
    }
}

// Each thread of the process is a directory, which is a link to the parent directory.
unsigned long threads()
{
    struct stat tasks;
    return stat("/proc/self/task", &tasks) == 0 ? tasks.st_nlink : 0;
}

TEST_F(Workers, AThreadStartsForAJobThatFindsNoneIdle)
{
    unsigned long before = threads();

    add(WORK_SYNC, 1, 2);
    ASSERT_TRUE(begin(1, 2));
    EXPECT_EQ(threads(), before + 1) << "the first thread was there";
    let_go();
    add(WORK_SYNC, 1, 20);
    add(WORK_TRANSFER, 2);
    ASSERT_TRUE(begin(2, 1));
    ASSERT_TRUE(begin(1, 22));
    EXPECT_LE(threads(), before + 8) << "there are at most nine";
}

TEST_F(Workers, EveryJobIsRunInTheEnd)
{
    for (uid_t i = 0; i < 300; i++)
        add(WORK_BUFFER, i % 3);
    EXPECT_TRUE(begin(1, 1));
    let_go();
    for (uid_t uid = 0; uid < 3; uid++)
        EXPECT_TRUE(begin(uid, 100)) << uid;
    add(WORK_BUFFER, 1, 10);
    EXPECT_TRUE(begin(1, 110)) << "after they have slept";
}

TEST_F(Workers, CloseRunsWhatIsQueued)
{
    for (uid_t i = 0; i < 100; i++)
        add(i % 4 ? WORK_BUFFER : WORK_TRANSFER, 1);
    let_go();
    workers_close(workers_);
    workers_ = nullptr;
    EXPECT_EQ(begun_of(1), 100u);
}

} // namespace
