/* SPDX-License-Identifier: BSD-2-Clause */
/* Rebuilds the attributes of an inode from its valid records. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mkfs/fsck/store.h"

struct attributes {
    union lay_block blocks[LAY_XATTR_BLOCKS_MAX];
    unsigned count;
};

static bool has_attribute(const struct attributes *a, const struct lay_xattr *x)
{
    for (unsigned i = 0; i < a->count; i++) {
        const struct lay_xattr *y = NULL;
        while ((y = lay_xattr_next(&a->blocks[i].xattr, y))) {
            if (y->name_len == x->name_len &&
                memcmp(lay_xattr_name(y), lay_xattr_name(x), x->name_len) == 0)
                return true;
        }
    }
    return false;
}

/* Returns the record if it is valid by itself, or NULL; `room` bytes are left. */
static const struct lay_xattr *valid_record(const uint8_t *bytes, size_t room)
{
    const struct lay_xattr *x = (const struct lay_xattr *)bytes;

    if (room < sizeof(*x) || x->name_len == 0 || lay_get32(x->value_len) > LAY_PAYLOAD)
        return NULL;
    size_t len = LAY_XATTR_LEN(x->name_len, lay_get32(x->value_len));
    if (len > room || lay_get16(x->len) != len || memchr(lay_xattr_name(x), 0, x->name_len))
        return NULL;
    return x;
}

static void take_records(struct attributes *a, const struct lay_xattr_block *from)
{
    struct lay_xattr_block *to = &a->blocks[a->count].xattr;
    const struct lay_xattr *x;
    uint32_t used = 0;

    memset(to, 0, sizeof(*to));
    a->count++;
    for (size_t pos = 0; (x = valid_record(from->bytes + pos, LAY_PAYLOAD - pos));
         pos += lay_get16(x->len)) {
        if (has_attribute(a, x))
            continue;
        struct lay_xattr *copy = (struct lay_xattr *)(to->bytes + used);
        memcpy(copy, x, sizeof(*x) + x->name_len + lay_get32(x->value_len));
        copy->reserved = 0;
        used += lay_get16(x->len);
        to->used = lay_put16((uint16_t)used);
        to->count = lay_put16((uint16_t)(lay_get16(to->count) + 1));
    }
    if (used == 0)
        a->count--;
}

static int collect_attributes(struct fsck *f, uint64_t ino, uint64_t block, struct attributes *a)
{
    union lay_block b;

    for (unsigned i = 0; i < LAY_XATTR_BLOCKS_MAX && lay_range_ok(&f->img.geo, block, 1); i++) {
        int err = image_read(&f->img, block, &b);
        if (err)
            return err;
        if (lay_get32(b.head.magic) != LAY_MAGIC_XATTR || lay_get64(b.head.block) != block ||
            lay_get64(b.head.owner) != ino)
            break;
        take_records(a, &b.xattr);
        block = lay_get64(b.xattr.next);
    }
    return 0;
}

/* Writes the blocks from the last to the first, since each names the next. */
static int attributes_put_attributes(struct fsck *f, uint64_t ino, struct attributes *a,
                                     uint64_t *first)
{
    uint64_t next = 0, len;

    for (unsigned i = a->count; i-- > 0;) {
        uint64_t block = fsck_alloc(f, 1, &len);
        if (len == 0)
            return -ENOSPC;
        lay_head_init(&a->blocks[i].head, LAY_MAGIC_XATTR, f->img.geo.uuid, block, ino);
        a->blocks[i].xattr.next = lay_put64(next);
        int err = store_put_new(f, block, &a->blocks[i]);
        if (err)
            return err;
        next = block;
    }
    *first = next;
    return 0;
}

int fsck_rebuild_xattrs(struct fsck *f, uint64_t ino, struct lay_inode *inode)
{
    struct attributes *a = calloc(1, sizeof(*a));
    uint64_t first = 0;

    if (!a)
        return -ENOMEM;
    int err = collect_attributes(f, ino, lay_get64(inode->xattr), a);
    if (!err)
        err = attributes_put_attributes(f, ino, a, &first);
    if (!err)
        inode->xattr = lay_put64(first);
    free(a);
    return err;
}
