/* SPDX-License-Identifier: BSD-2-Clause */
/* Replays the log of the journal in memory, for fsck and dump. */
#include "mkfs/replay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct replay {
    struct image *img;
    struct log *log; /* NULL while only commit blocks are sought */
    struct lay_log reader;
    union lay_block block;
};

/* Makes room for one more element, by doubling. Returns 0 or -ENOMEM. */
static int replay_grow(void **array, size_t count, size_t size)
{
    /* The array can only be full when the count is zero or a power of two. */
    if (count & (count - 1))
        return 0;
    void *bigger = realloc(*array, (count ? count * 2 : 1) * size);
    if (!bigger)
        return -ENOMEM;
    *array = bigger;
    return 0;
}

static int replay_add_patch(struct image_patch **array, size_t *count, struct image_patch patch)
{
    int err = replay_grow((void **)array, *count, sizeof(patch));

    if (err)
        return err;
    patch.order = *count;
    (*array)[(*count)++] = patch;
    return 0;
}

/* A tolerant search for commit blocks skips unreadable blocks. */
static int replay_block(void *arg, uint64_t pos, const void **block)
{
    struct replay *r = arg;
    int err = image_read_raw(r->img, r->img->geo.journal_start + pos, &r->block);
    bool skip = err == -EIO && r->img->tolerant && !r->log;

    *block = err ? NULL : &r->block;
    return skip ? 0 : err;
}

/* Implements lay_log_calls.image. */
static int replay_image(void *arg, uint64_t home, uint64_t at, const void *data)
{
    struct replay *r = arg;
    struct image_patch patch = {.block = home, .log_block = at, .tid = r->reader.tid};

    (void)data;
    return replay_add_patch(&r->log->images, &r->log->image_count, patch);
}

/* Implements lay_log_calls.revoke. */
static int replay_revoke(void *arg, uint64_t home)
{
    struct replay *r = arg;
    struct image_patch patch = {.block = home, .tid = r->reader.tid};

    return replay_add_patch(&r->log->revokes, &r->log->revoke_count, patch);
}

static const struct lay_log_calls replay_calls = {replay_block, replay_image, replay_revoke};

/* Adds the next transaction: 1, 0 at the end of the log, or an error. */
static int replay_transaction(struct replay *r)
{
    struct log *log = r->log;
    size_t images = log->image_count, revokes = log->revoke_count;
    struct lay_log_tx tx;
    int more = lay_log_next(&r->reader, &tx);

    if (more < 0)
        return more;
    if (more == 0) {
        /* The arrays have had this room, as replay_grow() assumes. */
        log->image_count = images;
        log->revoke_count = revokes;
        return 0;
    }
    int err = replay_grow((void **)&log->transactions, log->transaction_count, sizeof(tx));
    if (err)
        return err;
    log->transactions[log->transaction_count++] = tx;
    return 1;
}

int replay_read(struct image *img, const struct lay_journal *header, struct log *log)
{
    struct replay r = {.img = img, .log = log};
    int more;

    memset(log, 0, sizeof(*log));
    lay_log_begin(&r.reader, &img->geo, header, &replay_calls, &r);
    do {
        more = replay_transaction(&r);
    } while (more > 0);
    log->end_tid = r.reader.tid;
    log->end_pos = r.reader.pos;
    if (more < 0)
        replay_free(log);
    return more;
}

void replay_free(struct log *log)
{
    free(log->transactions);
    free(log->images);
    free(log->revokes);
    memset(log, 0, sizeof(*log));
}

static int replay_by_block(const void *a, const void *b)
{
    const struct image_patch *p = a, *q = b;

    if (p->block != q->block)
        return p->block < q->block ? -1 : 1;
    return p->order < q->order ? -1 : p->order > q->order;
}

/*
 * Returns the most recent transaction that revokes the block, or 0 if none
 * does. Revokes are sorted by block and then by transaction, so the last entry
 * of the block has it.
 */
static uint64_t replay_newest_revoke(const struct image_patch *revokes, size_t count,
                                     uint64_t block)
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
    qsort(images, log->image_count, sizeof(*images), replay_by_block);
    if (log->revoke_count > 0) {
        memcpy(revokes, log->revokes, log->revoke_count * sizeof(*revokes));
        qsort(revokes, log->revoke_count, sizeof(*revokes), replay_by_block);
    }

    size_t kept = 0;
    for (size_t i = 0; i < log->image_count; i++) {
        bool newest = i + 1 == log->image_count || images[i + 1].block != images[i].block;
        if (newest &&
            images[i].tid > replay_newest_revoke(revokes, log->revoke_count, images[i].block))
            images[kept++] = images[i];
    }
    free(revokes);
    img->patches = images;
    img->patch_count = kept;
    return 0;
}

int replay_find_newest(struct image *img, uint64_t *tid)
{
    struct replay r = {.img = img};

    r.reader = (struct lay_log){.geo = &img->geo, .calls = &replay_calls, .arg = &r};
    return lay_log_newest(&r.reader, tid);
}
