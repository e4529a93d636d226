/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Operations on extended attributes, whose values are in one record or in several.
 */
#include <errno.h>
#include <linux/limits.h>
#include <string.h>
#include <sys/xattr.h>

#include "fusefs/core/journal/ops.h"
#include "fusefs/core/names/xattr.h"
#include "fusefs/core/state.h"

/* 1 to 255 bytes, as the kernel has it. */
static int xattr_check_name(const char *name, size_t *len)
{
    *len = strnlen(name, XATTR_NAME_MAX + 1);
    return *len == 0 || *len > XATTR_NAME_MAX ? -ERANGE : 0;
}

/* Small or in parts. -ENODATA. */
static int xattr_drop_any(struct ffs_tx *tx, struct ffs_inode *inode, const char *name)
{
    int err = ffs_xattr_drop(tx, inode, name);

    return err == -ENODATA ? ffs_xattr_drop_large(tx, inode, name) : err;
}

static ssize_t xattr_load_any(struct ffs_inode *inode, const char *name, void *buf, size_t size)
{
    ssize_t n = ffs_xattr_load(inode, name, buf, size);

    return n == -ENODATA ? ffs_xattr_load_large(inode, name, buf, size) : n;
}

static int xattr_set_in(struct ffs_tx *tx, struct ffs_inode *inode, const char *name,
                        const void *value, size_t len, int flags)
{
    ssize_t old = xattr_load_any(inode, name, NULL, 0);

    if (ffs_is_fixed(inode))
        return -EPERM;
    if (old >= 0 && (flags & XATTR_CREATE))
        return -EEXIST;
    if (old == -ENODATA && (flags & XATTR_REPLACE))
        return -ENODATA;
    int err = ffs_touch(tx, inode, FFS_CTIME);
    if (!err)
        err = xattr_drop_any(tx, inode, name);
    if (err && err != -ENODATA)
        return err;
    if (LAY_XATTR_LEN(strlen(name), len) <= LAY_PAYLOAD)
        return ffs_xattr_store(tx, inode, name, value, len);
    return ffs_xattr_store_large(tx, inode, name, value, len);
}

/* A value in parts, the old or the new one, takes more. */
static unsigned xattr_credits(struct ffs *fs, size_t len)
{
    ffs_meta_read(fs);
    bool large = lay_get64(ffs_super(fs)->incompat) & LAY_INCOMPAT_LARGE_XATTRS;
    ffs_meta_done(fs);
    return large || len > LAY_PAYLOAD / 2 ? FFS_TX_MAX_CREDITS : FFS_XATTR_CREDITS;
}

static int xattr_set_once(struct ffs_inode *inode, const char *name, const void *value, size_t len,
                          int flags)
{
    struct ffs_tx *tx;
    int err = ffs_tx_begin(inode->fs, xattr_credits(inode->fs, len), &tx);

    return err ? err : ffs_tx_finish(tx, xattr_set_in(tx, inode, name, value, len, flags));
}

int ffs_setxattr(struct ffs_inode *inode, const char *name, const void *value, size_t len,
                 int flags)
{
    bool tried = false;
    size_t name_len;
    int err = xattr_check_name(name, &name_len);

    if (err)
        return err;
    if (flags & ~(XATTR_CREATE | XATTR_REPLACE))
        return -EINVAL;
    if (len > XATTR_SIZE_MAX)
        return -E2BIG;
    do
        err = xattr_set_once(inode, name, value, len, flags);
    while (ffs_retry_space(inode->fs, err, &tried));
    return err;
}

static int xattr_remove_in(struct ffs_tx *tx, struct ffs_inode *inode, const char *name)
{
    int err = ffs_is_fixed(inode) ? -EPERM : ffs_touch(tx, inode, FFS_CTIME);

    return err ? err : xattr_drop_any(tx, inode, name);
}

int ffs_removexattr(struct ffs_inode *inode, const char *name)
{
    struct ffs_tx *tx;
    size_t len;
    int err = xattr_check_name(name, &len);

    if (!err)
        err = ffs_tx_begin(inode->fs, xattr_credits(inode->fs, 0), &tx);
    return err ? err : ffs_tx_finish(tx, xattr_remove_in(tx, inode, name));
}

ssize_t ffs_getxattr(struct ffs_inode *inode, const char *name, void *buf, size_t size)
{
    size_t len;
    ssize_t ret = xattr_check_name(name, &len);

    if (!ret)
        ret = ffs_alive(inode->fs);
    if (ret)
        return ret;
    ffs_meta_read(inode->fs);
    ret = xattr_load_any(inode, name, buf, size);
    ffs_meta_done(inode->fs);
    return ret;
}
