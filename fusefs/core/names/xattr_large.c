/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Values that do not fit in one block: a record with their length, and records with their parts
 * (FORMAT.md 8.2).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/core/journal/ops.h"
#include "fusefs/core/names/xattr.h"

#define PARTS_MAX 32u

struct part_name {
    char text[LAY_XATTR_NAME_MAX + 1];
};

static struct part_name xattr_head_name(const char *name)
{
    struct part_name n;

    n.text[0] = LAY_XATTR_HEAD;
    memcpy(n.text + 1, name, strlen(name) + 1);
    return n;
}

static struct part_name xattr_part_name(const char *name, unsigned i)
{
    struct part_name n;

    n.text[0] = LAY_XATTR_PART;
    n.text[1] = (char)(LAY_XATTR_PART_BASE + i);
    memcpy(n.text + 2, name, strlen(name) + 1);
    return n;
}

static bool xattr_can_be_large(const char *name)
{
    return strlen(name) + 2 <= LAY_XATTR_NAME_MAX;
}

/* Bytes of each part but the last: its record fills a block. */
static size_t xattr_part_len(const char *name)
{
    return (LAY_PAYLOAD - sizeof(struct lay_xattr) - strlen(name) - 2) & ~7u;
}

static unsigned xattr_parts_of(const char *name, size_t len)
{
    return (unsigned)((len + xattr_part_len(name) - 1) / xattr_part_len(name));
}

/* The length of the value. -ENODATA: there is none; -EIO: the record is damaged. */
static ssize_t xattr_load_len(struct ffs_inode *inode, const char *name)
{
    le32 len;

    if (!xattr_can_be_large(name))
        return -ENODATA;
    const struct part_name head = xattr_head_name(name);
    ssize_t n = ffs_xattr_load(inode, head.text, &len, sizeof(len));
    if (n < 0)
        return n == -ERANGE ? -EIO : n;
    bool sane = n == sizeof(len) && xattr_parts_of(name, lay_get32(len)) <= PARTS_MAX;
    return sane ? (ssize_t)lay_get32(len) : -EIO;
}

ssize_t ffs_xattr_load_large(struct ffs_inode *inode, const char *name, void *buf, size_t size)
{
    ssize_t len = xattr_load_len(inode, name);

    if (len < 0 || size == 0)
        return len;
    if ((size_t)len > size)
        return -ERANGE;
    size_t done = 0;
    for (unsigned i = 0; done < (size_t)len; i++) {
        const struct part_name part = xattr_part_name(name, i);
        size_t want =
            (size_t)len - done < xattr_part_len(name) ? (size_t)len - done : xattr_part_len(name);
        ssize_t n = ffs_xattr_load(inode, part.text, (char *)buf + done, want);
        if (n != (ssize_t)want)
            return n < 0 && n != -ENODATA && n != -ERANGE ? n : -EIO;
        done += want;
    }
    return len;
}

int ffs_xattr_store_large(struct ffs_tx *tx, struct ffs_inode *inode, const char *name,
                          const void *value, size_t len)
{
    le32 total = lay_put32((uint32_t)len);

    if (!xattr_can_be_large(name) || xattr_parts_of(name, len) > PARTS_MAX)
        return -ENOSPC;
    int err = ffs_need_feature(tx, LAY_INCOMPAT_LARGE_XATTRS);
    const struct part_name head = xattr_head_name(name);
    if (!err)
        err = ffs_xattr_store(tx, inode, head.text, &total, sizeof(total));
    size_t done = 0;
    for (unsigned i = 0; done < len && !err; i++) {
        const struct part_name part = xattr_part_name(name, i);
        size_t n = len - done < xattr_part_len(name) ? len - done : xattr_part_len(name);
        err = ffs_xattr_store(tx, inode, part.text, (const char *)value + done, n);
        done += n;
    }
    return err;
}

/* Parts that are missing, after a repair, are no obstacle. */
int ffs_xattr_drop_large(struct ffs_tx *tx, struct ffs_inode *inode, const char *name)
{
    ssize_t len = xattr_load_len(inode, name);

    if (len < 0 && len != -EIO)
        return (int)len;
    const struct part_name head = xattr_head_name(name);
    int err = ffs_xattr_drop(tx, inode, head.text);
    unsigned parts = len < 0 ? PARTS_MAX : xattr_parts_of(name, (size_t)len);
    for (unsigned i = 0; i < parts && !err; i++) {
        const struct part_name part = xattr_part_name(name, i);
        err = ffs_xattr_drop(tx, inode, part.text);
        if (err == -ENODATA)
            err = 0;
    }
    return err;
}
