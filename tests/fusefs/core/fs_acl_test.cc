/* SPDX-License-Identifier: BSD-2-Clause */
// POSIX ACLs: validity, the mode beside them, inheritance.
#include <linux/posix_acl.h>
#include <sys/xattr.h>

#include "layout/endian.h"
#include "layout/format.h"
#include "tests/fusefs/core/fs_fixture.h"

namespace
{

struct Entry {
    uint16_t tag, perm;
    uint32_t id;
};

void append(std::string &to, uint32_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to += static_cast<char>(value >> 8 * i);
}

std::string acl_of(const std::vector<Entry> &entries, uint32_t version = 2)
{
    std::string acl;
    append(acl, version, 4);
    for (const Entry &e : entries) {
        append(acl, e.tag, 2);
        append(acl, e.perm, 2);
        append(acl, e.id, 4);
    }
    return acl;
}

constexpr uint32_t kNone = UINT32_MAX;

// What `setfacl -m u:7:rw` makes of mode 0640, with another mask.
std::string one_user(uint16_t mask, uint16_t other = 0)
{
    return acl_of({{ACL_USER_OBJ, 6, kNone},
                   {ACL_USER, 6, 7},
                   {ACL_GROUP_OBJ, 4, kNone},
                   {ACL_MASK, mask, kNone},
                   {ACL_OTHER, other, kNone}});
}

class FsAcl : public FsTest
{
  protected:
    static int set(ffs_inode *inode, const std::string &acl, bool is_default = false,
                   bool keep_setgid = true)
    {
        return ffs_set_acl(inode, is_default, acl.data(), acl.size(), keep_setgid);
    }
    static std::string get(ffs_inode *inode, const char *name = FFS_ACL_ACCESS)
    {
        char buf[4096];
        ssize_t n = ffs_getxattr(inode, name, buf, sizeof(buf));
        return n < 0 ? "" : std::string(buf, static_cast<size_t>(n));
    }
    int chmod(ffs_inode *inode, uint32_t mode)
    {
        ffs_attr a = {};
        a.mode = mode;
        return ffs_setattr(inode, &a, FFS_SET_MODE, nullptr);
    }
};

TEST_F(FsAcl, TheModeShowsTheMask)
{
    Inode f = create("f", S_IFREG | 02640);
    ASSERT_EQ(set(f, one_user(6, 1)), 0);
    EXPECT_EQ(attr(f).mode, uint32_t{S_IFREG | 02661});
    remount(f, "f");
    EXPECT_EQ(get(f), one_user(6, 1));
    ASSERT_EQ(set(f, one_user(4), false, false), 0);
    EXPECT_EQ(attr(f).mode, uint32_t{S_IFREG | 0640});
}

TEST_F(FsAcl, AChangedModeChangesTheMask)
{
    Inode f = create("f");
    ASSERT_EQ(set(f, one_user(6)), 0);
    ASSERT_EQ(chmod(f, 0617), 0);
    EXPECT_EQ(get(f), one_user(1, 7));
    ASSERT_EQ(ffs_set_acl(f, false, nullptr, 0, true), 0);
    EXPECT_EQ(get(f), "");
    EXPECT_EQ(attr(f).mode, uint32_t{S_IFREG | 0617});
    EXPECT_EQ(ffs_set_acl(f, false, nullptr, 0, true), 0);
}

TEST_F(FsAcl, AnAclEquivalentToAModeIsNotStored)
{
    Inode f = create("f");
    ASSERT_EQ(set(f, one_user(6)), 0);
    ASSERT_EQ(
        set(f,
            acl_of({{ACL_USER_OBJ, 7, kNone}, {ACL_GROUP_OBJ, 1, kNone}, {ACL_OTHER, 2, kNone}})),
        0);
    EXPECT_EQ(get(f), "");
    EXPECT_EQ(attr(f).mode, uint32_t{S_IFREG | 0712});
    EXPECT_EQ(attr(f).blocks, 0u);
}

// setfacl -b and -k do both to every file that they visit.
TEST_F(FsAcl, AnAclThatChangesNothingLeavesTheTimeOfTheChange)
{
    const std::string mode_0644 =
        acl_of({{ACL_USER_OBJ, 6, kNone}, {ACL_GROUP_OBJ, 4, kNone}, {ACL_OTHER, 4, kNone}});
    Inode d = mkdir("d", 0644);
    timespec before = attr(d).ctime;
    auto changed = [&](int err) {
        timespec last = before;
        EXPECT_EQ(err, 0);
        before = attr(d).ctime;
        return before.tv_sec != last.tv_sec || before.tv_nsec != last.tv_nsec;
    };
    EXPECT_FALSE(changed(ffs_set_acl(d, false, nullptr, 0, true)));
    EXPECT_FALSE(changed(ffs_set_acl(d, true, nullptr, 0, true)));
    EXPECT_FALSE(changed(set(d, mode_0644)));
    EXPECT_TRUE(changed(set(d, one_user(6))));
    EXPECT_TRUE(changed(set(d, one_user(6), true)));
    EXPECT_TRUE(changed(set(d, mode_0644)));
    EXPECT_TRUE(changed(ffs_set_acl(d, true, nullptr, 0, true)));
    EXPECT_EQ(get(d), "");
    EXPECT_EQ(get(d, FFS_ACL_DEFAULT), "");
}

TEST_F(FsAcl, ADefaultAclIsInherited)
{
    Inode d = mkdir("d", 0755);
    ASSERT_EQ(set(d, one_user(7, 4), true), 0);
    EXPECT_EQ(attr(d).mode, uint32_t{S_IFDIR | 0755});
    cred.umask = 077; // counts only where there is no default ACL
    Inode f = create(d, "f", S_IFREG | 0666), sub = mkdir(d, "sub", 0777);
    EXPECT_EQ(attr(f).mode, uint32_t{S_IFREG | 0664});
    EXPECT_EQ(get(f), one_user(6, 4));
    EXPECT_EQ(get(f, FFS_ACL_DEFAULT), "");
    EXPECT_EQ(attr(sub).mode, uint32_t{S_IFDIR | 0674});
    EXPECT_EQ(get(sub), one_user(7, 4));
    EXPECT_EQ(get(sub, FFS_ACL_DEFAULT), one_user(7, 4));
    Inode tmp, link;
    ASSERT_EQ(ffs_tmpfile(d, S_IFREG | 0600, &cred, tmp.out()), 0);
    EXPECT_EQ(get(tmp), one_user(0));
    ASSERT_EQ(ffs_symlink(d, "l", "f", &cred, link.out()), 0);
    EXPECT_EQ(get(link), "");
    EXPECT_EQ(attr(link).mode, uint32_t{S_IFLNK | 0777});
    EXPECT_EQ(attr(create("elsewhere", S_IFREG | 0666)).mode, uint32_t{S_IFREG | 0600});
}

TEST_F(FsAcl, InvalidAclsAreRefused)
{
    Inode f = create("f"), l;
    ASSERT_EQ(ffs_symlink(root, "l", "f", &cred, l.out()), 0);
    const Entry user = {ACL_USER_OBJ, 6, kNone}, group = {ACL_GROUP_OBJ, 6, kNone},
                other = {ACL_OTHER, 6, kNone}, named = {ACL_USER, 6, 7}, mask = {ACL_MASK, 6, 0};
    const std::vector<std::string> bad = {
        "",
        acl_of({}),
        acl_of({user, group, other}, 1),
        acl_of({user, group, other}) + "x",
        acl_of({user, group}),
        acl_of({group, user, other}),
        acl_of({user, user, group, other}),
        acl_of({user, named, group, other}),
        acl_of({user, named, group, mask, mask, other}),
        acl_of({user, group, {ACL_OTHER, 8, kNone}}),
        acl_of({user, group, other, {0x40, 1, kNone}}),
    };
    for (size_t i = 0; i < bad.size(); i++)
        EXPECT_EQ(set(f, bad[i]), -EINVAL) << i;
    EXPECT_EQ(set(f, one_user(6), true), -EACCES);
    EXPECT_EQ(set(l, one_user(6)), -EOPNOTSUPP);
    std::vector<Entry> many(600, named);
    EXPECT_EQ(set(f, acl_of(many)), -ENOSPC);
    EXPECT_EQ(get(f), "");
}

TEST_F(FsAcl, TheLargestAclFitsTogetherWithOtherAttributes)
{
    Inode d = mkdir("d");
    std::vector<Entry> entries = {{ACL_USER_OBJ, 7, kNone}};
    for (uint32_t i = 0; i < 492; i++)
        entries.push_back({ACL_USER, 5, i});
    entries.push_back({ACL_GROUP_OBJ, 5, kNone});
    entries.push_back({ACL_MASK, 7, kNone});
    entries.push_back({ACL_OTHER, 0, kNone});
    ASSERT_EQ(ffs_setxattr(d, "user.a", "b", 1, 0), 0);
    ASSERT_EQ(set(d, acl_of(entries), true), 0);
    ASSERT_EQ(set(d, acl_of(entries)), 0);
    EXPECT_EQ(get(mkdir(d, "sub", 0777)), acl_of(entries));
    EXPECT_EQ(ffs_rmdir(d, "sub"), 0);
}

} // namespace
