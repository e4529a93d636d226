/* SPDX-License-Identifier: BSD-2-Clause */
// A file system that becomes larger, and a power cut in the middle of it.
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "mkfs/mkfs_core.h"
#include "mkfs/resize.h"
#include "tests/fusefs/core/storage_fixture.h"

namespace
{

constexpr enum crash_fate FATES[] = {CRASH_DROP, CRASH_KEEP, CRASH_RANDOM, CRASH_RANDOM};
constexpr uint64_t OLD = 6000, NEW = 40000; // blocks: one group, and two
constexpr size_t LEN = 300000;

class Resize : public StorageTest
{
  protected:
    const bool data_csum = getenv("DATA_CSUM") != nullptr;

    void SetUp() override
    {
        mkfs_params params = {};
        struct mkfs_plan plan = {};
        memcpy(params.uuid, "storage-test-fs!", 16);
        params.bytes = OLD << LAY_BLOCK_SHIFT;
        params.time_sec = 1700000000;
        params.data_csum = data_csum;
        dev.reset(crash_dev_new(NEW << LAY_BLOCK_SHIFT, 512));
        ASSERT_EQ(mkfs_format(crash_dev_bd(dev.get()), &params, &plan), 0);
        ASSERT_EQ(mount(), 0) << why;
        add_file("old");
        ASSERT_EQ(unmount(), 0);
    }
    void add_file(const std::string &name)
    {
        ffs_inode *file;
        ASSERT_EQ(new_file(name.c_str(), &file), 0);
        EXPECT_EQ(ffs_write(file, 0, std::string(LEN, name[0]).data(), LEN),
                  static_cast<ssize_t>(LEN));
        ffs_iput(file, 1);
    }
    std::string read_file(const std::string &name)
    {
        ffs_inode *root, *file;
        std::string data(LEN, 0);
        EXPECT_EQ(ffs_iget(fs, LAY_INO_ROOT, &root), 0);
        int err = ffs_lookup(root, name.c_str(), &file);
        ffs_iput(root, 1);
        if (err)
            return "";
        EXPECT_EQ(ffs_read(file, 0, data.data(), LEN), static_cast<ssize_t>(LEN));
        ffs_iput(file, 1);
        return data;
    }
    uint64_t blocks()
    {
        struct ffs_statfs s;
        ffs_statfs(fs, &s);
        return s.blocks;
    }
    int grow(uint64_t to)
    {
        return resize_grow(crash_dev_bd(dev.get()), to);
    }
    // The fault of a device after a cut, or "".
    std::string check(crash_dev *d)
    {
        std::string wrong;
        if (mount(d))
            return "mount: " + why;
        if (blocks() != OLD && blocks() != NEW)
            wrong = "neither size";
        if (read_file("old") != std::string(LEN, 'o'))
            wrong = "data";
        add_file("new"); // the bitmaps can be used
        if (unmount())
            wrong = "unmount";
        if (wrong.empty() && image_check(crash_dev_bd(d)) != 0)
            wrong = "fsck";
        return wrong;
    }
};

TEST_F(Resize, GivesTheNewSpaceAndKeepsTheFiles)
{
    ASSERT_EQ(mount(), 0);
    uint64_t before = free_blocks();
    ASSERT_EQ(unmount(), 0);
    ASSERT_EQ(grow(NEW), 0);
    EXPECT_EQ(image_check(crash_dev_bd(dev.get())), 0);
    ASSERT_EQ(mount(), 0) << why;
    EXPECT_EQ(blocks(), NEW);
    // One group more: a bitmap more, and checksums. The reserve grows with the size.
    EXPECT_GT(free_blocks() + 200, before + (NEW - OLD) - (NEW - OLD) / 1000 - 1);
    EXPECT_EQ(read_file("old"), std::string(LEN, 'o'));
    for (int i = 0; i < 300; i++)
        add_file("more" + std::to_string(i)); // 90 MB
    remount();
    EXPECT_EQ(read_file("more299"), std::string(LEN, 'm'));
    ASSERT_EQ(unmount(), 0);
    EXPECT_EQ(image_check(crash_dev_bd(dev.get())), 0);
}

TEST_F(Resize, CanBeRepeated)
{
    int names = 0;
    for (uint64_t to : {uint64_t{6100}, uint64_t{6100}, uint64_t{32257}, uint64_t{33000}, NEW}) {
        ASSERT_EQ(grow(to), 0) << to;
        ASSERT_EQ(image_check(crash_dev_bd(dev.get())), 0) << to;
        ASSERT_EQ(mount(), 0) << why;
        EXPECT_EQ(blocks(), to);
        EXPECT_EQ(read_file("old"), std::string(LEN, 'o'));
        add_file("to " + std::to_string(to + names++));
        ASSERT_EQ(unmount(), 0);
    }
}

TEST_F(Resize, IsWholeAfterACutAnywhere)
{
    crash_dev_record(dev.get());
    ASSERT_EQ(grow(NEW), 0);
    size_t ops = crash_dev_ops(dev.get());
    EXPECT_GT(ops, 10u);
    for (size_t at = 0; at <= ops; at++) {
        for (uint64_t seed = 0; seed < 4; seed++) {
            Device cut(crash_dev_cut(dev.get(), at, FATES[seed], seed));
            EXPECT_EQ(check(cut.get()), "") << "after " << at << " seed " << seed;
        }
    }
}

TEST_F(Resize, RefusesWhatItCannotDo)
{
    EXPECT_EQ(grow(OLD - 1), -EINVAL);
    EXPECT_EQ(grow(NEW + 1), -ENOSPC);
    EXPECT_EQ(grow(OLD + 1), -ERANGE);
    EXPECT_EQ(grow(resize_least(OLD, data_csum) - 1), -ERANGE);
    EXPECT_EQ(grow(OLD), 0);
    EXPECT_EQ(grow(resize_least(OLD, data_csum)), 0);
    EXPECT_EQ(image_check(crash_dev_bd(dev.get())), 0);
}

} // namespace
