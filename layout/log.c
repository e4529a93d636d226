/* SPDX-License-Identifier: BSD-2-Clause */
/* Makes and checks blocks of the log (FORMAT.md 10). */
#include <string.h>

#include "layout/check.h"
#include "layout/layout.h"

/* The records share their first fields, so that one function may use either of them. */
static_assert(offsetof(struct lay_log_descriptor, log_id) ==
                  offsetof(struct lay_log_commit, log_id),
              "log_id");
static_assert(offsetof(struct lay_log_descriptor, incarnation) ==
                  offsetof(struct lay_log_commit, incarnation),
              "incarnation");

void lay_log_init(void *block, uint32_t magic, const struct lay_geometry *geo,
                  const struct lay_incarnation *incarnation, uint64_t pos)
{
    struct lay_log_commit *record = block;

    memset(block, 0, LAY_BLOCK_SIZE);
    lay_head_init(&record->head, magic, geo->uuid, LAY_ADDR(LAY_KIND_LOG, pos), 0);
    record->log_id = lay_put64(geo->log_id);
    record->incarnation = *incarnation;
}

uint32_t lay_log_chain(uint32_t crc, const void *block)
{
    const struct lay_head *head = block;

    return lay_crc32c(crc, &head->crc, sizeof(head->crc));
}

uint64_t lay_log_unused_last(const struct lay_geometry *geo)
{
    uint64_t last = geo->log_blocks - 1;

    return last < LAY_UNUSED_LAST ? last : LAY_UNUSED_LAST;
}

void lay_log_fill_unused(const struct lay_geometry *geo, uint64_t pos, struct lay_log_unused *out)
{
    le64 seed;

    memcpy(&seed, geo->uuid, sizeof(seed));
    uint64_t word = lay_get64(seed) + pos * LAY_UNUSED_WORDS;
    memset(out, 0, sizeof(*out));
    lay_head_init(&out->head, LAY_MAGIC_JUNUSED, geo->uuid, LAY_ADDR(LAY_KIND_LOG, pos), 0);
    for (size_t i = 0; i < LAY_UNUSED_WORDS; i++)
        out->words[i] = lay_put64(word++);
    lay_seal(out, 0);
}

/* Checks the fields that both records have. */
static int log_record(const struct lay_geometry *geo, const void *block, uint32_t magic,
                      uint64_t pos, uint64_t tid, const char **why)
{
    const struct lay_log_commit *record = block;

    if (pos >= geo->log_blocks)
        return lay_bad(why, "position outside the log");
    int err = lay_check_head(block, magic, geo->uuid, LAY_ADDR(LAY_KIND_LOG, pos), 0, why);
    if (err)
        return err;
    if (lay_get64(record->head.tid) != tid || tid == 0 || tid > LAY_MAX_TID)
        return lay_bad(why, "tid");
    if (lay_get64(record->log_id) != geo->log_id)
        return lay_bad(why, "log_id");
    if (!lay_incarnation_ok(&record->incarnation))
        return lay_bad(why, "incarnation");
    return 0;
}

int lay_check_descriptor(const struct lay_geometry *geo, const struct lay_log_descriptor *d,
                         uint64_t pos, uint64_t tid, const char **why)
{
    int err = log_record(geo, d, LAY_MAGIC_JDESC, pos, tid, why);

    if (err)
        return err;
    uint32_t count = lay_get32(d->count);
    if (count < 1 || count > LAY_LOG_TAGS)
        return lay_bad(why, "count");
    if (lay_get32(d->reserved) != 0)
        return lay_bad(why, "reserved");
    for (uint32_t i = 0; i < count; i++) {
        if (!lay_home_ok(geo, lay_get64(d->tags[i].block)))
            return lay_bad(why, "tag.block");
        if (lay_get32(d->tags[i].age) == 0)
            return lay_bad(why, "tag.age");
        if (lay_get32(d->tags[i].reserved) != 0)
            return lay_bad(why, "tag.reserved");
    }
    size_t unused = (LAY_LOG_TAGS - count) * sizeof(d->tags[0]);
    return lay_is_zero(&d->tags[count], unused) ? 0 : lay_bad(why, "unused bytes");
}

int lay_check_commit(const struct lay_geometry *geo, const struct lay_log_commit *c, uint64_t pos,
                     uint64_t tid, const char **why)
{
    int err = log_record(geo, c, LAY_MAGIC_JCOMMIT, pos, tid, why);

    if (err)
        return err;
    uint32_t blocks = lay_get32(c->blocks);
    if (blocks < 1 || blocks > geo->log_blocks || (blocks == 1 && lay_get32(c->crc) != 0))
        return lay_bad(why, "blocks");
    if (lay_get64(c->tail_tid) == 0 || lay_get64(c->tail_tid) > tid)
        return lay_bad(why, "tail_tid");
    if (lay_get64(c->tail_pos) >= geo->log_blocks)
        return lay_bad(why, "tail_pos");
    if (lay_get32(c->super_age) == 0)
        return lay_bad(why, "super_age");
    if (!lay_time_ok(c->time))
        return lay_bad(why, "time");
    if (lay_get32(c->reserved) != 0 || !lay_is_zero(c->reserved2, sizeof(c->reserved2)))
        return lay_bad(why, "reserved");
    return 0;
}

/* Returns true if a block of this kind and owner belongs at the address. */
static bool log_kind_ok(uint32_t magic, uint64_t addr, uint64_t owner)
{
    if (lay_addr_kind(addr) != LAY_KIND_CHUNK || lay_addr_index(addr) == 0)
        return magic == lay_magic_of(addr) && owner == 0;
    switch (magic) {
    case LAY_MAGIC_INODES:
        return owner % LAY_INODES_PER_BLOCK == 0;
    case LAY_MAGIC_EXTENTS:
        return true;
    case LAY_MAGIC_DIR:
    case LAY_MAGIC_XATTR:
    case LAY_MAGIC_SYMLINK:
        return owner != 0;
    default:
        return false;
    }
}

int lay_check_image(const struct lay_geometry *geo, const struct lay_tag *tag, const void *image,
                    uint64_t tid, const char **why)
{
    const struct lay_head *head = image;
    uint32_t magic = lay_get32(head->magic);
    uint64_t addr = lay_get64(tag->block);
    int err = lay_check_head(image, magic, geo->uuid, addr, LAY_ANY_OWNER, why);

    if (err)
        return err;
    if (lay_age(image) != lay_get32(tag->age))
        return lay_bad(why, "age");
    if (!lay_home_ok(geo, addr) || !log_kind_ok(magic, addr, lay_get64(head->owner)))
        return lay_bad(why, "kind of block");
    if (lay_get64(head->tid) != tid)
        return lay_bad(why, "tid");
    return magic == LAY_MAGIC_SUPER ? lay_check_super(image, geo, NULL, why) : 0;
}
