/* SPDX-License-Identifier: BSD-2-Clause */
// A power cut while mkfs writes: a device on which nothing can be mounted, or a whole file system.
#include "tests/fusefs/core/storage_fixture.h"

namespace
{

constexpr enum crash_fate FATES[] = {CRASH_DROP, CRASH_KEEP, CRASH_RANDOM, CRASH_RANDOM};

class MkfsCrash : public StorageTest
{
  protected:
    // With a sound label in block 0, everything is in place.
    static bool sound_as_it_is(CrashDevice *d)
    {
        const auto *label = reinterpret_cast<const lay_label *>(d->peek());
        return lay_check_label(label, nullptr, nullptr) != 0 || image_check(d->dev()) == 0;
    }
    // What is wrong after each cut of a format over what the device holds now, or "".
    std::string cut_everywhere(bool empty)
    {
        dev->record();
        EXPECT_EQ(storage_format(dev.get(), 256), 0);
        size_t all = dev->ops();
        for (size_t ops = 0; ops <= all; ops++) {
            for (uint64_t seed = 0; seed < 6; seed++) {
                Device cut = dev->cut(ops, FATES[seed % 4], seed);
                bool sound = !empty || sound_as_it_is(cut.get());
                int err = mount(cut.get());
                sound = (err || (unmount() == 0 && image_check(cut->dev()) == 0)) && sound;
                if (!sound || (err && ops == all))
                    return "after " + std::to_string(ops) + " of " + std::to_string(all) +
                           " seed " + std::to_string(seed) + ": " + why;
            }
        }
        return "";
    }
};

TEST_F(MkfsCrash, OnAnEmptyDeviceLeavesNothingOrAllOfIt)
{
    dev = std::make_unique<CrashDevice>(32u << 20, 512);
    EXPECT_EQ(cut_everywhere(true), "");
}

// With the same UUID and the same places: nothing but the order of writes tells old from new.
TEST_F(MkfsCrash, OverAnOldFileSystemLeavesOneOfThem)
{
    make(32u << 20, 256);
    ASSERT_EQ(mount(), 0) << why;
    ffs_inode *inode;
    for (int i = 0; i < 50; i++) {
        ASSERT_EQ(new_inode(&inode), 0);
        ASSERT_EQ(handle([&](ffs_tx *tx) {
                      int e = ffs_inode_dirty(tx, inode);
                      inode->d.nlink = lay_put32(0);
                      return e ? e : ffs_orphan_add(tx, inode);
                  }),
                  0);
        ffs_iput(inode, 1);
    }
    ASSERT_EQ(unmount(), 0);
    EXPECT_EQ(cut_everywhere(false), "");
}

TEST_F(MkfsCrash, IsNoticedByThisTestWhenFlushesDoNothing)
{
    dev = std::make_unique<CrashDevice>(32u << 20, 512);
    dev->ignore_flush(true);
    EXPECT_NE(cut_everywhere(true), "");
}

} // namespace
