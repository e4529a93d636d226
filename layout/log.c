/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Makes, checks and reads blocks of the log (FORMAT.md 10).
 *
 * A transaction counts if its blocks follow each other, are sound, and have its
 * number and one incarnation. The last block must be a commit that states the
 * number of blocks and the checksum over the descriptors. All transactions from
 * the tail of the newest commit up to that commit must satisfy these rules.
 */
#include <errno.h>
#include <string.h>

#include "layout/check.h"
#include "layout/correct.h"
#include "layout/layout.h"
#include "layout/log_reader.h"

/* The records share their first fields, so that one function may use either record. */
static_assert(offsetof(struct lay_log_descriptor, log_id) ==
                  offsetof(struct lay_log_commit, log_id),
              "log_id");
static_assert(offsetof(struct lay_log_descriptor, incarnation) ==
                  offsetof(struct lay_log_commit, incarnation),
              "incarnation");

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

/* Holds the state of the transaction that is being read. */
struct reading {
    struct lay_log *log;
    struct lay_log_tx tx;
    struct lay_incarnation incarnation; /* of its records, or 0 before the first one */
    uint64_t pos;                       /* log position of the next block */
    uint32_t chain;                     /* checksum over the records so far, for the commit block */
    bool exact;                         /* nothing is corrected, and no lack is reported */
};

static int reader_gap(struct lay_log *log, const char *why)
{
    log->why = why;
    return -EUCLEAN;
}

static struct lay_log_mark reader_mark(const struct lay_log_commit *c, uint64_t pos)
{
    return (struct lay_log_mark){
        .tid = lay_get64(c->head.tid),
        .pos = pos,
        .counter = lay_get64(c->incarnation.counter),
        .id = lay_get64(c->incarnation.id),
        .tail_tid = lay_get64(c->tail_tid),
        .tail_pos = lay_get64(c->tail_pos),
        .super_age = lay_get32(c->super_age),
        .blocks = lay_get32(c->blocks),
        .time = c->time,
    };
}

/* Returns true if commit m is newer than commit `than`, whose tid is 0 if there is none. */
static bool reader_is_newer(const struct lay_log_mark *m, const struct lay_log_mark *than)
{
    return m->counter != than->counter ? m->counter > than->counter : m->tid > than->tid;
}

/* Corrects one bit of a block, in log->fixed. The caller checks the result. */
static const void *reader_correct(struct lay_log *log, const void *block, uint64_t addr)
{
    memcpy(&log->fixed, block, sizeof(log->fixed));
    return lay_correct(log->geo->uuid, addr, &log->fixed) < 0 ? NULL : &log->fixed;
}

/*
 * Advances by one block. Returns -EUCLEAN if the transaction would be longer
 * than the log.
 */
static int reader_advance(struct reading *r)
{
    if (++r->tx.blocks > r->log->left)
        return -EUCLEAN;
    r->pos = lay_log_after(r->log->geo, r->pos);
    return 0;
}

/* Checks a block of the transaction, which is a record if `tag` is NULL. */
static int reader_check(const struct reading *r, const struct lay_tag *tag, const void *block)
{
    const struct lay_log_commit *record = block;
    const struct lay_geometry *geo = r->log->geo;

    if (tag)
        return lay_check_image(geo, tag, block, r->tx.tid, NULL);
    int err = lay_get32(record->head.magic) == LAY_MAGIC_JDESC
                  ? lay_check_descriptor(geo, block, r->pos, r->tx.tid, NULL)
                  : lay_check_commit(geo, block, r->pos, r->tx.tid, NULL);

    if (err || lay_get64(r->incarnation.counter) == 0)
        return err;
    return memcmp(&record->incarnation, &r->incarnation, sizeof(r->incarnation)) ? -EUCLEAN : 0;
}

/*
 * Reads the block at r->pos from all logs. Returns a bit for each log whose
 * block is not sound, or a negative error. Two incarnations may have used the
 * number of the transaction. If the logs have a first record of each, the older
 * record counts as not sound.
 */
static int reader_peek(const struct reading *r, const struct lay_tag *tag,
                       const void *found[LAY_LOGS])
{
    const struct lay_log *log = r->log;
    int bad = 0;

    for (unsigned i = 0; i < lay_logs(log->geo); i++) {
        int err = log->calls->block(log->arg, i, r->pos, &found[i]);
        if (err)
            return err;
        if (!found[i] || reader_check(r, tag, found[i]) != 0)
            bad |= 1 << i;
    }
    if (bad || tag || lay_logs(log->geo) == 1)
        return bad;
    const struct lay_log_commit *a = found[0], *b = found[1];
    uint64_t first = lay_get64(a->incarnation.counter), second = lay_get64(b->incarnation.counter);
    return first < second ? 1 : first > second ? 2 : 0;
}

/* Finds a block that is sound after the correction of one flipped bit. */
static int reader_get_corrected(struct reading *r, const struct lay_tag *tag,
                                const void *const found[LAY_LOGS], const void **block)
{
    uint64_t addr = tag ? lay_get64(tag->block) : LAY_ADDR(LAY_KIND_LOG, r->pos);

    for (unsigned i = 0; i < lay_logs(r->log->geo); i++) {
        *block = found[i] ? reader_correct(r->log, found[i], addr) : NULL;
        if (*block && reader_check(r, tag, *block) == 0) {
            r->log->corrected++;
            return 0;
        }
    }
    return -EUCLEAN;
}

/*
 * Reads the block at r->pos, which is a record if `tag` is NULL. Stores the
 * block of the first log in which it is sound, or else a corrected block.
 */
static int reader_get(struct reading *r, const struct lay_tag *tag, const void **block)
{
    const struct lay_log *log = r->log;
    const void *found[LAY_LOGS];
    int bad = reader_peek(r, tag, found);

    if (bad < 0)
        return bad;
    if (bad == (1 << lay_logs(log->geo)) - 1)
        return r->exact ? -EUCLEAN : reader_get_corrected(r, tag, found, block);
    *block = found[bad & 1];
    return bad && !r->exact ? log->calls->lacks(log->arg, bad >> 1, r->pos) : 0;
}

static int reader_image(struct reading *r, const struct lay_tag *tag)
{
    const struct lay_log *log = r->log;
    const void *data;
    int err = reader_get(r, tag, &data);

    if (!err)
        err = log->calls->image(log->arg, lay_get64(tag->block), r->pos, data);
    if (err)
        return err;
    r->tx.images++;
    return reader_advance(r);
}

static int reader_descriptor(struct reading *r, const void *block)
{
    /*
     * The descriptor is copied, because reading the next block may overwrite
     * the original.
     */
    struct lay_log_descriptor desc;

    memcpy(&desc, block, sizeof(desc));
    int err = reader_advance(r);
    for (uint32_t i = 0; i < lay_get32(desc.count) && !err; i++)
        err = reader_image(r, &desc.tags[i]);
    return err;
}

static int reader_commit(struct reading *r, const struct lay_log_commit *commit)
{
    if (lay_get32(commit->crc) != r->chain || lay_get32(commit->blocks) != r->tx.blocks + 1)
        return -EUCLEAN;
    r->tx.commit = reader_mark(commit, r->pos);
    return reader_advance(r);
}

/* Reads a transaction. Returns -EUCLEAN if the transaction is missing or incomplete. */
static int reader_transaction(struct reading *r)
{
    for (;;) {
        const void *block;
        int err = reader_get(r, NULL, &block);
        if (err)
            return err;
        const struct lay_log_commit *record = block;
        r->incarnation = record->incarnation;
        if (lay_get32(record->head.magic) == LAY_MAGIC_JCOMMIT)
            return reader_commit(r, record);
        r->chain = lay_log_chain(r->chain, record);
        err = reader_descriptor(r, record);
        if (err)
            return err;
    }
}

void lay_log_open(struct lay_log *log, const struct lay_geometry *geo,
                  const struct lay_incarnation *label, const struct lay_log_calls *calls, void *arg)
{
    memset(log, 0, sizeof(*log));
    log->geo = geo;
    log->calls = calls;
    log->arg = arg;
    log->label = *label;
    log->left = geo->log_blocks;
}

/* --- The newest commit ----------------------------------------------------------------------- */

/*
 * Remembers a commit with one flipped bit if it is newer. The records of its
 * transaction were durable before the commit was written. If these records are
 * incomplete, the log is damaged.
 */
static void reader_take_corrected(struct lay_log *log, const void *block, uint64_t pos)
{
    const struct lay_head *head = block;

    if (__builtin_popcount(lay_get32(head->magic) ^ LAY_MAGIC_JCOMMIT) > 1 ||
        !reader_correct(log, block, LAY_ADDR(LAY_KIND_LOG, pos)))
        return;
    struct lay_log_mark mark = reader_mark(&log->fixed.commit, pos);
    if (lay_check_commit(log->geo, &log->fixed.commit, pos, mark.tid, NULL) == 0 &&
        reader_is_newer(&mark, &log->newest))
        log->newest = mark;
}

/* Remembers a sound commit that belongs at another position of the log. */
static void reader_note_stray(const struct lay_log *log, const struct lay_log_commit *c,
                              struct lay_log_mark *stray)
{
    uint64_t addr = lay_get64(c->head.block);
    struct lay_log_mark mark = reader_mark(c, lay_addr_number(addr));

    if (lay_addr_kind(addr) == LAY_KIND_LOG && reader_is_newer(&mark, stray) &&
        lay_check_commit(log->geo, c, mark.pos, mark.tid, NULL) == 0)
        *stray = mark;
}

/* Looks for the newest commit in one log. */
static int reader_scan(struct lay_log *log, unsigned i, struct lay_log_mark *stray)
{
    int err = 0;

    for (uint64_t pos = 0; pos < log->geo->log_blocks && !err; pos++) {
        const void *block;
        err = log->calls->block(log->arg, i, pos, &block);
        if (err || !block)
            continue;
        struct lay_log_mark mark = reader_mark(block, pos);
        if (lay_check_commit(log->geo, block, pos, mark.tid, NULL) != 0) {
            reader_note_stray(log, block, stray);
            reader_take_corrected(log, block, pos);
        } else if (reader_is_newer(&mark, &log->newest)) {
            log->newest = mark;
        }
    }
    return err;
}

/* Checks the newest commit. `astray` means that every log has a newer commit elsewhere. */
static int reader_judge(struct lay_log *log, bool astray)
{
    const struct lay_log_mark *m = &log->newest;
    uint64_t label = lay_get64(log->label.counter);

    if (m->tid == 0)
        return reader_gap(log, "no commit was found");
    if (astray)
        return reader_gap(log, "a newer commit was written to a wrong position");
    if (m->counter > label || (m->counter == label && m->id != lay_get64(log->label.id)))
        return reader_gap(log, "newer than the label, of which a write was lost");
    return 0;
}

int lay_log_newest(struct lay_log *log)
{
    struct lay_log_mark strays[LAY_LOGS] = {{0}};
    bool astray = true;
    int err = 0;

    memset(&log->newest, 0, sizeof(log->newest));
    log->ended = log->replace = false;
    log->left = log->geo->log_blocks;
    for (unsigned i = 0; i < lay_logs(log->geo) && !err; i++)
        err = reader_scan(log, i, &strays[i]);
    for (unsigned i = 0; i < lay_logs(log->geo); i++)
        astray = astray && reader_is_newer(&strays[i], &log->newest);
    if (!err)
        err = reader_judge(log, astray);
    log->tid = log->newest.tail_tid;
    log->pos = log->newest.tail_pos;
    log->counter = log->tail_tid = 0;
    return err;
}

/* Returns true if the block may be a later commit, even one with a flipped bit. */
static bool reader_is_later(struct lay_log *log, const void *block, uint64_t pos, uint64_t tid)
{
    const struct lay_log_commit *c = block;

    /* A block that cannot be read does not prove a clean unmount. */
    if (!c)
        return true;
    if (lay_check_commit(log->geo, c, pos, lay_get64(c->head.tid), NULL) != 0)
        c = reader_correct(log, block, LAY_ADDR(LAY_KIND_LOG, pos));
    return c && lay_check_commit(log->geo, c, pos, lay_get64(c->head.tid), NULL) == 0 &&
           lay_get64(c->head.tid) > tid;
}

/*
 * Sets *later to true if a log may have a commit later than transaction tid at
 * a position.
 */
static int reader_has_later(struct lay_log *log, uint64_t pos, uint64_t tid, bool *later)
{
    *later = false;
    for (unsigned i = 0; i < lay_logs(log->geo); i++) {
        const void *block;
        int err = log->calls->block(log->arg, i, pos, &block);
        if (err)
            return err;
        *later = *later || reader_is_later(log, block, pos, tid);
    }
    return 0;
}

int lay_log_clean(struct lay_log *log, const struct lay_super *sb)
{
    uint64_t pos = lay_get64(sb->clean_pos), tid = lay_get64(sb->clean_tid);
    struct reading r = {.log = log, .tx.tid = tid, .pos = pos, .exact = true};
    const void *block;
    bool later;

    if (memcmp(&sb->clean_incarnation, &log->label, sizeof(log->label)) != 0 ||
        pos >= log->geo->log_blocks)
        return 0;
    int err = reader_get(&r, NULL, &block);
    if (err || lay_check_commit(log->geo, block, pos, tid, NULL) != 0)
        return err == -EUCLEAN ? 0 : err;
    struct lay_log_mark mark = reader_mark(block, pos);
    if (mark.super_age != lay_age(sb) || mark.counter != lay_get64(log->label.counter) ||
        mark.id != lay_get64(log->label.id))
        return 0;
    err = reader_has_later(log, lay_log_after(log->geo, pos), tid, &later);
    if (err || later)
        return err;
    /* Logs that lack the commit are reported only now, when no log has a later commit. */
    r.exact = false;
    err = lay_logs(log->geo) > 1 ? reader_get(&r, NULL, &block) : 0;
    if (err)
        return err == -EUCLEAN ? 0 : err;
    log->newest = mark;
    log->tid = tid + 1;
    log->pos = lay_log_after(log->geo, pos);
    log->ended = true;
    return 1;
}

/* --- Transactions ---------------------------------------------------------------------------- */

/* Checks that a transaction continues the previous ones and does not pass the newest commit. */
static int reader_fits(const struct lay_log *log, const struct lay_log_tx *tx)
{
    const struct lay_log_mark *c = &tx->commit, *newest = &log->newest;

    if (c->counter < log->counter || c->counter > newest->counter)
        return -EUCLEAN;
    if (c->tid < newest->tid)
        return 0;
    return c->pos == newest->pos && c->counter == newest->counter ? 0 : -EUCLEAN;
}

int lay_log_next(struct lay_log *log, struct lay_log_tx *tx)
{
    struct reading r = {.log = log, .tx = {.tid = log->tid, .pos = log->pos}, .pos = log->pos};

    if (log->ended)
        return 0;
    int err = reader_transaction(&r);
    if (!err)
        err = reader_fits(log, &r.tx);
    if (err)
        return err == -EUCLEAN ? reader_gap(log, "a transaction is not whole") : err;
    log->ended = r.tx.tid == log->newest.tid;
    log->replace = log->ended && r.tx.blocks == 1 && log->tail_tid == r.tx.commit.tail_tid;
    log->counter = r.tx.commit.counter;
    log->tail_tid = r.tx.commit.tail_tid;
    log->left -= r.tx.blocks;
    log->pos = r.pos;
    log->tid++;
    *tx = r.tx;
    return 1;
}

/* Returns true if the block at pos is a record of a transaction after the damaged one. */
static bool reader_resumes(struct lay_log *log, const void *block, uint64_t pos)
{
    uint64_t tid = lay_get64(((const struct lay_head *)block)->tid);
    const struct reading r = {.log = log, .tx = {.tid = tid}, .pos = pos};

    return tid > log->tid && tid <= log->newest.tid && reader_check(&r, NULL, block) == 0;
}

/* Positions the reader at pos and returns 1 if a log has a later transaction's record there. */
static int reader_resume(struct lay_log *log, uint64_t pos)
{
    for (unsigned i = 0; i < lay_logs(log->geo); i++) {
        const void *block;
        int err = log->calls->block(log->arg, i, pos, &block);
        if (err)
            return err;
        if (block && reader_resumes(log, block, pos)) {
            log->tid = lay_get64(((const struct lay_head *)block)->tid);
            log->pos = pos;
            return 1;
        }
    }
    return 0;
}

int lay_log_skip(struct lay_log *log)
{
    uint64_t pos = log->pos;
    int found = 0;

    while (log->left > 1 && found == 0) {
        pos = lay_log_after(log->geo, pos);
        log->left--;
        found = reader_resume(log, pos);
    }
    return found;
}

/* --- Two logs -------------------------------------------------------------------------------- */

int lay_log_mend(const struct lay_io *io, const struct lay_geometry *geo,
                 const struct lay_log_lack *lacks, size_t n, lay_log_lost_fn lost, void *arg)
{
    union lay_block b;
    int err = 0;

    for (size_t i = 0; i < n && !err; i++) {
        uint64_t place = lay_log_block(geo, lacks[i].log, lacks[i].pos);
        err = io->read(io->arg, lay_log_block(geo, !lacks[i].log, lacks[i].pos), &b);
        if (err)
            break;
        err = io->write(io->arg, place, &b);
        if (err == -EIO)
            err = lost(arg, place, &b);
    }
    return err || n == 0 ? err : io->flush(io->arg);
}
