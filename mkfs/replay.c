/* SPDX-License-Identifier: BSD-2-Clause */
/* The log of the journal, replayed in memory. */
#include "mkfs/replay.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* One transaction being read. */
struct reader {
    struct image *img;
    struct log *log;
    struct log_transaction t;
    uint64_t pos;
    uint32_t chain; /* the commit's checksum so far */
    bool valid;     /* nothing has ended the log yet */
    bool committed;
    union lay_block record, image;
};

/* Makes room for one more element of an array that doubles. 0 or -ENOMEM. */
static int grow(void **array, size_t count, size_t size)
{
    /* Full only when the count is a power of two (or zero). */
    if (count & (count - 1))
        return 0;
    void *bigger = realloc(*array, (count ? count * 2 : 1) * size);
    if (!bigger)
        return -ENOMEM;
    *array = bigger;
    return 0;
}

static int add_patch(struct image_patch **array, size_t *count, struct image_patch patch)
{
    int err = grow((void **)array, *count, sizeof(patch));

    if (err)
        return err;
    patch.order = *count;
    (*array)[(*count)++] = patch;
    return 0;
}

static uint64_t log_address(const struct image *img, uint64_t pos)
{
    return img->geo.journal_start + pos;
}

/* Reads the next block of the log; clears `valid` when the transaction fills all of it. */
static int next_block(struct reader *r, union lay_block *out, uint64_t *addr)
{
    if (r->t.blocks + 1 >= r->img->geo.journal_blocks) {
        r->valid = false;
        return 0;
    }
    *addr = log_address(r->img, r->pos);
    r->pos = lay_journal_next(&r->img->geo, r->pos);
    r->t.blocks++;
    return image_read_raw(r->img, *addr, out);
}

static int read_images(struct reader *r)
{
    const struct lay_journal_desc *d = &r->record.desc;

    for (uint32_t i = 0; i < lay_get32(d->count); i++) {
        const struct lay_journal_tag *tag = &d->tags[i];
        uint64_t addr = 0;
        int err = next_block(r, &r->image, &addr);
        if (err || !r->valid)
            return err;
        r->valid = lay_check_journal_image(&r->img->geo, tag, &r->image, addr, r->t.tid, NULL) == 0;
        if (!r->valid)
            return 0;
        struct image_patch patch = {
            .block = lay_get64(tag->block), .log_block = addr, .tid = r->t.tid};
        err = add_patch(&r->log->images, &r->log->image_count, patch);
        if (err)
            return err;
        r->t.images++;
    }
    return 0;
}

static int read_desc(struct reader *r, uint64_t addr)
{
    if (lay_check_journal_desc(&r->img->geo, &r->record.desc, addr, r->t.tid, NULL) != 0) {
        r->valid = false;
        return 0;
    }
    r->chain = lay_journal_chain(r->chain, &r->record);
    return read_images(r);
}

static int read_revoke(struct reader *r, uint64_t addr)
{
    const struct lay_journal_revoke *rv = &r->record.revoke;

    if (lay_check_journal_revoke(&r->img->geo, rv, addr, r->t.tid, NULL) != 0) {
        r->valid = false;
        return 0;
    }
    r->chain = lay_journal_chain(r->chain, rv);
    int err = 0;
    for (uint32_t i = 0; i < lay_get32(rv->count) && !err; i++) {
        struct image_patch patch = {.block = lay_get64(rv->blocks[i]), .tid = r->t.tid};
        err = add_patch(&r->log->revokes, &r->log->revoke_count, patch);
        r->t.revokes++;
    }
    return err;
}

static void read_commit(struct reader *r, uint64_t addr)
{
    const struct lay_journal_commit *c = &r->record.commit;

    r->valid = r->t.blocks > 1 &&
               lay_check_journal_commit(&r->img->geo, c, addr, r->t.tid, NULL) == 0 &&
               lay_get32(c->blocks) == r->t.blocks && lay_get32(c->crc) == r->chain;
    r->committed = r->valid;
    r->t.time = c->time;
}

static int read_record(struct reader *r)
{
    uint64_t addr = 0;
    int err = next_block(r, &r->record, &addr);

    if (err || !r->valid)
        return err;
    switch (lay_get32(r->record.head.magic)) {
    case LAY_MAGIC_JDESC:
        return read_desc(r, addr);
    case LAY_MAGIC_JREVOKE:
        return read_revoke(r, addr);
    case LAY_MAGIC_JCOMMIT:
        read_commit(r, addr);
        return 0;
    default:
        r->valid = false;
        return 0;
    }
}

/* 1: the transaction at the end of the log was read; 0: there is none; -errno. */
static int read_transaction(struct reader *r)
{
    struct log *log = r->log;
    size_t images = log->image_count, revokes = log->revoke_count;
    int err = 0;

    memset(&r->t, 0, sizeof(r->t));
    r->t.tid = log->end_tid;
    r->t.pos = r->pos = log->end_pos;
    r->chain = 0;
    r->valid = true;
    r->committed = false;
    while (!err && r->valid && !r->committed)
        err = read_record(r);
    if (err)
        return err;
    assert(log->image_count >= images && log->revoke_count >= revokes);
    if (!r->committed) {
        /* Lengths shrink only to a state the arrays already had room for. */
        log->image_count = images;
        log->revoke_count = revokes;
        return 0;
    }
    err = grow((void **)&log->transactions, log->transaction_count, sizeof(r->t));
    if (err)
        return err;
    log->transactions[log->transaction_count++] = r->t;
    log->end_tid++;
    log->end_pos = r->pos;
    return 1;
}

int replay_read(struct image *img, const struct lay_journal *header, struct log *log)
{
    memset(log, 0, sizeof(*log));
    log->end_tid = lay_get64(header->tail_tid);
    log->end_pos = lay_get64(header->tail_pos);
    struct reader *r = calloc(1, sizeof(*r));
    if (!r)
        return -ENOMEM;
    r->img = img;
    r->log = log;
    uint64_t blocks = 0;
    int more = 1;
    while (more > 0 && blocks < img->geo.journal_blocks) {
        more = read_transaction(r);
        blocks += r->t.blocks;
    }
    free(r);
    if (more < 0)
        replay_free(log);
    return more < 0 ? more : 0;
}

void replay_free(struct log *log)
{
    free(log->transactions);
    free(log->images);
    free(log->revokes);
    memset(log, 0, sizeof(*log));
}

static int by_block_then_order(const void *a, const void *b)
{
    const struct image_patch *p = a, *q = b;

    if (p->block != q->block)
        return p->block < q->block ? -1 : 1;
    return p->order < q->order ? -1 : p->order > q->order;
}

/* Revokes are in order of tid too, so the last of a block is its newest. */
static uint64_t newest_revoke(const struct image_patch *revokes, size_t count, uint64_t block)
{
    size_t lo = 0, hi = count;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (revokes[mid].block <= block)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo > 0 && revokes[lo - 1].block == block ? revokes[lo - 1].tid : 0;
}

int replay_replay(struct image *img, const struct log *log)
{
    if (log->image_count == 0)
        return 0;
    struct image_patch *images = malloc(log->image_count * sizeof(*images));
    struct image_patch *revokes = malloc((log->revoke_count + 1) * sizeof(*revokes));
    if (!images || !revokes) {
        free(images);
        free(revokes);
        return -ENOMEM;
    }
    memcpy(images, log->images, log->image_count * sizeof(*images));
    qsort(images, log->image_count, sizeof(*images), by_block_then_order);
    if (log->revoke_count > 0) {
        memcpy(revokes, log->revokes, log->revoke_count * sizeof(*revokes));
        qsort(revokes, log->revoke_count, sizeof(*revokes), by_block_then_order);
    }

    size_t kept = 0;
    for (size_t i = 0; i < log->image_count; i++) {
        bool newest = i + 1 == log->image_count || images[i + 1].block != images[i].block;
        if (newest && images[i].tid > newest_revoke(revokes, log->revoke_count, images[i].block))
            images[kept++] = images[i];
    }
    free(revokes);
    img->patches = images;
    img->patch_count = kept;
    return 0;
}

int replay_find_newest(struct image *img, uint64_t *tid)
{
    union lay_block b;
    int err = 0;

    *tid = 0;
    for (uint64_t pos = 1; pos < img->geo.journal_blocks && !err; pos++) {
        uint64_t addr = log_address(img, pos);
        err = image_read_raw(img, addr, &b);
        if (err == -EIO && img->tolerant) {
            err = 0;
            continue;
        }
        if (err || lay_get32(b.head.magic) != LAY_MAGIC_JCOMMIT)
            continue;
        uint64_t own = lay_get64(b.head.tid);
        if (own > *tid && lay_check_journal_commit(&img->geo, &b.commit, addr, own, NULL) == 0)
            *tid = own;
    }
    return err;
}
