/* SPDX-License-Identifier: BSD-2-Clause */
/* Checks the superblock and its copies (FORMAT.md 4). */
#include <string.h>

#include "layout/check.h"
#include "layout/layout.h"

/* Returns the number of bytes after a UTF-8 lead byte; -1: none is one. */
static int utf8_tail(uint8_t lead)
{
    if (lead < 0x80)
        return 0;
    if (lead >= 0xc2 && lead < 0xe0)
        return 1;
    if (lead >= 0xe0 && lead < 0xf0)
        return 2;
    return lead >= 0xf0 && lead < 0xf5 ? 3 : -1;
}

/* False for an overlong form, a surrogate, or one past U+10FFFF. */
static bool utf8_second_ok(uint8_t lead, uint8_t second)
{
    uint8_t lo = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    uint8_t hi = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;

    return second >= lo && second <= hi;
}

bool lay_text_ok(const char *text, size_t len)
{
    const uint8_t *s = (const uint8_t *)text;

    for (size_t i = 0; i < len; i++) {
        int tail = utf8_tail(s[i]);
        if (s[i] < 0x20 || s[i] == 0x7f || tail < 0 || (size_t)tail > len - i - 1)
            return false;
        if (tail > 0 && !utf8_second_ok(s[i], s[i + 1]))
            return false;
        for (int k = 2; k <= tail; k++) {
            if ((s[i + (size_t)k] & 0xc0) != 0x80)
                return false;
        }
        i += (size_t)tail;
    }
    return true;
}

bool lay_label_ok(const char *label, size_t len)
{
    return len <= LAY_LABEL_MAX && lay_text_ok(label, len);
}

static bool label_field_ok(const char *label)
{
    size_t len = strnlen(label, LAY_LABEL_MAX + 1);

    return lay_label_ok(label, len) && lay_is_zero(label + len, LAY_LABEL_MAX + 1 - len);
}

static void read_geometry(const struct lay_super *sb, struct lay_geometry *geo)
{
    memset(geo, 0, sizeof(*geo));
    memcpy(geo->uuid, sb->head.uuid, sizeof(geo->uuid));
    memcpy(geo->hash_seed, sb->hash_seed, sizeof(geo->hash_seed));
    geo->blocks = lay_get64(sb->blocks);
    geo->bitmap_start = lay_get64(sb->bitmap_start);
    geo->bitmap_blocks = lay_get64(sb->bitmap_blocks);
    geo->journal_start = lay_get64(sb->journal_start);
    geo->journal_blocks = lay_get64(sb->journal_blocks);
    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++)
        geo->copies[i] = lay_get64(sb->copies[i]);
    geo->sums_start = lay_get64(sb->sums_start);
    geo->sums_blocks = lay_get64(sb->sums_blocks);
    geo->compat = lay_get64(sb->compat);
    geo->ro_compat = lay_get64(sb->ro_compat);
    geo->incompat = lay_get64(sb->incompat);
    memcpy(geo->label, sb->label, sizeof(geo->label));
}

/* Another version may define the other fields differently. */
static int check_version(const struct lay_super *sb, uint64_t *features, const char **why)
{
    uint64_t unknown = lay_get64(sb->incompat) & ~LAY_FEATURE_INCOMPAT;

    if (features)
        *features = unknown;
    if (lay_get16(sb->version_major) != LAY_VERSION_MAJOR) {
        lay_bad(why, "version_major");
        return -ENOTSUP;
    }
    if (unknown) {
        lay_bad(why, "incompat");
        return -ENOTSUP;
    }
    return 0;
}

/* Checks that only sections with groups have a sum. */
static int check_sections(const struct lay_super *sb, const struct lay_geometry *geo,
                          const char **why)
{
    uint64_t each = lay_section_groups(geo);
    uint64_t sections = (lay_groups(geo) + each - 1) / each;
    size_t unused = (LAY_BITMAP_SECTIONS - sections) * sizeof(sb->bitmap_tids[0]);

    return lay_is_zero(sb->bitmap_tids + sections, unused) ? 0 : lay_bad(why, "bitmap_tids");
}

static int check_devices(const struct lay_super *sb, const char **why)
{
    if (lay_get32(sb->device_count) != 1)
        return lay_bad(why, "device_count");
    if (lay_get64(sb->devices[0].blocks) != lay_get64(sb->blocks) ||
        lay_get64(sb->devices[0].reserved) != 0 ||
        memcmp(sb->devices[0].uuid, sb->head.uuid, sizeof(sb->head.uuid)) != 0 ||
        !lay_is_zero(&sb->devices[1], sizeof(sb->devices) - sizeof(sb->devices[0])))
        return lay_bad(why, "devices");
    return 0;
}

/* Checks the counters and list heads, which change while mounted. */
static int check_counters(const struct lay_super *sb, const char **why)
{
    uint64_t file_blocks = lay_get64(sb->inode_file.size) >> LAY_BLOCK_SHIFT;
    uint64_t first_free = lay_get64(sb->free_inode_block);
    uint64_t orphan = lay_get64(sb->orphan);

    if (lay_get64(sb->head.tid) > LAY_MAX_TID)
        return lay_bad(why, "tid");
    if (lay_get32(sb->state) & ~(LAY_STATE_CLEAN | LAY_STATE_ERROR))
        return lay_bad(why, "state");
    if (lay_get64(sb->free_blocks) >= lay_get64(sb->blocks))
        return lay_bad(why, "free_blocks");
    if (lay_get64(sb->inodes) < 1 || lay_get64(sb->inodes) >= file_blocks * LAY_INODES_PER_BLOCK)
        return lay_bad(why, "inodes");
    if (first_free != LAY_NONE && first_free >= file_blocks)
        return lay_bad(why, "free_inode_block");
    if (orphan != LAY_NONE &&
        (orphan <= LAY_INO_ROOT || orphan >= file_blocks * LAY_INODES_PER_BLOCK))
        return lay_bad(why, "orphan");
    if (!lay_time_ok(sb->created))
        return lay_bad(why, "created");
    return lay_time_ok(sb->mounted) ? 0 : lay_bad(why, "mounted");
}

static int check_fields(const struct lay_super *sb, const struct lay_geometry *geo,
                        const char **why)
{
    if (lay_get32(sb->block_size) != LAY_BLOCK_SIZE)
        return lay_bad(why, "block_size");
    if (geo->blocks < LAY_MIN_BLOCKS || geo->blocks > LAY_MAX_BLOCKS)
        return lay_bad(why, "blocks");
    int err = lay_check_areas(geo, why);
    if (!err)
        err = check_devices(sb, why);
    if (!err)
        err = check_sections(sb, geo, why);
    if (!err)
        err = lay_check_inode(geo, &sb->inode_file, 0, why);
    if (!err)
        err = check_counters(sb, why);
    if (err)
        return err;
    if (!label_field_ok(sb->label))
        return lay_bad(why, "label");
    /* Features that this version may ignore can use bytes of the reserved area. */
    bool plain = !(geo->compat & ~LAY_FEATURE_COMPAT) && !(geo->ro_compat & ~LAY_FEATURE_RO_COMPAT);
    if (plain && !lay_is_zero(sb->reserved, sizeof(sb->reserved)))
        return lay_bad(why, "reserved");
    return 0;
}

int lay_check_super(const struct lay_super *sb, uint64_t addr, uint64_t device_blocks,
                    struct lay_geometry *geo, uint64_t *features, const char **why)
{
    if (features)
        *features = 0;
    if (lay_get32(sb->head.magic) != LAY_MAGIC_SUPER) {
        lay_bad(why, "magic");
        return -EINVAL;
    }
    int err = lay_check_head(sb, LAY_MAGIC_SUPER, sb->head.uuid, addr, 0, why);
    if (!err)
        err = check_version(sb, features, why);
    if (err)
        return err;
    struct lay_geometry read;
    read_geometry(sb, &read);
    err = check_fields(sb, &read, why);
    if (err)
        return err;
    if (addr != 0 && addr != read.copies[0] && addr != read.copies[1])
        return lay_bad(why, "copies");
    if (device_blocks != 0 && read.blocks > device_blocks)
        return lay_bad(why, "blocks: more than the device has");
    *geo = read;
    return 0;
}

bool lay_super_magic(const struct lay_super *sb)
{
    return __builtin_popcount(lay_get32(sb->head.magic) ^ LAY_MAGIC_SUPER) <= 1;
}

bool lay_same_shape(const struct lay_geometry *a, const struct lay_geometry *b)
{
    return memcmp(a, b, offsetof(struct lay_geometry, compat)) == 0;
}

void lay_super_places(uint64_t device_blocks, uint64_t places[LAY_SUPER_COPIES])
{
    uint64_t groups = (device_blocks + LAY_GROUP_BLOCKS - 1) / LAY_GROUP_BLOCKS;

    places[0] = groups > 1 ? groups / 2 * LAY_GROUP_BLOCKS : device_blocks / 2;
    places[1] = device_blocks ? device_blocks - 1 : 0;
}
