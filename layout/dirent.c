/* SPDX-License-Identifier: BSD-2-Clause */
/* Checks names and the records of directory leaves (FORMAT.md 7). */
#include <assert.h>
#include <dirent.h>
#include <string.h>

#include "layout/check.h"
#include "layout/layout.h"

/* d_off is a positive off_t. The low byte distinguishes equal hashes. */
#define KEY_HASH_MASK 0x7fffffffffffff00ull

uint64_t lay_name_key(const uint8_t hash_seed[16], const char *name, size_t len)
{
    uint64_t key = lay_siphash(hash_seed, name, len) >> 1 & KEY_HASH_MASK;

    return key < LAY_DIR_KEY_MIN ? LAY_DIR_KEY_MIN : key;
}

bool lay_name_ok(const char *name, size_t len)
{
    if (len < 1 || len > LAY_NAME_MAX)
        return false;
    if (name[0] == '.' && (len == 1 || (len == 2 && name[1] == '.')))
        return false;
    return !memchr(name, '/', len) && !memchr(name, 0, len);
}

bool lay_type_ok(unsigned type)
{
    switch (type) {
    case DT_FIFO:
    case DT_CHR:
    case DT_DIR:
    case DT_BLK:
    case DT_REG:
    case DT_LNK:
    case DT_SOCK:
        return true;
    default:
        return false;
    }
}

/* Checks one record; `room` bytes are left in the used part of the leaf. */
static int check_dirent(const struct lay_geometry *geo, const struct lay_dirent *d, size_t room,
                        const char **why)
{
    const char *name = (const char *)d->name;

    if (room < sizeof(*d) || lay_get16(d->len) > room)
        return lay_bad(why, "dirent past the used bytes");
    if (lay_get16(d->len) != LAY_DIRENT_LEN(d->name_len))
        return lay_bad(why, "dirent.len");
    if (!lay_name_ok(name, d->name_len))
        return lay_bad(why, "dirent.name");
    size_t end = offsetof(struct lay_dirent, name) + d->name_len;
    if (!lay_is_zero(name + d->name_len, lay_get16(d->len) - end))
        return lay_bad(why, "dirent padding");
    if (!lay_type_ok(d->type))
        return lay_bad(why, "dirent.type");
    uint64_t ino = lay_get64(d->ino);
    if (ino < LAY_INO_ROOT + 1 || ino >= geo->blocks * LAY_INODES_PER_BLOCK)
        return lay_bad(why, "dirent.ino");
    if ((lay_get64(d->key) & ~0xffull) != lay_name_key(geo->hash_seed, name, d->name_len))
        return lay_bad(why, "dirent.key: not the hash of the name");
    return 0;
}

int lay_check_dirents(const struct lay_geometry *geo, const struct lay_node *leaf, uint64_t lo,
                      uint64_t hi, const char **why)
{
    uint32_t used = lay_get32(leaf->used);
    unsigned count = 0;
    uint64_t above = 0; /* keys are at least LAY_DIR_KEY_MIN */

    for (uint32_t pos = 0; pos < used; count++) {
        const struct lay_dirent *d = (const struct lay_dirent *)(leaf->u.bytes + pos);
        int err = check_dirent(geo, d, used - pos, why);
        if (err)
            return err;
        uint64_t key = lay_get64(d->key);
        if (key <= above)
            return lay_bad(why, "dirent.key: out of order");
        if (key < lo || key > hi)
            return lay_bad(why, "dirent.key: not in the node's range");
        above = key;
        pos += lay_get16(d->len);
    }
    return count == lay_get16(leaf->count) ? 0 : lay_bad(why, "count");
}

const struct lay_dirent *lay_dirent_next(const struct lay_node *leaf, const struct lay_dirent *prev)
{
    assert(lay_get16(leaf->level) == 0);
    size_t pos = 0;
    if (prev)
        pos = (size_t)((const uint8_t *)prev - leaf->u.bytes) + lay_get16(prev->len);
    if (pos >= lay_get32(leaf->used))
        return NULL;
    return (const struct lay_dirent *)(leaf->u.bytes + pos);
}
