/* SPDX-License-Identifier: BSD-2-Clause */
// A power cut after any write: committed handles are there, every handle is whole.
#include <string.h>

#include <utility>

#include "tests/fusefs/core/space_probe.h"
#include "tests/fusefs/core/storage_fixture.h"
#include "tests/rounds.h"

namespace
{

constexpr unsigned FILES = 12;
constexpr enum crash_fate FATES[] = {CRASH_DROP, CRASH_KEEP, CRASH_RANDOM, CRASH_RANDOM};

// All files get the same uid in one handle, again and again; some rounds are committed.
class Crash : public StorageTest
{
  protected:
    void SetUp() override
    {
        make(16u << 20, 256);
        opts.discard = true; // a block freed too early is lost
        ASSERT_EQ(mount(), 0) << why;
        for (unsigned i = 0; i < FILES; i++) {
            Inode inode;
            ASSERT_EQ(new_file(("file" + std::to_string(i)).c_str(), inode.out()), 0);
            inos.push_back(ffs_ino(inode));
        }
        // Near the end of the log, so that what follows lies across its seam.
        for (uint32_t i = 0; tail_position() < 230; i++) {
            ASSERT_EQ(set_uid(LAY_INO_ROOT, i), 0);
            ASSERT_EQ(commit(), 0);
            ASSERT_EQ(ffs_checkpoint_now(fs), 0);
        }
        dev->record();
        done.push_back({0, 0});
    }

    uint64_t tail_position() { return lay_get64(newest_of(dev.get())->tail_pos); }

    int set_all(uint32_t value)
    {
        std::vector<Inode> inodes(inos.size());
        for (size_t i = 0; i < inos.size(); i++)
            EXPECT_EQ(ffs_iget(fs, inos[i], inodes[i].out()), 0);
        return handle([&](ffs_tx *tx) {
            int e = 0;
            for (const Inode &inode : inodes) {
                e = e ? e : ffs_inode_dirty(tx, inode);
                inode->d.uid = lay_put32(value);
            }
            return e;
        });
    }

    // Rounds of changes; remembers after how many operations each commit had returned.
    void work(uint32_t rounds)
    {
        for (uint32_t round = 1; round <= rounds; round++) {
            ASSERT_EQ(set_all(round), 0);
            if (round % 3 != 0)
                continue;
            ASSERT_EQ(commit(), 0);
            done.push_back({dev->ops(), round});
            ASSERT_EQ(round % 12 == 0 ? ffs_checkpoint_now(fs) : 0, 0);
        }
    }

    uint32_t committed_at(size_t ops) const
    {
        uint32_t value = 0;
        for (const Done &d : done)
            value = d.ops <= ops ? d.value : value;
        return value;
    }

    // The fault of a device after a cut, or "".
    std::string check(CrashDevice *d, size_t ops)
    {
        struct ffs *whole = fs;
        std::string wrong;
        int err = mount(d);
        if (err) {
            fs = whole;
            return "mount: " + why;
        }
        int64_t value = uid(inos[0]);
        for (uint64_t ino : inos)
            wrong = uid(ino) == value ? wrong : "half a handle";
        if (value < committed_at(ops))
            wrong = "lost " + std::to_string(committed_at(ops)) + ", has " + std::to_string(value);
        if (unmount())
            wrong = "unmount";
        fs = whole;
        if (wrong.empty() && image_check(d->dev()) != 0)
            wrong = "fsck";
        return wrong;
    }

    // Cuts everywhere, in every way; the first thing that is wrong, or "".
    std::string cut_everywhere(size_t step = 1)
    {
        for (size_t ops = 0; ops <= dev->ops(); ops += step) {
            for (uint64_t seed = 0; seed < 4; seed++) {
                Device cut = dev->cut(ops, FATES[seed], seed);
                lose_log(cut.get(), (ops + seed) % 3, ops);
                std::string wrong = check(cut.get(), ops);
                if (!wrong.empty())
                    return wrong + " after " + std::to_string(ops) + " seed " +
                           std::to_string(seed);
            }
        }
        return "";
    }

    struct Done {
        size_t ops;
        uint32_t value;
    };
    std::vector<uint64_t> inos;
    std::vector<Done> done;
};

TEST_F(Crash, LeavesCompleteHandlesAndAllCommittedOnes)
{
    work(static_cast<uint32_t>(test_rounds(30, 120)));
    EXPECT_LT(tail_position(), 230u) << "past the seam";
    EXPECT_EQ(cut_everywhere(), "");
}

TEST_F(Crash, DuringUnmountIsHarmless)
{
    work(5);
    ASSERT_EQ(unmount(), 0);
    EXPECT_EQ(cut_everywhere(), "");
}

TEST_F(Crash, IsNoticedByThisTestWhenFlushesDoNothing)
{
    dev->ignore_flush(true);
    work(30);
    EXPECT_NE(cut_everywhere(3), "");
}

TEST_F(Crash, DuringRecoveryIsHarmless)
{
    work(20);
    size_t ops = dev->ops();
    Device cut = dev->cut(ops, CRASH_DROP, 0);
    struct ffs *whole = fs;
    cut->record();
    ASSERT_EQ(mount(cut.get()), 0) << why;
    size_t recovery = cut->ops();
    ASSERT_EQ(unmount(), 0);
    fs = whole;
    ASSERT_GT(recovery, 3u);
    for (size_t at = 0; at <= recovery; at++) {
        for (uint64_t seed = 0; seed < 4; seed++) {
            Device again = cut->cut(at, FATES[seed], seed);
            lose_log(again.get(), (at + seed) % 3, at);
            EXPECT_EQ(check(again.get(), ops), "") << at << " seed " << seed;
        }
    }
}

TEST_F(Crash, RepeatedRecoveryHasTheSameResult)
{
    work(20);
    size_t ops = dev->ops();
    Device cut = dev->cut(ops, CRASH_RANDOM, 7);
    EXPECT_EQ(check(cut.get(), ops), "");
    EXPECT_EQ(check(cut.get(), ops), "");
}

TEST_F(Crash, AReadOnlyMountReplaysInMemoryAndWritesNothing)
{
    work(20);
    size_t ops = dev->ops();
    ASSERT_EQ(unmount(), 0);
    for (bool writable : {false, true}) {
        Device cut = dev->cut(ops, CRASH_DROP, 0);
        cut->dev()->info.read_only = !writable;
        cut->record();
        opts.read_only = false;
        if (!writable) {
            EXPECT_EQ(mount(cut.get()), -EROFS);
        }
        opts.read_only = true;
        ASSERT_EQ(mount(cut.get()), 0) << why;
        EXPECT_EQ(uid(inos[3]), committed_at(ops));
        EXPECT_EQ(set_uid(inos[3], 1), -EROFS);
        EXPECT_EQ(unmount(), 0);
        EXPECT_EQ(cut->ops(), 0u);
    }
}

// However full the log is, two mounts that crash can commit, and the next one can end a checkpoint.
TEST_F(Crash, OfAFullLogLeavesRoomForMounts)
{
    struct ffs *whole = fs;
    for (uint32_t round = 1; round <= 400; round++) {
        ASSERT_EQ(set_all(round), 0);
        ASSERT_EQ(commit(), 0);
        if (round % (2 + round / 40) == 0) { // a shorter one, so that each lap ends elsewhere
            ASSERT_EQ(set_uid(LAY_INO_ROOT, round), 0);
            ASSERT_EQ(commit(), 0);
        }
        done.push_back({dev->ops(), round});
        Device cut = dev->cut(dev->ops(), CRASH_DROP, 0);
        for (int i = 0; i < 2; i++) {
            cut->record();
            ASSERT_EQ(mount(cut.get()), 0) << round << ": " << why;
            // Labels of two places, each a write and a flush; then the commit.
            Device next = cut->cut(5, CRASH_DROP, 0);
            ASSERT_EQ(unmount(), 0);
            cut = std::move(next);
        }
        ASSERT_EQ(check(cut.get(), dev->ops()), "") << round;
        fs = whole;
    }
}

// Each mount commits before it does anything else; that takes the place of the one before (R7e).
TEST_F(Crash, OfMountAfterMountDoesNotFillTheLog)
{
    work(5);
    struct ffs *whole = fs;
    Device cut = dev->cut(dev->ops(), CRASH_DROP, 0);
    for (int i = 0; i < 600; i++) {
        cut->record();
        ASSERT_EQ(mount(cut.get()), 0) << i << ": " << why;
        Device next = cut->cut(cut->ops(), FATES[i % 4], 0);
        ASSERT_EQ(unmount(), 0);
        cut = std::move(next);
    }
    fs = whole;
    EXPECT_EQ(check(cut.get(), dev->ops()), "");
}

// A block of metadata that is freed and taken again at once, while the log has the old image.
class TakenAgain : public Crash
{
  protected:
    static int make_metadata(ffs_tx *tx, uint64_t goal, uint64_t owner, uint64_t *addr)
    {
        ffs_buf *buf;
        int err = ffs_alloc_meta(tx, goal, addr);
        if (!err)
            err = ffs_tx_new(tx, *addr, LAY_MAGIC_XATTR, owner, &buf);
        if (!err)
            ffs_buf_put(buf);
        return err;
    }
    // The owner of the block after a cut and a mount.
    uint64_t owner_after_cut(uint64_t addr)
    {
        Device cut = dev->cut(dev->ops(), CRASH_DROP, 0);
        const uint64_t place = space_segment(fs, lay_addr_segment(addr)) + lay_addr_index(addr);
        EXPECT_EQ(unmount(), 0);
        EXPECT_EQ(mount(cut.get()), 0) << why;
        EXPECT_EQ(unmount(), 0);
        const auto *head = reinterpret_cast<lay_head *>(cut->bytes() + (place << 12));
        EXPECT_EQ(lay_get64(head->block), addr);
        return lay_get64(head->owner);
    }

    // Frees a block of metadata and takes it again.
    void take_again(bool commits)
    {
        ASSERT_EQ(handle([&](ffs_tx *tx) { return make_metadata(tx, 0, 1, &first); }), 0);
        ASSERT_EQ(commits ? commit() : 0, 0);
        ASSERT_EQ(handle([&](ffs_tx *tx) { return ffs_free_meta(tx, first); }), 0);
        ASSERT_EQ(commits ? commit() : 0, 0);
        ASSERT_EQ(handle([&](ffs_tx *tx) { return make_metadata(tx, first, 7, &second); }), 0);
        EXPECT_EQ(first, second) << "no commit is waited for";
        ASSERT_EQ(commit(), 0);
        EXPECT_EQ(owner_after_cut(first), 7u);
    }
    uint64_t first = 0, second = 0;
};

TEST_F(TakenAgain, ByALaterTransactionHasTheLaterImage)
{
    take_again(true);
}

TEST_F(TakenAgain, InTheSameTransactionHasTheLaterImage)
{
    take_again(false);
}

TEST_F(TakenAgain, ByTheSameHandleIsAnotherBlock)
{
    ASSERT_EQ(handle([&](ffs_tx *tx) { return make_metadata(tx, 0, 1, &first); }), 0);
    ASSERT_EQ(handle([&](ffs_tx *tx) {
                  int err = ffs_free_meta(tx, first);
                  return err ? err : make_metadata(tx, first, 7, &second);
              }),
              0);
    EXPECT_NE(first, second);
    ASSERT_EQ(commit(), 0);
    EXPECT_EQ(owner_after_cut(second), 7u);
}

} // namespace
