/* SPDX-License-Identifier: BSD-2-Clause */
// The label and the UUID that users see change while mounted: a power cut at any time leaves a file
// system that mounts, with the old or the new ones.
#include <string.h>

#include "tests/fusefs/core/storage_fixture.h"

namespace
{

constexpr enum crash_fate FATES[] = {CRASH_DROP, CRASH_KEEP, CRASH_RANDOM, CRASH_RANDOM};
constexpr uint8_t NEW_UUID[17] = "another-uuid-now";

class Label : public StorageTest
{
  public:
    void SetUp() override
    {
        make(16u << 20, 256);
        ASSERT_EQ(mount(), 0) << why;
        dev->record();
        ASSERT_EQ(set_uid(LAY_INO_ROOT, 7), 0);
        ASSERT_EQ(commit(), 0);
    }
    struct ffs_statfs state()
    {
        struct ffs_statfs s;
        ffs_statfs(fs, &s);
        return s;
    }
    // The fault of a device after a cut, or "".
    std::string check(CrashDevice *d)
    {
        struct ffs *whole = fs;
        std::string wrong;
        if (image_check(d->dev()) != 0)
            wrong = "fsck before";
        if (mount(d)) {
            fs = whole;
            return "mount: " + why;
        }
        const std::string label = state().label;
        if (label != "" && label != "new")
            wrong = "label";
        if (memcmp(state().uuid, NEW_UUID, 16) == 0 && label != "new")
            wrong = "a later change alone";
        if (unmount())
            wrong = "unmount";
        fs = whole;
        if (image_check(d->dev()) != 0)
            wrong = "fsck after";
        return wrong;
    }
};

TEST_F(Label, EveryCutLeavesAFileSystem)
{
    ASSERT_EQ(ffs_set_label(fs, "new"), 0);
    ASSERT_EQ(ffs_set_uuid(fs, NEW_UUID), 0);
    size_t ops = dev->ops();
    EXPECT_GT(ops, 8u);
    for (size_t at = 0; at <= ops; at++) {
        for (uint64_t seed = 0; seed < 4; seed++) {
            Device cut = dev->cut(at, FATES[seed], seed);
            ASSERT_EQ(check(cut.get()), "") << "after " << at << " seed " << seed;
        }
    }
}

TEST_F(Label, IsDurableWhenTheCallReturns)
{
    ASSERT_EQ(ffs_set_label(fs, "new"), 0);
    ASSERT_EQ(ffs_set_uuid(fs, NEW_UUID), 0);
    Device cut = dev->cut(dev->ops(), CRASH_DROP, 0);
    ASSERT_EQ(unmount(), 0);
    ASSERT_EQ(mount(cut.get()), 0) << why;
    EXPECT_STREQ(state().label, "new");
    EXPECT_EQ(memcmp(state().uuid, NEW_UUID, 16), 0);
    EXPECT_EQ(uid(LAY_INO_ROOT), 7);
    EXPECT_EQ(unmount(), 0);
}

// Each change takes one block of the log, and the log ends.
TEST_F(Label, ChangesAsOftenAsOneLikes)
{
    for (int i = 0; i < 600; i++)
        ASSERT_EQ(ffs_set_label(fs, std::to_string(i).c_str()), 0);
    remount();
    EXPECT_STREQ(state().label, "599");
    EXPECT_EQ(uid(LAY_INO_ROOT), 7);
}

TEST_F(Label, OfAReadOnlyMountDoesNotChange)
{
    ASSERT_EQ(unmount(), 0);
    opts.read_only = true;
    ASSERT_EQ(mount(), 0) << why;
    EXPECT_EQ(ffs_set_label(fs, "new"), -EROFS);
    EXPECT_STREQ(state().label, "");
}

} // namespace
