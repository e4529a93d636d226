/* SPDX-License-Identifier: BSD-2-Clause */
// A power cut in the middle of ordinary work on files: fsck finds nothing wrong after the replay,
// and synced data is there, byte for byte.
#include <random>

#include "tests/fusefs/core/storage_fixture.h"
#include "tests/rounds.h"

namespace
{

constexpr enum crash_fate FATES[] = {CRASH_DROP, CRASH_KEEP, CRASH_RANDOM, CRASH_RANDOM};

class CrashFiles : public StorageTest
{
  protected:
    struct Kept {
        size_t ops;
        std::string name;
        char fill;
        size_t len;
    };

    void SetUp() override
    {
        opts.cache_bytes = 1;
        make(24u << 20, 256);
        opts.discard = true; // blocks freed too early are lost
        ASSERT_EQ(mount(), 0) << why;
        dev->record();
    }
    ffs_inode *root()
    {
        ffs_inode *inode;
        EXPECT_EQ(ffs_iget(fs, LAY_INO_ROOT, &inode), 0);
        return inode;
    }
    // Runs body with a file, made if need be; whatever happens to it is the caller's business.
    void with(const std::string &name, const std::function<void(ffs_inode *)> &body)
    {
        ffs_inode *dir = root(), *inode;
        ffs_cred cred = {0, 0, 0};
        int err = ffs_lookup(dir, name.c_str(), &inode);
        if (err)
            err = ffs_mknod(dir, name.c_str(), S_IFREG | 0644, 0, &cred, &inode);
        if (!err) {
            body(inode);
            ffs_iput(inode, 1);
        }
        ffs_iput(dir, 1);
    }
    // A file that is synced and then left alone.
    void keep(unsigned i, size_t len)
    {
        std::string name = "keep" + std::to_string(i);
        char fill = static_cast<char>('a' + i % 26);
        with(name, [&](ffs_inode *inode) {
            std::string data(len, fill);
            ASSERT_EQ(ffs_write(inode, 0, data.data(), len), static_cast<ssize_t>(len));
            ASSERT_EQ(ffs_fsync(inode, i % 2), 0);
        });
        kept.push_back({dev->ops(), name, fill, len});
    }
    // One random change of names and data that nothing is asked of but to leave no damage.
    void churn(std::mt19937 &random)
    {
        std::string name = "churn" + std::to_string(random() % 12);
        std::string other = "churn" + std::to_string(random() % 12);
        ffs_inode *dir = root();
        std::string data(random() % 60000, 'x');
        switch (random() % 6) {
        case 0:
            ffs_unlink(dir, name.c_str());
            break;
        case 1:
            ffs_rename(dir, name.c_str(), dir, other.c_str(), 0);
            break;
        case 2:
            with(name, [&](ffs_inode *i) { ffs_fallocate(i, 0, 0, random() % 300000); });
            break;
        case 3:
            with(name, [&](ffs_inode *i) {
                struct ffs_attr attr = {};
                attr.size = random() % 100000;
                ffs_setattr(i, &attr, FFS_SET_SIZE, &attr);
            });
            break;
        default:
            with(name,
                 [&](ffs_inode *i) { ffs_write(i, random() % 200000, data.data(), data.size()); });
        }
        ffs_iput(dir, 1);
    }
    void work(unsigned rounds)
    {
        std::mt19937 random(rounds);
        for (unsigned i = 0; i < rounds; i++) {
            keep(i, 1 + random() % 30000);
            for (int k = 0; k < 6; k++)
                churn(random);
            ASSERT_EQ(i % 4 ? 0 : ffs_sync(fs), 0);
            ASSERT_EQ(i % 5 ? 0 : ffs_checkpoint_now(fs), 0);
        }
    }
    bool as_kept(const Kept &k)
    {
        std::string data(k.len + 1, 0);
        ffs_inode *dir = root(), *inode;
        bool same = ffs_lookup(dir, k.name.c_str(), &inode) == 0;
        ffs_iput(dir, 1);
        if (!same)
            return false;
        ssize_t n = ffs_read(inode, 0, &data[0], data.size());
        ffs_iput(inode, 1);
        return n == static_cast<ssize_t>(k.len) &&
               data.compare(0, k.len, std::string(k.len, k.fill)) == 0;
    }
    std::string check(size_t ops, uint64_t seed)
    {
        Device cut = dev->cut(ops, FATES[seed % 4], seed);
        lose_log(cut.get(), seed / 4 % 3, seed / 12);
        std::string wrong;
        if (image_check(cut->dev()) != 0 && FATES[seed % 4] != CRASH_RANDOM)
            return "fsck before the replay";
        if (mount(cut.get()))
            return "mount: " + why;
        for (const Kept &k : kept) {
            if (k.ops <= ops && !as_kept(k))
                wrong = k.name + " was synced, and is lost";
        }
        if (unmount())
            wrong = "unmount";
        if (wrong.empty() && image_check(cut->dev()) != 0)
            wrong = "fsck";
        return wrong;
    }

    std::vector<Kept> kept;
};

TEST_F(CrashFiles, KeepsSyncedDataAndDamagesNothing)
{
    work(static_cast<unsigned>(test_rounds(12, 40)));
    ASSERT_EQ(unmount(), 0);
    size_t all = dev->ops();
    for (size_t ops = 0; ops <= all; ops++) {
        uint64_t seed = ops * 7;
        ASSERT_EQ(check(ops, seed), "") << "after " << ops << " of " << all << ", seed " << seed;
    }
}

TEST_F(CrashFiles, IsNoticedByThisTestWhenFlushesDoNothing)
{
    dev->ignore_flush(true);
    work(6);
    ASSERT_EQ(unmount(), 0);
    unsigned wrong = 0;
    for (size_t ops = 0; ops <= dev->ops() && !wrong; ops += 5)
        wrong += !check(ops, ops).empty();
    EXPECT_GT(wrong, 0u);
}

// An append writes past the end before the size says so. When a crash comes in between, these bytes
// were never part of the file, and must not become it.
class LostAppend : public CrashFiles, public ::testing::WithParamInterface<bool>
{
  protected:
    using Grow = std::function<int(ffs_inode *)>;

    // What the file holds after a lost append of `lost` bytes and whatever makes it grow.
    std::string after(size_t lost, const Grow &grow)
    {
        std::string kept(100, 'k'), got;
        with("f", [&](ffs_inode *i) {
            struct ffs_attr attr = {};
            attr.flags = GetParam() ? LAY_INODE_GPU_BOUND : 0;
            EXPECT_EQ(ffs_setattr(i, &attr, FFS_SET_FLAGS, nullptr), 0);
            EXPECT_EQ(ffs_write(i, 0, kept.data(), kept.size()), 100);
            EXPECT_EQ(ffs_fsync(i, false), 0);
            std::string data(lost, 'L');
            EXPECT_EQ(ffs_write(i, 100, data.data(), lost), static_cast<ssize_t>(lost));
        });
        Device cut = dev->cut(dev->ops(), CRASH_KEEP, 0);
        EXPECT_EQ(unmount(), 0);
        EXPECT_EQ(mount(cut.get()), 0) << why;
        with("f", [&](ffs_inode *i) {
            struct ffs_attr attr;
            ffs_getattr(i, &attr);
            EXPECT_EQ(attr.size, 100u) << "the append is lost";
            EXPECT_EQ(grow(i), 0);
            ffs_getattr(i, &attr);
            got.resize(attr.size);
            EXPECT_EQ(ffs_read(i, 0, &got[0], got.size()), static_cast<ssize_t>(got.size()));
        });
        EXPECT_EQ(unmount(), 0);
        EXPECT_EQ(image_check(cut->dev()), 0);
        return got;
    }
    static int write_at(ffs_inode *i, uint64_t offset)
    {
        return ffs_write(i, offset, "n", 1) == 1 ? 0 : -EIO;
    }
    static int map_at(ffs_inode *i, uint64_t offset)
    {
        struct ffs_map map;
        std::string data(4096, 0);
        int err = ffs_map_write(i, offset, 1, &map);
        if (err)
            return err;
        err = bd_read(ffs_dev(i->fs), map.segments[0].device, &data[0], 4096);
        data[offset % 4096] = 'n';
        if (!err)
            err = bd_write(ffs_dev(i->fs), map.segments[0].device, &data[0], 4096, 0);
        int end = ffs_map_write_end(&map, 1, nullptr);
        return err ? err : end;
    }
    // The bytes kept, zeros, and `last` at the end.
    static std::string expected(size_t size, const std::string &last)
    {
        return std::string(100, 'k') + std::string(size - 100 - last.size(), 0) + last;
    }
};

TEST_P(LostAppend, IsNotSeenAfterTruncate)
{
    auto grow = [](ffs_inode *i) {
        struct ffs_attr attr = {};
        attr.size = 3500;
        return ffs_setattr(i, &attr, FFS_SET_SIZE, nullptr);
    };
    EXPECT_EQ(after(3000, grow), expected(3500, ""));
}

TEST_P(LostAppend, IsNotSeenAfterAWriteToALaterBlock)
{
    EXPECT_EQ(after(3000, [](ffs_inode *i) { return write_at(i, 9000); }), expected(9001, "n"));
}

TEST_P(LostAppend, IsNotSeenAfterAWriteToTheSameBlock)
{
    EXPECT_EQ(after(3000, [](ffs_inode *i) { return write_at(i, 2500); }), expected(2501, "n"));
}

TEST_P(LostAppend, IsNotSeenAfterFallocate)
{
    auto grow = [](ffs_inode *i) { return ffs_fallocate(i, 0, 5000, 1000); };
    EXPECT_EQ(after(3000, grow), expected(6000, ""));
}

TEST_P(LostAppend, IsNotSeenAfterAMappedWrite)
{
    EXPECT_EQ(after(3000, [](ffs_inode *i) { return map_at(i, 9000); }), expected(9001, "n"));
}

TEST_P(LostAppend, IsNotSeenAfterAMappedWriteToTheSameBlock)
{
    EXPECT_EQ(after(3000, [](ffs_inode *i) { return map_at(i, 2500); }), expected(2501, "n"));
}

TEST_P(LostAppend, OfManyBlocksIsNotSeen)
{
    EXPECT_EQ(after(50000, [](ffs_inode *i) { return write_at(i, 90000); }), expected(90001, "n"));
}

INSTANTIATE_TEST_SUITE_P(GpuBound, LostAppend, ::testing::Bool());

// Of an append to a file that has been synced before, the new size is all that fdatasync has to
// commit; the second append needs no new block either.
TEST_F(CrashFiles, FdatasyncKeepsTheNewSize)
{
    std::string all;
    for (size_t len : {100, 50, 9000}) {
        with("f", [&](ffs_inode *inode) {
            std::string more(len, 'm');
            ASSERT_EQ(ffs_write(inode, all.size(), more.data(), len), static_cast<ssize_t>(len));
            all += more;
            ASSERT_EQ(ffs_fsync(inode, true), 0);
        });
        Device cut = dev->cut(dev->ops(), CRASH_DROP, 0);
        struct ffs *whole = fs;
        ASSERT_EQ(mount(cut.get()), 0) << why;
        EXPECT_TRUE(as_kept({0, "f", 'm', all.size()})) << all.size();
        EXPECT_EQ(unmount(), 0);
        fs = whole;
        ASSERT_EQ(ffs_sync(fs), 0);
    }
}

TEST_F(CrashFiles, UnlinkedButOpenIsFreedByTheNextMount)
{
    ffs_inode *dir = root();
    uint64_t before = free_blocks();
    std::string data(500000, 'o');
    with("open", [&](ffs_inode *inode) {
        ffs_write(inode, 0, data.data(), data.size());
        ASSERT_EQ(ffs_unlink(dir, "open"), 0);
        ASSERT_EQ(ffs_sync(fs), 0);
        Device cut = dev->cut(dev->ops(), CRASH_DROP, 0);
        struct ffs *whole = fs;
        ASSERT_EQ(mount(cut.get()), 0) << why;
        EXPECT_EQ(free_blocks(), before);
        EXPECT_EQ(unmount(), 0);
        EXPECT_EQ(image_check(cut->dev()), 0);
        fs = whole;
    });
    ffs_iput(dir, 1);
}

} // namespace
