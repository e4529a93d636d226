/* SPDX-License-Identifier: BSD-2-Clause */
// Features and the label change in the superblock while its copies, and block 0 in place, still
// have the former ones: a power cut at any time leaves a file system that mounts.
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/fusefs/core/storage_fixture.h"

namespace
{

constexpr enum crash_fate FATES[] = {CRASH_DROP, CRASH_KEEP, CRASH_RANDOM, CRASH_RANDOM};

class Feature : public StorageTest
{
  public:
    void SetUp() override
    {
        make(16u << 20, 256);
        ASSERT_EQ(mount(), 0) << why;
        ASSERT_EQ(ffs_iget(fs, LAY_INO_ROOT, &root), 0);
    }
    void TearDown() override
    {
        ffs_iput(root, 1);
    }
    void set_flag()
    {
        ffs_attr a = {};
        a.flags = LAY_INODE_NOATIME;
        ASSERT_EQ(ffs_setattr(root, &a, FFS_SET_FLAGS, nullptr), 0);
    }
    void set_acl()
    {
        struct {
            posix_acl_xattr_header head = {htole32(POSIX_ACL_XATTR_VERSION)};
            posix_acl_xattr_entry e[5] = {{ACL_USER_OBJ, 7, ~0u},
                                          {ACL_USER, 7, 5},
                                          {ACL_GROUP_OBJ, 5, ~0u},
                                          {ACL_MASK, 7, ~0u},
                                          {ACL_OTHER, 5, ~0u}};
        } acl;
        ASSERT_EQ(ffs_set_acl(root, true, &acl, sizeof(acl), true), 0);
    }
    void set_large()
    {
        std::string value(65536, 'v');
        ASSERT_EQ(ffs_setxattr(root, "user.large", value.data(), value.size(), 0), 0);
    }
    // The fault of a device after a cut, or "".
    std::string check(crash_dev *d)
    {
        struct ffs *whole = fs;
        std::string wrong;
        if (image_check(crash_dev_bd(d)) != 0)
            wrong = "fsck before";
        if (mount(d)) {
            fs = whole;
            return "mount: " + why;
        }
        struct ffs_statfs s;
        ffs_statfs(fs, &s);
        if (strcmp(s.label, "") != 0 && strcmp(s.label, "new") != 0)
            wrong = "label";
        if (unmount())
            wrong = "unmount";
        fs = whole;
        if (image_check(crash_dev_bd(d)) != 0)
            wrong = "fsck after";
        return wrong;
    }
    ffs_inode *root = nullptr;
};

TEST_F(Feature, EveryCutLeavesAFileSystem)
{
    crash_dev_record(dev.get());
    for (auto step : {&Feature::set_flag, &Feature::set_acl, &Feature::set_large}) {
        (this->*step)();
        ASSERT_EQ(commit(), 0);
    }
    ASSERT_EQ(ffs_set_label(fs, "new"), 0);
    ASSERT_EQ(ffs_sync(fs), 0);
    size_t ops = crash_dev_ops(dev.get());
    EXPECT_GT(ops, 8u);
    for (size_t at = 0; at <= ops; at++) {
        for (uint64_t seed = 0; seed < 4; seed++) {
            Device cut(crash_dev_cut(dev.get(), at, FATES[seed], seed));
            ASSERT_EQ(check(cut.get()), "") << "after " << at << " seed " << seed;
        }
    }
}

// A copy with the former features, and the log, stand in for the rest of block 0.
TEST_F(Feature, ACopyWithTheFormerFeaturesServesRecovery)
{
    crash_dev_record(dev.get());
    set_flag();
    set_acl();
    ASSERT_EQ(ffs_set_label(fs, "new"), 0);
    ASSERT_EQ(commit(), 0);
    Device cut(crash_dev_cut(dev.get(), crash_dev_ops(dev.get()), CRASH_KEEP, 0));
    memset(crash_dev_bytes(cut.get()) + sizeof(lay_head), 0, LAY_BLOCK_SIZE - sizeof(lay_head));
    struct ffs *whole = fs;
    ASSERT_EQ(mount(cut.get()), 0) << why;
    struct ffs_statfs s;
    ffs_statfs(fs, &s);
    EXPECT_STREQ(s.label, "new");
    EXPECT_EQ(unmount(), 0);
    EXPECT_EQ(image_check(crash_dev_bd(cut.get())), 0);
    fs = whole;
}

} // namespace
