/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads the log of the journal (FORMAT.md 10).
 *
 * A transaction counts if its blocks follow each other, carry its number, have
 * the right checksums, and end in a commit block that names their number and
 * the checksum over them. The log ends at the first transaction that does not
 * satisfy this.
 */
#include "layout/journal_reader.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/* The transaction that is being read. */
struct reading {
    const struct lay_log *log;
    struct lay_log_tx tx;
    uint64_t pos;   /* log position of the next block */
    uint32_t chain; /* checksum over the records so far, for the commit block */
};

static uint64_t reader_address(const struct reading *r)
{
    return r->log->geo->journal_start + r->pos;
}

static int reader_peek(const struct reading *r, const void **block)
{
    return r->log->calls->block(r->log->arg, r->pos, block);
}

/*
 * Advances by one block. Returns -EUCLEAN if the transaction would be longer
 * than the log.
 */
static int reader_advance(struct reading *r)
{
    if (++r->tx.blocks >= r->log->geo->journal_blocks)
        return -EUCLEAN;
    r->pos = lay_journal_next(r->log->geo, r->pos);
    return 0;
}

static int reader_image(struct reading *r, const struct lay_journal_tag *tag)
{
    const struct lay_log *log = r->log;
    const void *data;
    int err = reader_peek(r, &data);

    if (!err)
        err = lay_check_journal_image(log->geo, tag, data, reader_address(r), r->tx.tid, NULL);
    if (!err)
        err = log->calls->image(log->arg, lay_get64(tag->block), reader_address(r), data);
    if (err)
        return err;
    r->tx.images++;
    return reader_advance(r);
}

static int reader_desc(struct reading *r, const void *block)
{
    int err = lay_check_journal_desc(r->log->geo, block, reader_address(r), r->tx.tid, NULL);

    if (err)
        return err;
    /*
     * This is a copy, because reading the next block may overwrite the
     * original.
     */
    struct lay_journal_desc desc;
    memcpy(&desc, block, sizeof(desc));
    r->chain = lay_journal_chain(r->chain, &desc);
    err = reader_advance(r);
    for (uint32_t i = 0; i < lay_get32(desc.count) && !err; i++)
        err = reader_image(r, &desc.tags[i]);
    return err;
}

static int reader_revoke(struct reading *r, const struct lay_journal_revoke *revoke)
{
    const struct lay_log *log = r->log;
    int err = lay_check_journal_revoke(log->geo, revoke, reader_address(r), r->tx.tid, NULL);

    if (err)
        return err;
    for (uint32_t i = 0; i < lay_get32(revoke->count) && !err; i++, r->tx.revokes++)
        err = log->calls->revoke(log->arg, lay_get64(revoke->blocks[i]));
    if (err)
        return err;
    r->chain = lay_journal_chain(r->chain, revoke);
    return reader_advance(r);
}

static int reader_commit(struct reading *r, const struct lay_journal_commit *commit)
{
    int err = lay_check_journal_commit(r->log->geo, commit, reader_address(r), r->tx.tid, NULL);

    if (err)
        return err;
    if (lay_get32(commit->crc) != r->chain || lay_get32(commit->blocks) != r->tx.blocks + 1)
        return -EUCLEAN;
    r->tx.time = commit->time;
    return reader_advance(r);
}

/* Returns -EUCLEAN if the transaction is missing or incomplete. */
static int reader_transaction(struct reading *r)
{
    for (;;) {
        const void *block;
        int err = reader_peek(r, &block);
        if (err)
            return err;
        uint32_t magic = lay_get32(((const struct lay_head *)block)->magic);
        if (magic == LAY_MAGIC_JCOMMIT)
            return reader_commit(r, block);
        err = magic == LAY_MAGIC_JREVOKE ? reader_revoke(r, block) : reader_desc(r, block);
        if (err)
            return err;
    }
}

void lay_log_begin(struct lay_log *log, const struct lay_geometry *geo,
                   const struct lay_journal *header, const struct lay_log_calls *calls, void *arg)
{
    assert(lay_get64(header->tail_pos) >= 1 && lay_get64(header->tail_pos) < geo->journal_blocks);
    *log = (struct lay_log){
        .geo = geo,
        .calls = calls,
        .arg = arg,
        .tid = lay_get64(header->tail_tid),
        .pos = lay_get64(header->tail_pos),
        .left = geo->journal_blocks - 1,
    };
}

int lay_log_next(struct lay_log *log, struct lay_log_tx *tx)
{
    struct reading r = {.log = log, .tx = {.tid = log->tid, .pos = log->pos}, .pos = log->pos};
    int err = reader_transaction(&r);

    if (err)
        return err == -EUCLEAN ? 0 : err;
    if (r.tx.blocks > log->left)
        return 0;
    log->left -= r.tx.blocks;
    log->pos = r.pos;
    log->tid++;
    *tx = r.tx;
    return 1;
}

int lay_log_newest(const struct lay_log *log, uint64_t *tid)
{
    *tid = 0;
    for (uint64_t pos = 1; pos < log->geo->journal_blocks; pos++) {
        const struct lay_head *head;
        const void *block;
        int err = log->calls->block(log->arg, pos, &block);
        if (err)
            return err;
        head = block;
        if (!head || lay_get32(head->magic) != LAY_MAGIC_JCOMMIT || lay_get64(head->tid) <= *tid)
            continue;
        if (!lay_check_journal_commit(log->geo, block, log->geo->journal_start + pos,
                                      lay_get64(head->tid), NULL))
            *tid = lay_get64(head->tid);
    }
    return 0;
}
