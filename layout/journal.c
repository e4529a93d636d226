/* SPDX-License-Identifier: BSD-2-Clause */
/* Checks journal blocks (FORMAT.md 10). */
#include <assert.h>
#include <string.h>

#include "layout/check.h"
#include "layout/layout.h"

uint64_t lay_journal_next(const struct lay_geometry *geo, uint64_t pos)
{
    assert(pos >= 1 && pos < geo->journal_blocks);
    return pos + 1 == geo->journal_blocks ? 1 : pos + 1;
}

uint32_t lay_journal_chain(uint32_t crc, const void *block)
{
    const struct lay_head *head = block;

    crc = lay_crc32c(crc, &head->crc, sizeof(head->crc));
    if (lay_get32(head->magic) != LAY_MAGIC_JDESC)
        return crc;
    const struct lay_journal_desc *desc = block;
    for (uint32_t i = 0; i < lay_get32(desc->count); i++)
        crc = lay_crc32c(crc, &desc->tags[i].crc, sizeof(desc->tags[i].crc));
    return crc;
}

uint64_t lay_journal_unused_last(const struct lay_geometry *geo)
{
    uint64_t last = geo->journal_blocks - 1;

    return last < LAY_JUNUSED_LAST ? last : LAY_JUNUSED_LAST;
}

void lay_journal_fill_unused(const struct lay_geometry *geo, uint64_t addr,
                             struct lay_journal_unused *out)
{
    le64 seed;

    memcpy(&seed, geo->hash_seed, sizeof(seed));
    uint64_t word = lay_get64(seed) + addr * LAY_JUNUSED_WORDS;
    memset(out, 0, sizeof(*out));
    lay_head_init(&out->head, LAY_MAGIC_JUNUSED, geo->uuid, addr, 0);
    for (size_t i = 0; i < LAY_JUNUSED_WORDS; i++)
        out->words[i] = lay_put64(word++);
    lay_seal(out, 0);
}

static bool is_bitmap(const struct lay_geometry *geo, uint64_t block)
{
    return block >= geo->bitmap_start && block - geo->bitmap_start < geo->bitmap_blocks;
}

static bool is_sums(const struct lay_geometry *geo, uint64_t block)
{
    return block >= geo->sums_start && block - geo->sums_start < geo->sums_blocks;
}

/*
 * True if the log may hold an image of the block, which must not belong to the
 * journal or be a superblock copy.
 */
static bool target_ok(const struct lay_geometry *geo, uint64_t block)
{
    return block == 0 || is_bitmap(geo, block) || is_sums(geo, block) ||
           lay_range_ok(geo, block, 1);
}

/* Checks the head, address and transaction of a block in the log. */
static int check_log_head(const struct lay_geometry *geo, const void *block, uint32_t magic,
                          uint64_t addr, uint64_t tid, const char **why)
{
    const struct lay_head *head = block;

    if (addr <= geo->journal_start || addr - geo->journal_start >= geo->journal_blocks)
        return lay_bad(why, "address outside the log");
    int err = lay_check_head(block, magic, geo->uuid, addr, 0, why);
    if (err)
        return err;
    return lay_get64(head->tid) == tid ? 0 : lay_bad(why, "tid");
}

int lay_check_journal(const struct lay_geometry *geo, const struct lay_journal *j, const char **why)
{
    int err = lay_check_head(j, LAY_MAGIC_JOURNAL, geo->uuid, geo->journal_start, 0, why);

    if (err)
        return err;
    if (lay_get64(j->tail_tid) == 0 || lay_get64(j->tail_tid) > LAY_MAX_TID)
        return lay_bad(why, "tail_tid");
    if (lay_get64(j->tail_pos) < 1 || lay_get64(j->tail_pos) >= geo->journal_blocks)
        return lay_bad(why, "tail_pos");
    if (lay_get64(j->super_tid) >= lay_get64(j->tail_tid))
        return lay_bad(why, "super_tid");
    return lay_is_zero(j->reserved, sizeof(j->reserved)) ? 0 : lay_bad(why, "reserved");
}

int lay_check_journal_desc(const struct lay_geometry *geo, const struct lay_journal_desc *d,
                           uint64_t addr, uint64_t tid, const char **why)
{
    int err = check_log_head(geo, d, LAY_MAGIC_JDESC, addr, tid, why);

    if (err)
        return err;
    uint32_t count = lay_get32(d->count);
    if (count < 1 || count > LAY_JDESC_TAGS)
        return lay_bad(why, "count");
    if (!lay_is_zero(d->reserved, sizeof(d->reserved)))
        return lay_bad(why, "reserved");
    for (uint32_t i = 0; i < count; i++) {
        if (!target_ok(geo, lay_get64(d->tags[i].block)))
            return lay_bad(why, "tag.block");
        if (lay_get32(d->tags[i].reserved) != 0)
            return lay_bad(why, "tag.reserved");
    }
    size_t unused = (LAY_JDESC_TAGS - count) * sizeof(d->tags[0]);
    return lay_is_zero(&d->tags[count], unused) ? 0 : lay_bad(why, "unused bytes");
}

/* True if a block of this kind and owner belongs at `block`. */
static bool place_ok(const struct lay_geometry *geo, uint32_t magic, uint64_t block, uint64_t owner)
{
    switch (magic) {
    case LAY_MAGIC_SUPER:
        return block == 0 && owner == 0;
    case LAY_MAGIC_BITMAP:
        return is_bitmap(geo, block) && owner == 0;
    case LAY_MAGIC_SUMS:
        return is_sums(geo, block) && owner == 0;
    case LAY_MAGIC_INODES:
        return lay_range_ok(geo, block, 1) && owner % LAY_INODES_PER_BLOCK == 0;
    case LAY_MAGIC_EXTENTS:
        return lay_range_ok(geo, block, 1);
    case LAY_MAGIC_DIR:
    case LAY_MAGIC_XATTR:
    case LAY_MAGIC_SYMLINK:
        return lay_range_ok(geo, block, 1) && owner != 0;
    default:
        return false;
    }
}

/* Checks a superblock image, whose shape a transaction never changes. */
static int check_super_image(const struct lay_geometry *geo, const void *image, const char **why)
{
    struct lay_geometry own;

    if (lay_check_super(image, 0, 0, &own, NULL, why) != 0)
        return -EUCLEAN;
    return lay_same_shape(&own, geo) ? 0 : lay_bad(why, "superblock of another shape");
}

int lay_check_journal_image(const struct lay_geometry *geo, const struct lay_journal_tag *tag,
                            const void *image, uint64_t addr, uint64_t tid, const char **why)
{
    const struct lay_head *head = image;
    uint32_t magic = lay_get32(head->magic);
    uint64_t block = lay_get64(tag->block);

    if (lay_get32(tag->crc) != lay_block_crc(geo->uuid, addr, image))
        return lay_bad(why, "tag.crc");
    int err = lay_check_head(image, magic, geo->uuid, block, LAY_ANY_OWNER, why);
    if (err)
        return err;
    if (!place_ok(geo, magic, block, lay_get64(head->owner)))
        return lay_bad(why, "kind of block");
    if (lay_get64(head->tid) != tid)
        return lay_bad(why, "tid");
    return magic == LAY_MAGIC_SUPER ? check_super_image(geo, image, why) : 0;
}

int lay_check_journal_revoke(const struct lay_geometry *geo, const struct lay_journal_revoke *r,
                             uint64_t addr, uint64_t tid, const char **why)
{
    int err = check_log_head(geo, r, LAY_MAGIC_JREVOKE, addr, tid, why);

    if (err)
        return err;
    uint32_t count = lay_get32(r->count);
    if (count < 1 || count > LAY_JREVOKE_MAX)
        return lay_bad(why, "count");
    if (!lay_is_zero(r->reserved, sizeof(r->reserved)))
        return lay_bad(why, "reserved");
    for (uint32_t i = 0; i < count; i++) {
        if (!lay_range_ok(geo, lay_get64(r->blocks[i]), 1))
            return lay_bad(why, "revoked block");
    }
    size_t unused = (LAY_JREVOKE_MAX - count) * sizeof(r->blocks[0]);
    return lay_is_zero(&r->blocks[count], unused) ? 0 : lay_bad(why, "unused bytes");
}

int lay_check_journal_commit(const struct lay_geometry *geo, const struct lay_journal_commit *c,
                             uint64_t addr, uint64_t tid, const char **why)
{
    int err = check_log_head(geo, c, LAY_MAGIC_JCOMMIT, addr, tid, why);

    if (err)
        return err;
    if (lay_get32(c->blocks) < 2 || lay_get32(c->blocks) >= geo->journal_blocks)
        return lay_bad(why, "blocks");
    if (!lay_time_ok(c->time))
        return lay_bad(why, "time");
    if (lay_get64(c->reserved) != 0 || !lay_is_zero(c->reserved2, sizeof(c->reserved2)))
        return lay_bad(why, "reserved");
    return 0;
}
