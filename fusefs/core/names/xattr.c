/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Stores extended attributes as records in a chain of blocks (FORMAT.md 8). A
 * record lies within one block. A longer value has several records.
 */
#include "fusefs/core/names/xattr.h"

#include <assert.h>
#include <errno.h>
#include <linux/limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "fusefs/core/journal/ops.h"

/* --- Records ---------------------------------------------------------------------------------- */

/* Holds the whole chain of an inode. The blocks of the chain are referenced. */
struct chain {
    struct ffs_inode *inode;
    unsigned n;
    struct ffs_buf *buf[LAY_XATTR_BLOCKS_MAX];
};

/* Points to a record of a chain. rec is NULL if there is no record. */
struct place {
    unsigned block;
    struct lay_xattr *rec;
};

static struct lay_xattr_block *xattr_block_at(const struct chain *c, unsigned i)
{
    return c->buf[i]->data;
}

static void xattr_chain_close(struct chain *c)
{
    while (c->n > 0)
        ffs_buf_put(c->buf[--c->n]);
}

static int xattr_chain_load(struct chain *c, uint64_t block)
{
    struct lay_expect expect = {.magic = LAY_MAGIC_XATTR, .owner = c->inode->ino};
    struct ffs_buf *buf;

    if (c->n == LAY_XATTR_BLOCKS_MAX)
        return ffs_corrupt(c->inode->fs, block, c->inode->ino, "chain of attributes is too long");
    int err = ffs_buf_get(c->inode->fs, block, &expect, &buf);
    if (err)
        return err;
    c->buf[c->n++] = buf;
    const struct lay_xattr_block *xb = buf->data;
    if (lay_get32(xb->head.magic) == LAY_MAGIC_XATTR && lay_get64(xb->head.owner) == expect.owner)
        return 0;
    return ffs_corrupt(c->inode->fs, block, c->inode->ino, "attribute block out of place");
}

/* Loads the chain of an inode. The caller holds ffs.meta, and closes the chain on success. */
static int xattr_chain_open(struct ffs_inode *inode, struct chain *c)
{
    c->inode = inode;
    c->n = 0;
    int err = 0;
    for (uint64_t at = lay_get64(inode->d.xattr); at != 0 && !err;) {
        err = xattr_chain_load(c, at);
        if (!err)
            at = lay_get64(xattr_block_at(c, c->n - 1)->next);
    }
    if (err)
        xattr_chain_close(c);
    return err;
}

static struct place xattr_find(const struct chain *c, const char *name)
{
    size_t len = strlen(name);

    for (unsigned i = 0; i < c->n; i++) {
        const struct lay_xattr *x = NULL;
        while ((x = lay_xattr_next(xattr_block_at(c, i), x)) != NULL) {
            if (x->name_len == len && memcmp(lay_xattr_name(x), name, len) == 0)
                return (struct place){i, (struct lay_xattr *)(uintptr_t)x};
        }
    }
    return (struct place){0, NULL};
}

/* --- Changing -------------------------------------------------------------------------------- */

/* Changes the pointer to the i-th block: it points to `next` then. */
static int xattr_relink(struct ffs_tx *tx, struct chain *c, unsigned i, uint64_t next)
{
    if (i == 0) {
        c->inode->d.xattr = lay_put64(next);
        return 0;
    }
    int err = ffs_tx_dirty(tx, c->buf[i - 1]);
    if (!err)
        xattr_block_at(c, i - 1)->next = lay_put64(next);
    return err;
}

/* Removes a block from the chain and frees it. */
static int xattr_drop_block(struct ffs_tx *tx, struct chain *c, unsigned i)
{
    uint64_t block = c->buf[i]->block;
    int err = xattr_relink(tx, c, i, lay_get64(xattr_block_at(c, i)->next));

    if (err)
        return err;
    ffs_buf_put(c->buf[i]);
    c->n--;
    memmove(c->buf + i, c->buf + i + 1, (c->n - i) * sizeof(c->buf[0]));
    return ffs_free_meta(tx, block);
}

static int xattr_take_out(struct ffs_tx *tx, struct chain *c, struct place p)
{
    int err = ffs_tx_dirty(tx, c->buf[p.block]);

    if (err)
        return err;
    struct lay_xattr_block *xb = xattr_block_at(c, p.block);
    size_t len = lay_get16(p.rec->len);
    size_t end = lay_get16(xb->used);
    size_t at = (size_t)((uint8_t *)p.rec - xb->bytes);
    assert(at + len <= end && end <= LAY_PAYLOAD);
    memmove(xb->bytes + at, xb->bytes + at + len, end - at - len);
    memset(xb->bytes + end - len, 0, len);
    xb->used = lay_put16((uint16_t)(end - len));
    xb->count = lay_put16((uint16_t)(lay_get16(xb->count) - 1));
    return end == len ? xattr_drop_block(tx, c, p.block) : 0;
}

/* Adds a block at the end of the chain. */
static int xattr_add_block(struct ffs_tx *tx, struct chain *c)
{
    uint64_t block;

    if (c->n == LAY_XATTR_BLOCKS_MAX)
        return -ENOSPC;
    int err = ffs_alloc_meta(tx, c->n ? c->buf[c->n - 1]->block : 0, &block);
    if (!err)
        err = xattr_relink(tx, c, c->n, block);
    if (!err)
        err = ffs_tx_new(tx, block, LAY_MAGIC_XATTR, c->inode->ino, &c->buf[c->n]);
    if (!err)
        c->n++;
    return err;
}

static void xattr_append(struct lay_xattr_block *xb, const char *name, size_t name_len,
                         const void *value, size_t len)
{
    size_t used = lay_get16(xb->used);
    size_t record = LAY_XATTR_LEN(name_len, len);
    struct lay_xattr *x = (struct lay_xattr *)(xb->bytes + used);

    *x = (struct lay_xattr){.len = lay_put16((uint16_t)record),
                            .name_len = (uint8_t)name_len,
                            .value_len = lay_put32((uint32_t)len)};
    memcpy(x + 1, name, name_len);
    if (len > 0)
        memcpy((uint8_t *)(x + 1) + name_len, value, len);
    xb->used = lay_put16((uint16_t)(used + record));
    xb->count = lay_put16((uint16_t)(lay_get16(xb->count) + 1));
}

/* Adds a record to the first block with room. */
static int xattr_put_in(struct ffs_tx *tx, struct chain *c, const char *name, const void *value,
                        size_t len)
{
    size_t name_len = strlen(name);
    unsigned i = 0;

    while (i < c->n &&
           lay_get16(xattr_block_at(c, i)->used) + LAY_XATTR_LEN(name_len, len) > LAY_PAYLOAD)
        i++;
    int err = i == c->n ? xattr_add_block(tx, c) : ffs_tx_dirty(tx, c->buf[i]);
    if (!err)
        xattr_append(xattr_block_at(c, i), name, name_len, value, len);
    return err;
}

int ffs_xattr_store(struct ffs_tx *tx, struct ffs_inode *inode, const char *name, const void *value,
                    size_t len)
{
    struct chain c;
    int err = xattr_chain_open(inode, &c);

    if (err)
        return err;
    struct place old = xattr_find(&c, name);
    if (old.rec)
        err = xattr_take_out(tx, &c, old);
    if (!err)
        err = xattr_put_in(tx, &c, name, value, len);
    xattr_chain_close(&c);
    return err;
}

int ffs_xattr_drop(struct ffs_tx *tx, struct ffs_inode *inode, const char *name)
{
    struct chain c;
    int err = xattr_chain_open(inode, &c);

    if (err)
        return err;
    struct place p = xattr_find(&c, name);
    err = p.rec ? xattr_take_out(tx, &c, p) : -ENODATA;
    xattr_chain_close(&c);
    return err;
}

/* Maximum number of blocks that one handle frees, because each may be in another segment. */
#define FREE_STEP 64u

/*
 * Removes blocks from the front of a chain that is too long. Sets *more to true if it is still too
 * long.
 */
static int xattr_shorten_once(struct ffs_inode *inode, bool *more)
{
    struct ffs_tx *tx;
    struct chain c;
    int err = ffs_tx_begin(inode->fs, FFS_TX_MAX_CREDITS, &tx);

    if (err)
        return err;
    ffs_tx_use_reserve(tx);
    err = xattr_chain_open(inode, &c);
    if (err)
        return ffs_tx_finish(tx, err);
    *more = c.n > FREE_STEP;
    if (*more)
        err = ffs_inode_dirty(tx, inode);
    for (unsigned i = 0; *more && i < FREE_STEP && c.n > FREE_STEP && !err; i++)
        err = xattr_drop_block(tx, &c, 0);
    *more = c.n > FREE_STEP;
    xattr_chain_close(&c);
    return ffs_tx_finish(tx, err);
}

int ffs_xattr_shorten(struct ffs_inode *inode)
{
    bool more = true;
    int err = 0;

    while (more && !err)
        err = xattr_shorten_once(inode, &more);
    return err;
}

int ffs_xattr_free_all(struct ffs_tx *tx, struct ffs_inode *inode)
{
    struct chain c;
    int err = xattr_chain_open(inode, &c);

    while (!err && c.n > 0)
        err = xattr_drop_block(tx, &c, c.n - 1);
    xattr_chain_close(&c);
    return err;
}

/* --- Reading --------------------------------------------------------------------------------- */

static ssize_t xattr_get_in(struct chain *c, const char *name, char *buf, size_t size)
{
    struct place p = xattr_find(c, name);

    if (!p.rec)
        return -ENODATA;
    size_t value_len = lay_get32(p.rec->value_len);
    if (size > 0 && value_len > size)
        return -ERANGE;
    if (size > 0 && value_len > 0)
        memcpy(buf, lay_xattr_value(p.rec), value_len);
    return (ssize_t)value_len;
}

ssize_t ffs_xattr_load(struct ffs_inode *inode, const char *name, void *buf, size_t size)
{
    struct chain c;
    ssize_t ret = xattr_chain_open(inode, &c);

    if (!ret) {
        ret = xattr_get_in(&c, name, buf, size);
        xattr_chain_close(&c);
    }
    return ret;
}

static bool xattr_is_trusted(const char *name, size_t len)
{
    static const char space[] = "trusted.";

    return len >= strlen(space) && memcmp(name, space, strlen(space)) == 0;
}

static ssize_t xattr_list_in(struct chain *c, bool trusted, char *buf, size_t size)
{
    size_t total = 0;

    for (unsigned i = 0; i < c->n; i++) {
        const struct lay_xattr *x = NULL;
        while ((x = lay_xattr_next(xattr_block_at(c, i), x)) != NULL) {
            const char *name = lay_xattr_name(x);
            size_t len = x->name_len;
            if (*name == LAY_XATTR_PART)
                continue;
            name += *name == LAY_XATTR_HEAD;
            len -= name != lay_xattr_name(x);
            if (!trusted && xattr_is_trusted(name, len))
                continue;
            if (size > 0 && total + len + 1 > size)
                return -ERANGE;
            if (size > 0) {
                memcpy(buf + total, name, len);
                buf[total + len] = 0;
            }
            total += len + 1;
        }
    }
    return (ssize_t)total;
}

ssize_t ffs_listxattr(struct ffs_inode *inode, bool trusted, char *buf, size_t size)
{
    struct chain c;
    ssize_t ret = ffs_alive(inode->fs);

    if (ret)
        return ret;
    ffs_meta_read(inode->fs);
    ret = xattr_chain_open(inode, &c);
    if (!ret) {
        ret = xattr_list_in(&c, trusted, buf, size);
        xattr_chain_close(&c);
    }
    ffs_meta_done(inode->fs);
    return ret;
}

/* --- Values in parts (FORMAT.md 8.2) ---------------------------------------------------------- */

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

/* Returns the length of each part but the last, whose record fills a block. */
static size_t xattr_part_len(const char *name)
{
    return (LAY_PAYLOAD - sizeof(struct lay_xattr) - strlen(name) - 2) & ~7u;
}

static unsigned xattr_parts_of(const char *name, size_t len)
{
    return (unsigned)((len + xattr_part_len(name) - 1) / xattr_part_len(name));
}

/* Returns the length of the value, -ENODATA if there is none, or -EIO if its record is damaged. */
static ssize_t xattr_load_len(struct ffs_inode *inode, const char *name)
{
    le32 len = {0};

    if (!xattr_can_be_large(name))
        return -ENODATA;
    const struct part_name head = xattr_head_name(name);
    ssize_t n = ffs_xattr_load(inode, head.text, &len, sizeof(len));
    if (n < 0)
        return n == -ERANGE ? -EIO : n;
    bool sane = n == sizeof(len) && xattr_parts_of(name, lay_get32(len)) <= PARTS_MAX;
    return sane ? (ssize_t)lay_get32(len) : -EIO;
}

/* Returns only the length if size is 0. Returns -EIO if a part is missing. */
static ssize_t xattr_load_large(struct ffs_inode *inode, const char *name, void *buf, size_t size)
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

/* Returns -ENOSPC if the value is too long. */
static int xattr_store_large(struct ffs_tx *tx, struct ffs_inode *inode, const char *name,
                             const void *value, size_t len)
{
    le32 total = lay_put32((uint32_t)len);

    if (!xattr_can_be_large(name) || xattr_parts_of(name, len) > PARTS_MAX)
        return -ENOSPC;
    const struct part_name head = xattr_head_name(name);
    int err = ffs_xattr_store(tx, inode, head.text, &total, sizeof(total));
    size_t done = 0;
    for (unsigned i = 0; done < len && !err; i++) {
        const struct part_name part = xattr_part_name(name, i);
        size_t n = len - done < xattr_part_len(name) ? len - done : xattr_part_len(name);
        err = ffs_xattr_store(tx, inode, part.text, (const char *)value + done, n);
        done += n;
    }
    return err;
}

/* Ignores missing parts, which a repair may leave. */
static int xattr_drop_large(struct ffs_tx *tx, struct ffs_inode *inode, const char *name)
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

/* --- Operations ------------------------------------------------------------------------------- */

/* Accepts names of 1 to 255 bytes, as the kernel does. */
static int xattr_check_name(const char *name)
{
    size_t len = strnlen(name, XATTR_NAME_MAX + 1);

    return len == 0 || len > XATTR_NAME_MAX ? -ERANGE : 0;
}

/* Removes a value that is in one record or in parts. Returns -ENODATA if there is none. */
static int xattr_drop_any(struct ffs_tx *tx, struct ffs_inode *inode, const char *name)
{
    int err = ffs_xattr_drop(tx, inode, name);

    return err == -ENODATA ? xattr_drop_large(tx, inode, name) : err;
}

static ssize_t xattr_load_any(struct ffs_inode *inode, const char *name, void *buf, size_t size)
{
    ssize_t n = ffs_xattr_load(inode, name, buf, size);

    return n == -ENODATA ? xattr_load_large(inode, name, buf, size) : n;
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
    return xattr_store_large(tx, inode, name, value, len);
}

static int xattr_set_once(struct ffs_inode *inode, const char *name, const void *value, size_t len,
                          int flags)
{
    struct ffs_tx *tx;
    int err = ffs_tx_begin(inode->fs, FFS_TX_MAX_CREDITS, &tx);

    return err ? err : ffs_tx_finish(tx, xattr_set_in(tx, inode, name, value, len, flags));
}

int ffs_setxattr(struct ffs_inode *inode, const char *name, const void *value, size_t len,
                 int flags)
{
    bool tried = false;
    int err = xattr_check_name(name);

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
    int err = xattr_check_name(name);

    if (!err)
        err = ffs_tx_begin(inode->fs, FFS_TX_MAX_CREDITS, &tx);
    return err ? err : ffs_tx_finish(tx, xattr_remove_in(tx, inode, name));
}

ssize_t ffs_getxattr(struct ffs_inode *inode, const char *name, void *buf, size_t size)
{
    ssize_t ret = xattr_check_name(name);

    if (!ret)
        ret = ffs_alive(inode->fs);
    if (ret)
        return ret;
    ffs_meta_read(inode->fs);
    ret = xattr_load_any(inode, name, buf, size);
    ffs_meta_done(inode->fs);
    return ret;
}
