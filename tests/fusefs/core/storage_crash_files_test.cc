/* SPDX-License-Identifier: BSD-2-Clause */
// Cuts the power after an append, or while a file without a name is open.
// storage_campaign_test.cc cuts it in random work.
#include "tests/fusefs/core/storage_fixture.h"

namespace
{

class CrashFiles : public StorageTest
{
  protected:
    void SetUp() override
    {
        opts.cache_bytes = 1;
        make(24u << 20, 256);
        opts.discard = true; // blocks freed too early are lost
        ASSERT_EQ(mount(), 0) << why;
        dev->record();
    }
    // Runs body with a file, made if need be; whatever happens to it is the caller's business.
    void with(const std::string &name, const std::function<void(ffs_inode *)> &body)
    {
        Inode file = lookup(name);
        if (file || new_file(name.c_str(), file.out()) == 0)
            body(file);
    }
    std::string content(const std::string &name)
    {
        std::string data;
        with(name, [&](ffs_inode *i) {
            struct ffs_attr attr;
            ffs_getattr(i, &attr);
            data.resize(attr.size);
            EXPECT_EQ(ffs_read(i, 0, &data[0], attr.size), static_cast<ssize_t>(attr.size));
        });
        return data;
    }
};

using Grow = std::function<int(ffs_inode *)>;

// Describes a call that makes a file of 100 bytes grow after an append of `lost` bytes was lost.
struct Growth {
    const char *name;
    size_t lost, size; // the second one is that of the file afterwards
    const char *end;   // what was written at its end
    Grow grow;
};

int write_at(ffs_inode *i, uint64_t offset)
{
    return ffs_write(i, offset, "n", 1) == 1 ? 0 : -EIO;
}

int map_at(ffs_inode *i, uint64_t offset)
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

int truncate_to(ffs_inode *i, uint64_t size)
{
    struct ffs_attr attr = {};
    attr.size = size;
    return ffs_setattr(i, &attr, FFS_SET_SIZE, nullptr);
}

const Growth GROWTHS[] = {
    {"Truncation", 3000, 3500, "", [](ffs_inode *i) { return truncate_to(i, 3500); }},
    {"Allocation", 3000, 6000, "", [](ffs_inode *i) { return ffs_fallocate(i, 0, 5000, 1000); }},
    {"WriteToALaterBlock", 3000, 9001, "n", [](ffs_inode *i) { return write_at(i, 9000); }},
    {"WriteToTheSameBlock", 3000, 2501, "n", [](ffs_inode *i) { return write_at(i, 2500); }},
    {"MappedWrite", 3000, 9001, "n", [](ffs_inode *i) { return map_at(i, 9000); }},
    {"MappedWriteToTheSameBlock", 3000, 2501, "n", [](ffs_inode *i) { return map_at(i, 2500); }},
    {"WriteAfterManyBlocks", 50000, 90001, "n", [](ffs_inode *i) { return write_at(i, 90000); }},
};

// An append writes past the end before the size says so. When a crash comes in between, these bytes
// were never part of the file, and must not become it.
class LostAppend : public CrashFiles, public ::testing::WithParamInterface<std::tuple<bool, Growth>>
{
};

TEST_P(LostAppend, IsNotSeen)
{
    const auto &[gpu_bound, growth] = GetParam();
    const std::string kept(100, 'k'), end = growth.end;
    with("f", [&, bound = gpu_bound, lost = growth.lost](ffs_inode *i) {
        struct ffs_attr attr = {};
        attr.flags = bound ? LAY_INODE_GPU_BOUND : 0;
        EXPECT_EQ(ffs_setattr(i, &attr, FFS_SET_FLAGS, nullptr), 0);
        EXPECT_EQ(ffs_write(i, 0, kept.data(), kept.size()), 100);
        EXPECT_EQ(ffs_fsync(i, false), 0);
        EXPECT_EQ(ffs_write(i, 100, std::string(lost, 'L').data(), lost),
                  static_cast<ssize_t>(lost));
    });
    Device cut = dev->cut(dev->ops(), CRASH_KEEP, 0);
    EXPECT_EQ(unmount(), 0);
    ASSERT_EQ(mount(cut.get()), 0) << why;
    EXPECT_EQ(content("f"), kept) << "the append is lost";
    with("f", [&grow = growth.grow](ffs_inode *i) { EXPECT_EQ(grow(i), 0); });
    EXPECT_EQ(content("f"), kept + std::string(growth.size - 100 - end.size(), 0) + end);
    EXPECT_EQ(unmount(), 0);
    EXPECT_EQ(image_check(cut->dev()), 0);
}

INSTANTIATE_TEST_SUITE_P(After, LostAppend,
                         ::testing::Combine(::testing::Bool(), ::testing::ValuesIn(GROWTHS)),
                         [](const auto &info) {
                             return std::string(std::get<1>(info.param).name) +
                                    (std::get<0>(info.param) ? "GpuBound" : "");
                         });

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
        EXPECT_EQ(content("f"), all);
        EXPECT_EQ(unmount(), 0);
        fs = whole;
        ASSERT_EQ(ffs_sync(fs), 0);
    }
}

TEST_F(CrashFiles, UnlinkedButOpenIsFreedByTheNextMount)
{
    uint64_t before = free_blocks();
    std::string data(500000, 'o');
    with("open", [&](ffs_inode *inode) {
        ffs_write(inode, 0, data.data(), data.size());
        ASSERT_EQ(remove_file("open"), 0);
        ASSERT_EQ(ffs_sync(fs), 0);
        Device cut = dev->cut(dev->ops(), CRASH_DROP, 0);
        struct ffs *whole = fs;
        ASSERT_EQ(mount(cut.get()), 0) << why;
        EXPECT_EQ(free_blocks(), before);
        EXPECT_EQ(unmount(), 0);
        EXPECT_EQ(image_check(cut->dev()), 0);
        fs = whole;
    });
}

} // namespace
