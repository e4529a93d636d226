/* SPDX-License-Identifier: BSD-2-Clause */
/* Stores POSIX ACLs as extended attributes. */

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <string.h>

#include "fusefs/core/journal/ops.h"
#include "fusefs/core/names/xattr.h"

/*
 * Maximum number of entries in an attribute of one block with the longer of the
 * two names.
 */
#define MAX_ENTRIES 496u

struct entry {
    uint16_t tag, perm;
    uint32_t id;
};

struct acl {
    size_t n;
    struct entry e[MAX_ENTRIES];
};

struct image {
    struct posix_acl_xattr_header head;
    struct posix_acl_xattr_entry e[MAX_ENTRIES];
};

static const char *acl_name_of(bool is_default)
{
    return is_default ? FFS_ACL_DEFAULT : FFS_ACL_ACCESS;
}

/*
 * Checks that entries are in order of their tags, each of the four tags without
 * an id occurs once, and GROUP_MASK at most once.
 */
static bool acl_in_order(const struct acl *acl)
{
    unsigned seen = 0, last = 0;

    for (size_t i = 0; i < acl->n; i++) {
        unsigned tag = acl->e[i].tag;
        bool named = tag == ACL_USER || tag == ACL_GROUP;
        bool known = named || tag == ACL_USER_OBJ || tag == ACL_GROUP_OBJ || tag == ACL_MASK ||
                     tag == ACL_OTHER;
        if (!known || acl->e[i].perm > 7 || tag < last || (tag == last && !named))
            return false;
        last = tag;
        seen |= tag;
    }
    bool whole = (seen & ACL_USER_OBJ) && (seen & ACL_GROUP_OBJ) && (seen & ACL_OTHER);
    return whole && ((seen & ACL_MASK) || !(seen & (ACL_USER | ACL_GROUP)));
}

static int acl_parse(const void *value, size_t len, struct acl *acl)
{
    struct image image;
    size_t head = sizeof(image.head), each = sizeof(image.e[0]);

    if (len < head || (len - head) % each != 0)
        return -EINVAL;
    acl->n = (len - head) / each;
    if (acl->n > MAX_ENTRIES)
        return -ENOSPC;
    memcpy(&image, value, len);
    if (le32toh(image.head.a_version) != POSIX_ACL_XATTR_VERSION)
        return -EINVAL;
    for (size_t i = 0; i < acl->n; i++)
        acl->e[i] = (struct entry){le16toh(image.e[i].e_tag), le16toh(image.e[i].e_perm),
                                   le32toh(image.e[i].e_id)};
    return acl_in_order(acl) ? 0 : -EINVAL;
}

/* Loads the ACL. Returns 0, or -ENODATA if there is none. */
static int acl_load(struct ffs_inode *inode, bool is_default, struct acl *acl)
{
    struct image image;
    ssize_t n = ffs_xattr_load(inode, acl_name_of(is_default), &image, sizeof(image));

    if (n == -ERANGE || (n >= 0 && acl_parse(&image, (size_t)n, acl) != 0))
        return ffs_corrupt(inode->fs, LAY_NONE, inode->ino, "ACL");
    return n < 0 ? (int)n : 0;
}

static int acl_store(struct ffs_tx *tx, struct ffs_inode *inode, bool is_default,
                     const struct acl *acl)
{
    struct image image = {.head.a_version = htole32(POSIX_ACL_XATTR_VERSION)};

    for (size_t i = 0; i < acl->n; i++)
        image.e[i] = (struct posix_acl_xattr_entry){htole16(acl->e[i].tag), htole16(acl->e[i].perm),
                                                    htole32(acl->e[i].id)};
    return ffs_xattr_store(tx, inode, acl_name_of(is_default), &image,
                           sizeof(image.head) + acl->n * sizeof(image.e[0]));
}

/* The time of the change stays if there is no ACL to remove. */
static int acl_drop(struct ffs_tx *tx, struct ffs_inode *inode, bool is_default)
{
    const char *name = acl_name_of(is_default);
    ssize_t n = ffs_xattr_load(inode, name, NULL, 0);

    if (n < 0)
        return n == -ENODATA ? 0 : (int)n;
    int err = ffs_touch(tx, inode, FFS_CTIME);
    return err ? err : ffs_xattr_drop(tx, inode, name);
}

/* Holds the entries that correspond to the three digits of a mode. */
struct digits {
    struct entry *owner, *group, *other;
};

/* If there is a mask, it takes the place of the group. */
static struct digits acl_digits_of(struct acl *acl)
{
    struct digits d = {NULL, NULL, NULL};

    for (size_t i = 0; i < acl->n; i++) {
        struct entry *e = &acl->e[i];
        if (e->tag == ACL_USER_OBJ)
            d.owner = e;
        else if (e->tag == ACL_GROUP_OBJ || e->tag == ACL_MASK)
            d.group = e;
        else if (e->tag == ACL_OTHER)
            d.other = e;
    }
    assert(d.owner && d.group && d.other); /* acl_in_order() has checked that */
    return d;
}

static uint32_t acl_mode_of(const struct digits *d)
{
    return (uint32_t)d->owner->perm << 6 | (uint32_t)d->group->perm << 3 | d->other->perm;
}

/* Removes permissions that `mode` does not have. */
static void acl_restrict_to(const struct digits *d, uint32_t mode)
{
    d->owner->perm &= (uint16_t)(mode >> 6 & 7);
    d->group->perm &= (uint16_t)(mode >> 3 & 7);
    d->other->perm &= (uint16_t)(mode & 7);
}

/* Returns true if the ACL is equivalent to a mode; it is then not stored. */
static bool acl_is_minimal(const struct acl *acl)
{
    return acl->n == 3;
}

int ffs_acl_inherit(struct ffs_tx *tx, struct ffs_inode *inode, struct ffs_inode *dir,
                    uint32_t mode, uint32_t umask)
{
    struct acl acl;
    int err = S_ISLNK(mode) ? -ENODATA : acl_load(dir, true, &acl);

    if (err == -ENODATA && !S_ISLNK(mode))
        inode->d.mode = lay_put32(ffs_mode(inode) & ~(umask & 0777));
    if (err)
        return err == -ENODATA ? 0 : err;
    if (S_ISDIR(mode))
        err = acl_store(tx, inode, true, &acl);
    struct digits d = acl_digits_of(&acl);
    acl_restrict_to(&d, mode);
    inode->d.mode = lay_put32((ffs_mode(inode) & ~0777u) | acl_mode_of(&d));
    return err || acl_is_minimal(&acl) ? err : acl_store(tx, inode, false, &acl);
}

int ffs_acl_chmod(struct ffs_tx *tx, struct ffs_inode *inode, uint32_t mode)
{
    struct acl acl;
    int err = acl_load(inode, false, &acl);

    if (err)
        return err == -ENODATA ? 0 : err;
    struct digits d = acl_digits_of(&acl);
    d.owner->perm = (uint16_t)(mode >> 6 & 7);
    d.group->perm = (uint16_t)(mode >> 3 & 7);
    d.other->perm = (uint16_t)(mode & 7);
    return acl_store(tx, inode, false, &acl);
}

static int acl_set_access(struct ffs_tx *tx, struct ffs_inode *inode, struct acl *acl,
                          bool keep_setgid)
{
    const struct digits d = acl_digits_of(acl);
    uint32_t mode = (ffs_mode(inode) & ~0777u) | acl_mode_of(&d);

    if (!keep_setgid)
        mode &= ~(uint32_t)S_ISGID;
    if (acl_is_minimal(acl) && mode == ffs_mode(inode))
        return acl_drop(tx, inode, false);
    int err = ffs_touch(tx, inode, FFS_CTIME);
    if (err)
        return err;
    inode->d.mode = lay_put32(mode);
    return acl_is_minimal(acl) ? acl_drop(tx, inode, false) : acl_store(tx, inode, false, acl);
}

static int acl_set_in(struct ffs_tx *tx, struct ffs_inode *inode, bool is_default, struct acl *acl,
                      bool keep_setgid)
{
    uint32_t mode = ffs_mode(inode);

    if (S_ISLNK(mode))
        return -EOPNOTSUPP;
    if (is_default && acl && !S_ISDIR(mode))
        return -EACCES;
    if (ffs_is_fixed(inode))
        return -EPERM;
    if (!acl)
        return acl_drop(tx, inode, is_default);
    if (!is_default)
        return acl_set_access(tx, inode, acl, keep_setgid);
    int err = ffs_touch(tx, inode, FFS_CTIME);
    return err ? err : acl_store(tx, inode, true, acl);
}

int ffs_set_acl(struct ffs_inode *inode, bool is_default, const void *value, size_t len,
                bool keep_setgid)
{
    bool tried = false;
    struct ffs_tx *tx;
    struct acl acl;
    int err = value ? acl_parse(value, len, &acl) : 0;

    if (err)
        return err;
    do {
        err = ffs_tx_begin(inode->fs, FFS_XATTR_CREDITS, &tx);
        if (!err)
            err = ffs_tx_finish(
                tx, acl_set_in(tx, inode, is_default, value ? &acl : NULL, keep_setgid));
    } while (ffs_retry_space(inode->fs, err, &tried));
    return err;
}
