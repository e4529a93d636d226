/* SPDX-License-Identifier: BSD-2-Clause */
// What a nearly full file system costs: bitmaps are read without excluding others, and no memory
// stays behind.
#include <fcntl.h>
#include <linux/falloc.h>

#include <algorithm>

#include "tests/fusefs/core/space_probe.h"
#include "tests/fusefs/core/storage_fixture.h"

namespace
{

class Space : public StorageTest
{
  protected:
    static constexpr uint64_t kGroups = 521; // in sections of three

    void SetUp() override
    {
        make(64ull << 30, 1024);
        ASSERT_EQ(mount_watched(), 0) << why;
    }
    // Counts bitmaps that are read while the file system's lock is held exclusively, and others.
    int mount_watched()
    {
        inside = outside = 0;
        dev->before_submit = [this](const bd_io *ios, size_t n) {
            for (size_t i = 0; i < n && fs; i++)
                watch(ios[i]);
            return 0;
        };
        return mount();
    }
    void remount_watched()
    {
        ASSERT_EQ(unmount(), 0);
        ASSERT_EQ(mount_watched(), 0) << why;
    }
    // A file of all free blocks but `left`.
    Inode fill(uint64_t left)
    {
        fill_low_blocks();
        return new_large("large", free_blocks() - left);
    }
    Inode new_large(const char *name, uint64_t blocks)
    {
        Inode large;
        EXPECT_EQ(new_file(name, large.out()), 0);
        EXPECT_EQ(ffs_fallocate(large, 0, 0, blocks << LAY_BLOCK_SHIFT), 0);
        return large;
    }
    static int remove_data(ffs_inode *file)
    {
        const struct ffs_attr none = {};
        return ffs_setattr(file, &none, FFS_SET_SIZE, nullptr);
    }
    int write_file(const char *name)
    {
        Inode file;
        int err = new_file(name, file.out());
        return err ? err : static_cast<int>(std::min<ssize_t>(ffs_write(file, 0, "x", 1), 0));
    }
    void set_hints(uint8_t hint)
    {
        const lay_geometry geo = geometry_of(dev.get());
        memset(super_of(dev.get())->section_free, hint, LAY_BITMAP_SECTIONS);
        image_seal_super(dev->bytes(), &geo);
    }
    uint64_t inside = 0, outside = 0; // bitmaps, but for single ones

  private:
    void watch(const bd_io &io)
    {
        const lay_geometry *geo = ffs_geometry(fs);
        uint64_t block = io.offset >> LAY_BLOCK_SHIFT;
        bool bitmaps = block >= geo->bitmap_start &&
                       block < geo->bitmap_start + geo->bitmap_blocks && io.op == BD_READ;
        if (bitmaps && io.len != LAY_BLOCK_SIZE)
            (space_is_unlocked(fs) ? outside : inside) += io.len >> LAY_BLOCK_SHIFT;
    }
};

TEST_F(Space, TheFirstWriteReadsBitmapsOutsideOfTheLock)
{
    fill(2000);
    remount_watched();
    ASSERT_EQ(write_file("a"), 0);
    EXPECT_EQ(inside, 0u);
    EXPECT_GT(outside, 0u);
    EXPECT_LE(outside, 3u) << "one section";
}

// FORMAT.md 5.2 defines the hints.
TEST_F(Space, SectionsWithoutHintsAreReadOnceOutsideOfTheLock)
{
    fill(2000);
    ASSERT_EQ(unmount(), 0);
    for (uint8_t hint : {0, 1, 39}) {
        set_hints(hint); // 0: as an older program leaves it; errors: all are full, all are free
        ASSERT_EQ(mount_watched(), 0) << why;
        // Names fit in the blocks there are; data does not.
        ASSERT_EQ(write_file(("a" + std::to_string(hint)).c_str()), 0);
        EXPECT_LE(inside, 3u) << "no more than one section";
        EXPECT_TRUE(hint == 39 || outside > 400) << outside;
        remount_watched();
        ASSERT_EQ(write_file(("b" + std::to_string(hint)).c_str()), 0);
        EXPECT_TRUE(hint == 39 || outside <= 3) << outside;
        ASSERT_EQ(unmount(), 0);
    }
    expect_sound();
}

TEST_F(Space, AnAbortedHandleChangesNoHint)
{
    fill(50000);
    remount_watched();
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(handle([&](ffs_tx *tx) {
                      uint64_t block, len;
                      int err = ffs_alloc(tx, 0, 1, 20000, 1, &block, &len);
                      return err ? err : -EINTR;
                  }),
                  -EINTR);
    }
    const uint64_t before = free_blocks();
    ASSERT_EQ(write_file("b"), 0);
    remount_watched();
    EXPECT_EQ(free_blocks() + 1, before);
    // Expects that the hint of each section agrees with its bitmaps.
    ASSERT_EQ(unmount(), 0);
    const uint8_t *bytes = dev->bytes();
    const lay_super *sb = super_of(dev.get());
    const lay_geometry geo = geometry_of(dev.get());
    for (uint64_t s = 0; s < LAY_BITMAP_SECTIONS; s++) {
        uint64_t free_bits = 0;
        for (uint64_t g = 3 * s; g < 3 * s + 3 && g < geo.bitmap_blocks; g++) {
            lay_bitmap bm;
            memcpy(&bm, bytes + (geo.bitmap_start + g) * LAY_BLOCK_SIZE, sizeof(bm));
            if (lay_get32(bm.head.magic) == 0) { // it was never written
                ASSERT_TRUE(lay_new_block(&geo, LAY_ADDR(LAY_KIND_BITMAP, g), &bm));
            }
            free_bits += lay_get32(bm.free);
        }
        uint8_t hint = sb->section_free[s];
        if (hint > 1)
            EXPECT_TRUE(free_bits >> (hint - 2) == 1) << s;
        else
            EXPECT_EQ(hint == 1 ? free_bits : 0, 0u) << s;
    }
}

TEST_F(Space, AnAlignedUnitIsSearchedOutsideOfTheLock)
{
    Inode large = fill(3 * LAY_GPU_ALIGN), file;
    struct ffs_attr before, bound = {};
    ffs_getattr(large, &before);
    // Each unit has a free block, and none is free but those at the end.
    for (uint64_t at = 0; at < before.size; at += LAY_GPU_ALIGN << (LAY_BLOCK_SHIFT + 2))
        ASSERT_EQ(ffs_fallocate(large, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, 4096), 0);
    large.reset();
    remount_watched();
    ASSERT_EQ(new_file("bound", file.out()), 0);
    bound.flags = LAY_INODE_GPU_BOUND;
    ASSERT_EQ(ffs_setattr(file, &bound, FFS_SET_FLAGS, nullptr), 0);
    ASSERT_EQ(ffs_fallocate(file, 0, 0, 2 << 20), 0);
    int units = 1;
    while (ffs_fallocate(file, 0, units << 21, 2 << 20) == 0)
        units++;
    EXPECT_LE(units, 5) << "what is left, and the reserve";
    EXPECT_LE(inside, 3u * 2) << "a section of each handle that fails";
    EXPECT_GT(outside, 400u);
    // All sections are known now: that there is no unit is found without reading.
    uint64_t read = outside + inside;
    EXPECT_EQ(ffs_fallocate(file, 0, 16 << 20, 2 << 20), -ENOSPC);
    EXPECT_EQ(outside + inside, read);
}

TEST_F(Space, AFileOfAllSectionsIsFreedOutsideOfTheLock)
{
    const uint64_t ino = ffs_ino(fill(2000));
    remount_watched();
    Inode large;
    ASSERT_EQ(ffs_iget(fs, ino, large.out()), 0);
    ASSERT_EQ(remove_data(large), 0);
    large.reset();
    EXPECT_EQ(inside, 0u);
    EXPECT_GT(outside, kGroups - 6);
    expect_sound();
}

// mkfs leaves the bitmaps of free groups zero; those of groups in use are written when they change.
TEST_F(Space, BitmapsOfZerosRepresentFreeGroups)
{
    const auto *bitmaps =
        reinterpret_cast<const lay_bitmap *>(dev->bytes()) + geometry_of(dev.get()).bitmap_start;
    uint64_t before = free_blocks();
    new_large("f", 5 * LAY_GROUP_BLOCKS);
    ASSERT_EQ(unmount(), 0);
    unsigned zeros = 0;
    for (uint64_t g = 0; g < kGroups; g++)
        zeros += lay_get32(bitmaps[g].head.magic) == 0;
    EXPECT_GE(zeros, kGroups - 10);
    EXPECT_LE(zeros, kGroups - 5);
    expect_sound();
    ASSERT_EQ(mount_watched(), 0) << why;
    EXPECT_LE(free_blocks() + 5 * LAY_GROUP_BLOCKS, before);
}

TEST_F(Space, ZerosInPlaceOfAWrittenBitmapAreDetected)
{
    auto *bitmaps =
        reinterpret_cast<lay_bitmap *>(dev->bytes()) + geometry_of(dev.get()).bitmap_start;
    const uint64_t ino = ffs_ino(new_large("f", 5 * LAY_GROUP_BLOCKS));
    ASSERT_EQ(unmount(), 0);
    ASSERT_EQ(lay_get32(bitmaps[1].free), 0u);
    memset(&bitmaps[1], 0, sizeof(bitmaps[1]));
    EXPECT_GT(image_check(dev->dev()), 0);
    ASSERT_EQ(mount_watched(), 0) << why;
    Inode file;
    ASSERT_EQ(ffs_iget(fs, ino, file.out()), 0);
    EXPECT_EQ(remove_data(file), -EUCLEAN);
}

TEST_F(Space, GroupsHaveMapsOnlyWhileBlocksAreBusy)
{
    Inode large = fill(2000);
    EXPECT_EQ(space_maps(fs), 0u) << "taken blocks need none";
    ASSERT_EQ(remove_data(large), 0);
    EXPECT_GT(space_maps(fs), 0u);
    ASSERT_EQ(commit_freed(), 0);
    EXPECT_EQ(space_maps(fs), 0u);

    // An undone handle leaves none either, nor does a pin that has ended.
    uint64_t block, len;
    ASSERT_EQ(handle([&](ffs_tx *tx) { return ffs_alloc(tx, 0, 8, 8, 1, &block, &len); }), 0);
    EXPECT_EQ(handle([&](ffs_tx *tx) { return ffs_free(tx, block, len) ? 0 : -EINTR; }), -EINTR);
    EXPECT_EQ(space_maps(fs), 0u);
    ffs_segment all = {0, len << LAY_BLOCK_SHIFT, block << LAY_BLOCK_SHIFT, false};
    ffs_pin *pin;
    ASSERT_EQ(ffs_pin_add(fs, &all, 1, &pin), 0);
    ASSERT_EQ(handle([&](ffs_tx *tx) { return ffs_free(tx, block, len); }), 0);
    ASSERT_EQ(commit_freed(), 0);
    EXPECT_EQ(space_maps(fs), 1u);
    ffs_pin_drop(fs, pin);
    EXPECT_EQ(space_maps(fs), 0u);
}

TEST_F(Space, ATrimLeavesNoMaps)
{
    ffs_trim_range whole = {0, UINT64_MAX, 0};
    uint64_t trimmed;
    ASSERT_EQ(ffs_trim(fs, &whole, nullptr, nullptr, &trimmed), 0);
    EXPECT_GT(trimmed, 60ull << 30);
    EXPECT_EQ(space_maps(fs), 0u);
    EXPECT_EQ(inside, 0u);
}

} // namespace
