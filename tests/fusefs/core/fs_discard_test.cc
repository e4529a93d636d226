/* SPDX-License-Identifier: BSD-2-Clause */
// Discards of freed blocks, and FITRIM. A discarded block holds FS_GARBAGE.
#include <thread>

#include "tests/fusefs/core/fs_fixture.h"

namespace
{

class FsDiscard : public FsTest
{
  protected:
    // A durable file of `len` bytes 'x', and where it begins on the device.
    uint64_t place_of_new(const std::string &name, size_t len)
    {
        Inode f = create(name);
        EXPECT_EQ(write(f, 0, std::string(len, 'x')), static_cast<ssize_t>(len));
        EXPECT_EQ(ffs_sync(fs), 0);
        ffs_segment s = {};
        EXPECT_EQ(ffs_extents(f, 0, &s, 1), 1);
        return s.device;
    }
    // Syncs, and makes a later commit, after which what was freed may be discarded.
    void sync_and_commit_again()
    {
        struct ffs_attr a = {};
        a.mode = 0755;
        ASSERT_EQ(ffs_sync(fs), 0);
        ASSERT_EQ(ffs_setattr(root, &a, FFS_SET_MODE, nullptr), 0);
        ASSERT_EQ(ffs_sync(fs), 0);
    }
    char byte(uint64_t at) { return static_cast<char>(device.bytes()[at]); }
};

TEST_F(FsDiscard, FreedBlocksAreDiscardedWhenALaterCommitIsDurable)
{
    for (bool discard : {false, true}) {
        ffs_set_discard(fs, discard);
        uint64_t at = place_of_new("f", 100000);
        ASSERT_EQ(byte(at), 'x');
        ASSERT_EQ(ffs_unlink(root, "f"), 0);
        ASSERT_EQ(ffs_sync(fs), 0);
        EXPECT_EQ(byte(at), 'x') << "the newest commit could be lost";
        sync_and_commit_again();
        EXPECT_EQ(byte(at), discard ? FS_GARBAGE : 'x');
        EXPECT_EQ(byte(at + 98304), discard ? FS_GARBAGE : 'x');
    }
}

TEST_F(FsDiscard, PinnedBlocksAreNotDiscarded)
{
    ffs_set_discard(fs, true);
    uint64_t at = place_of_new("f", 65536);
    Inode f = lookup("f");
    ffs_map map;
    ASSERT_EQ(ffs_map_read(f, 16384, 16384, &map), 0);
    ASSERT_EQ(truncate(f, 0), 0);
    sync_and_commit_again();
    EXPECT_EQ(byte(at), FS_GARBAGE);
    EXPECT_EQ(byte(at + 16384), 'x');
    EXPECT_EQ(byte(at + 32767), 'x');
    EXPECT_EQ(byte(at + 32768), FS_GARBAGE);
    ffs_map_release(&map);
    uint64_t trimmed;
    const ffs_trim_range all = {0, UINT64_MAX, 0};
    ASSERT_EQ(ffs_trim(fs, &all, nullptr, nullptr, &trimmed), 0);
    EXPECT_EQ(byte(at + 16384), FS_GARBAGE);
}

TEST_F(FsDiscard, ATrimDiscardsExactlyTheFreeBlocks)
{
    std::string data = pattern(1, 3000000);
    write(create("kept"), 0, data);
    uint64_t at = place_of_new("gone", 3000000);
    ASSERT_EQ(ffs_unlink(root, "gone"), 0);
    uint64_t before = free_data(), trimmed;
    ffs_trim_range range = {0, UINT64_MAX, 0};
    ASSERT_EQ(ffs_trim(fs, &range, nullptr, nullptr, &trimmed), 0);
    EXPECT_EQ(byte(at), FS_GARBAGE);
    EXPECT_EQ(trimmed, before * 4096);
    EXPECT_EQ(free_data(), before);
    remount();
    EXPECT_EQ(read_all(lookup("kept")), data);
    EXPECT_EQ(fsck(), "");
}

TEST_F(FsDiscard, ATrimKeepsToItsRange)
{
    uint64_t a = place_of_new("a", 1u << 20), trimmed;
    ASSERT_EQ(ffs_unlink(root, "a"), 0);
    ASSERT_EQ(ffs_sync(fs), 0);
    ffs_trim_range range = {a + 4096, 8192, 0};
    ASSERT_EQ(ffs_trim(fs, &range, nullptr, nullptr, &trimmed), 0);
    EXPECT_EQ(trimmed, 8192u);
    EXPECT_EQ(byte(a), 'x');
    EXPECT_EQ(byte(a + 4096), FS_GARBAGE);
    EXPECT_EQ(byte(a + 12288), 'x');
    range.min_len = 16384; // no free range is that long
    ASSERT_EQ(ffs_trim(fs, &range, nullptr, nullptr, &trimmed), 0);
    EXPECT_EQ(trimmed, 0u);
    range = {device.size(), 4096, 0};
    EXPECT_EQ(ffs_trim(fs, &range, nullptr, nullptr, &trimmed), -EINVAL);
    range = {0, 4095, 0};
    EXPECT_EQ(ffs_trim(fs, &range, nullptr, nullptr, &trimmed), -EINVAL);
    auto enough = [](void *) { return true; };
    range = {0, UINT64_MAX, 0};
    EXPECT_EQ(ffs_trim(fs, &range, enough, nullptr, &trimmed), 0);
    EXPECT_EQ(trimmed, 0u);
    opts.read_only = true;
    remount();
    EXPECT_EQ(ffs_trim(fs, &range, nullptr, nullptr, &trimmed), -EROFS);
}

TEST_F(FsDiscard, FilesAreWrittenDuringATrim)
{
    std::atomic<bool> done{false};
    std::thread trimmer([&] {
        ffs_trim_range range = {0, UINT64_MAX, 0};
        uint64_t trimmed;
        while (!done)
            EXPECT_EQ(ffs_trim(fs, &range, nullptr, nullptr, &trimmed), 0);
    });
    ffs_set_discard(fs, true);
    for (int i = 0; i < 200; i++) {
        std::string name = std::to_string(i % 20), data = pattern(i, 700000);
        Inode f = i < 20 ? create(name) : lookup(name);
        ASSERT_EQ(read_all(f), i < 20 ? "" : pattern(i - 20, 700000)) << i;
        ASSERT_EQ(truncate(f, 0), 0);
        ASSERT_EQ(write(f, 0, data), 700000) << i;
    }
    done = true;
    trimmer.join();
}

} // namespace
