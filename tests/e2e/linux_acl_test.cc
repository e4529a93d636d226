/* SPDX-License-Identifier: BSD-2-Clause */
// POSIX ACLs on a mount: the kernel checks access by what the file system keeps.
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <sys/xattr.h>

#include <vector>

#include "tests/e2e/posix.h"

namespace
{

constexpr char kAccess[] = "system.posix_acl_access";
constexpr char kDefault[] = "system.posix_acl_default";
constexpr uint32_t kNone = UINT32_MAX;

struct Entry {
    uint16_t tag, perm;
    uint32_t id;
};

int set_acl(const std::string &path, const char *name, const std::vector<Entry> &entries)
{
    std::vector<char> value(sizeof(posix_acl_xattr_header) + sizeof(Entry) * entries.size());
    const uint32_t version = POSIX_ACL_XATTR_VERSION;

    memcpy(value.data(), &version, sizeof(version));
    memcpy(value.data() + sizeof(version), entries.data(), sizeof(Entry) * entries.size());
    return setxattr(path.c_str(), name, value.data(), value.size(), 0);
}

std::vector<Entry> one_user(uint32_t uid, uint16_t perm, uint16_t mask)
{
    return {{ACL_USER_OBJ, 6, kNone},
            {ACL_USER, perm, uid},
            {ACL_GROUP_OBJ, 0, kNone},
            {ACL_MASK, mask, kNone},
            {ACL_OTHER, 0, kNone}};
}

bool can(uid_t uid, const std::string &path, int flags)
{
    return as_user(uid, [&] { return open(path.c_str(), flags); }) == 0;
}

TEST_F(Posix, ANamedUserHasTheAccessThatTheMaskLeaves)
{
    touch("f", "text", 0600);
    EXPECT_FALSE(can(7, p("f"), O_RDONLY));
    ASSERT_EQ(set_acl(p("f"), kAccess, one_user(7, 6, 6)), 0) << strerror(errno);
    EXPECT_TRUE(can(7, p("f"), O_RDWR));
    EXPECT_FALSE(can(8, p("f"), O_RDONLY));
    EXPECT_EQ(st("f").st_mode & 0777, 0660u);
    ASSERT_EQ(chmod(p("f").c_str(), 0640), 0);
    EXPECT_TRUE(can(7, p("f"), O_RDONLY));
    EXPECT_FALSE(can(7, p("f"), O_WRONLY));
    ASSERT_EQ(removexattr(p("f").c_str(), kAccess), 0);
    EXPECT_FALSE(can(7, p("f"), O_RDONLY));
}

TEST_F(Posix, NewFilesGetTheDefaultAclOrTheUmask)
{
    umask(022);
    touch("plain", "", 0666);
    EXPECT_EQ(st("plain").st_mode & 0777, 0644u);
    ASSERT_EQ(mkdir(p("d").c_str(), 0777), 0);
    EXPECT_EQ(st("d").st_mode & 0777, 0755u);
    ASSERT_EQ(set_acl(p("d"), kDefault, one_user(7, 7, 7)), 0) << strerror(errno);
    touch("d/f", "", 0666);
    EXPECT_EQ(st("d/f").st_mode & 0777, 0660u);
    EXPECT_TRUE(can(7, p("d/f"), O_RDWR));
    ASSERT_EQ(mkdir(p("d/sub").c_str(), 0777), 0);
    EXPECT_GT(getxattr(p("d/sub").c_str(), kDefault, nullptr, 0), 0);
    touch("d/sub/g", "", 0600);
    EXPECT_FALSE(can(7, p("d/sub/g"), O_RDONLY)); // the mask is that of the mode
    umask(0);
}

TEST_F(Posix, AnAclOfAStrangerToTheGroupClearsSetGid)
{
    touch("f", "", 0600);
    ASSERT_EQ(chown(p("f").c_str(), 1000, 50), 0);
    ASSERT_EQ(chmod(p("f").c_str(), 02750), 0);
    ASSERT_EQ(as_user(0, [&] { return set_acl(p("f"), kAccess, one_user(7, 7, 7)); }), 0);
    EXPECT_EQ(st("f").st_mode & 07777, 02670u);
    ASSERT_EQ(as_user(1000, [&] { return set_acl(p("f"), kAccess, one_user(7, 7, 7)); }), 0);
    EXPECT_EQ(st("f").st_mode & 07777, 0670u);
    EXPECT_EQ(as_user(1001, [&] { return set_acl(p("f"), kAccess, one_user(7, 7, 7)); }), EPERM);
}

} // namespace
