/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checks extended attributes and long targets of symbolic links (FORMAT.md 8
 * and 9).
 */
#include <string.h>

#include "layout/check.h"
#include "layout/layout.h"

static int check_xattr(const struct lay_xattr *x, size_t room, const char **why)
{
    if (room < sizeof(*x) || lay_get16(x->len) > room)
        return lay_bad(why, "xattr past the used bytes");
    /* Bounds value_len before it is used in a sum. */
    if (lay_get32(x->value_len) > LAY_PAYLOAD ||
        lay_get16(x->len) != LAY_XATTR_LEN(x->name_len, lay_get32(x->value_len)))
        return lay_bad(why, "xattr.len");
    if (x->name_len == 0 || memchr(lay_xattr_name(x), 0, x->name_len))
        return lay_bad(why, "xattr.name");
    if (x->reserved != 0)
        return lay_bad(why, "xattr.reserved");
    size_t end = sizeof(*x) + x->name_len + lay_get32(x->value_len);
    if (!lay_is_zero((const uint8_t *)x + end, lay_get16(x->len) - end))
        return lay_bad(why, "xattr padding");
    return 0;
}

int lay_check_xattr_block(const struct lay_geometry *geo, const struct lay_xattr_block *xb,
                          uint64_t addr, uint64_t owner, const char **why)
{
    int err = lay_check_head(xb, LAY_MAGIC_XATTR, geo->uuid, addr, owner, why);

    if (err)
        return err;
    uint64_t next = lay_get64(xb->next);
    if (next == addr || (next != 0 && !lay_chunk_addr_ok(geo, next)))
        return lay_bad(why, "next");
    if (lay_get32(xb->reserved) != 0)
        return lay_bad(why, "reserved");
    uint32_t used = lay_get16(xb->used);
    if (used > LAY_PAYLOAD)
        return lay_bad(why, "used");

    unsigned count = 0;
    for (uint32_t pos = 0; pos < used; count++) {
        const struct lay_xattr *x = (const struct lay_xattr *)(xb->bytes + pos);
        err = check_xattr(x, used - pos, why);
        if (err)
            return err;
        pos += lay_get16(x->len);
    }
    if (count != lay_get16(xb->count))
        return lay_bad(why, "count");
    return lay_is_zero(xb->bytes + used, LAY_PAYLOAD - used) ? 0 : lay_bad(why, "unused bytes");
}

const struct lay_xattr *lay_xattr_next(const struct lay_xattr_block *xb,
                                       const struct lay_xattr *prev)
{
    size_t pos = 0;

    if (prev)
        pos = (size_t)((const uint8_t *)prev - xb->bytes) + lay_get16(prev->len);
    if (pos >= lay_get16(xb->used))
        return NULL;
    return (const struct lay_xattr *)(xb->bytes + pos);
}

int lay_check_symlink_block(const struct lay_geometry *geo, const struct lay_symlink_block *sl,
                            uint64_t addr, uint64_t owner, const char **why)
{
    int err = lay_check_head(sl, LAY_MAGIC_SYMLINK, geo->uuid, addr, owner, why);

    if (err)
        return err;
    uint32_t len = lay_get32(sl->len);
    if (len <= LAY_MAP_BYTES || len > LAY_PAYLOAD)
        return lay_bad(why, "len");
    if (!lay_is_zero(sl->reserved, sizeof(sl->reserved)))
        return lay_bad(why, "reserved");
    if (memchr(sl->bytes, 0, len))
        return lay_bad(why, "target");
    return lay_is_zero(sl->bytes + len, LAY_PAYLOAD - len) ? 0 : lay_bad(why, "unused bytes");
}
