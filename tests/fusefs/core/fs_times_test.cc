/* SPDX-License-Identifier: BSD-2-Clause */
// Times of changes: of the tick, exact after they were looked at, never backwards.
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "tests/fusefs/core/fs_fixture.h"
extern "C" {
#define _Atomic
#include "fusefs/core/storage.h"
#undef _Atomic
}

namespace
{

constexpr int kTries = 10000;

using FsTimes = FsTest;

bool later(const timespec &a, const timespec &b)
{
    return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

long tick()
{
    timespec now = {};
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

uint64_t version(const ffs_inode *i)
{
    return lay_get64(i->d.version);
}

// Calls `write` until two calls happen in one tick and one transaction; false: they never do.
template <typename Write> bool in_one_tick(struct ffs *fs, Write write)
{
    for (int i = 0; i < kTries; i++) {
        long before = tick();
        uint64_t tid = ffs_running_tid(fs);
        bool as_expected = write();
        if (tick() == before && ffs_running_tid(fs) == tid)
            return as_expected;
    }
    return false;
}

} // namespace

TEST_F(FsTimes, ASecondWriteOfATickChangesNoMetadata)
{
    Inode f = create_with("f", "first");
    EXPECT_TRUE(in_one_tick(fs, [&] {
        write(f, 0, "other");
        uint64_t one = version(f);
        write(f, 1, "xx");
        return version(f) == one;
    }));
    EXPECT_EQ(read_all(f), "oxxer");
}

TEST_F(FsTimes, AWriteThatMovesTheEndOrFillsAHoleChangesMetadata)
{
    Inode f = create_with("f", "first");
    for (int i = 1; i < 100; i++) {
        write(f, 0, "other");
        write(f, i, "longer");
        ASSERT_EQ(attr(f).size, static_cast<uint64_t>(i) + 6);
    }
    truncate(f, 1 << 20);
    for (uint64_t block = 1; block < 100; block++) {
        write(f, 0, "other");
        write(f, block * 4096, "text");
        ASSERT_EQ(attr(f).blocks, (block + 1) * 8);
    }
    f.reset();
    remount();
    EXPECT_EQ(read_all(lookup("f")).substr(99 * 4096, 4), "text");
}

TEST_F(FsTimes, AChangeAfterTimesWereReadIsVisible)
{
    Inode f = create_with("f", "first");
    for (int i = 0; i < 2000; i++) {
        ffs_attr before = attr(f);
        if (i % 2) { // a change that fails in between
            ASSERT_EQ(ffs_removexattr(f, "user.none"), -ENODATA);
        }
        write(f, 0, "other");
        ffs_attr after = attr(f);
        ASSERT_TRUE(later(after.mtime, before.mtime) && later(after.ctime, before.ctime)) << i;
    }
}

TEST_F(FsTimes, AReadOfTimesIsRememberedAfterEviction)
{
    for (int i = 0; i < 20; i++) {
        std::string name = "f" + std::to_string(i);
        {
            Inode f = create_with(name, "first");
        }
        ffs_attr before = attr(lookup(name));
        remount();
        Inode f = lookup(name);
        write(f, 0, "other");
        ASSERT_TRUE(later(attr(f).mtime, before.mtime)) << i;
    }
}

TEST_F(FsTimes, NoChangeIsEarlierThanThePreviousOne)
{
    Inode looked = create("looked");
    for (int i = 0; i < 100; i++) {
        attr(looked);
        write(looked, 0, "x");
        Inode next = create(std::to_string(i)); // its times were never looked at
        ASSERT_FALSE(later(attr(looked).mtime, attr(next).mtime)) << i;
    }
}

TEST_F(FsTimes, TheCallerMaySetTimesOfData)
{
    ffs_set_data_times(fs, true);
    Inode f = create("f");
    ffs_attr before = attr(f), set = {};
    usleep(20000);
    write(f, 0, "data");
    write(f, 0, "more");
    truncate(f, 100000);
    ASSERT_EQ(ffs_fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
    EXPECT_FALSE(later(attr(f).mtime, before.mtime));
    set.mtime = set.ctime = {1000000000, 7};
    ASSERT_EQ(ffs_setattr(f, &set, FFS_SET_MTIME | FFS_SET_CTIME, &set), 0);
    write(f, 0, "last");
    remount(f, "f");
    EXPECT_EQ(attr(f).mtime.tv_sec, 1000000000);
    EXPECT_EQ(attr(f).ctime.tv_nsec, 7);
    EXPECT_EQ(attr(f).size, 100000u);
    write(f, 0, "text");
    EXPECT_GT(attr(f).mtime.tv_sec, 1000000000) << "of another mount";
}

TEST_F(FsTimes, AnAccessIsLaterThanTheChangeBeforeIt)
{
    Inode f = create("f");
    for (int i = 0; i < 1000; i++) {
        write(f, 0, "x");
        ffs_note_access(f);
        ffs_attr a = attr(f);
        ASSERT_TRUE(later(a.atime, a.mtime)) << i;
    }
}
