/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Replaying the journal at mount.
 *
 * Transactions are read from the tail on, each checked whole before anything of it counts: blocks
 * in sequence, checksums of images, the commit block and its chain. The first that does not fit
 * ends the log. What counts goes to ffs.home as if it had just been committed, and a checkpoint
 * writes it in place; so recovery can be cut at any point and begun again.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "fusefs/core/state.h"

/* A transaction as far as it has been read. */
struct reading {
    struct ffs *fs;
    uint64_t tid;
    uint64_t pos; /* of the next block */
    uint64_t count;
    uint32_t chain;
    struct ffs_image **images;
    size_t n, cap;
    uint64_t *revoked;
    size_t nrevoked, revoked_cap;
    /* Read-ahead: `ready` blocks of the log from position `first` on, in staging memory. */
    uint64_t first, ready;
};

static uint64_t address(const struct reading *r)
{
    return r->fs->geo.journal_start + r->pos;
}

/* The block at the reading position; valid until the next call. */
static int peek(struct reading *r, const void **block)
{
    struct ffs *fs = r->fs;

    if (r->pos < r->first || r->pos - r->first >= r->ready) {
        uint64_t n = fs->geo.journal_blocks - r->pos;
        if (n > FFS_STAGING_BLOCKS)
            n = FFS_STAGING_BLOCKS;
        r->ready = 0;
        int err = ffs_interrupted(fs);
        if (err)
            return err;
        err = bd_read(fs->dev, ffs_bytes(address(r)), fs->journal.staging, ffs_bytes(n));
        if (err)
            return err;
        r->first = r->pos;
        r->ready = n;
    }
    *block = (const uint8_t *)fs->journal.staging + ffs_bytes(r->pos - r->first);
    return 0;
}

/* Steps over a block. -EUCLEAN: a transaction cannot be longer than the log. */
static int advance(struct reading *r)
{
    r->pos = lay_journal_next(&r->fs->geo, r->pos);
    return ++r->count < r->fs->geo.journal_blocks ? 0 : -EUCLEAN;
}

/* Makes room for n elements more of an array, which doubles. */
static int grow(void **array, size_t *cap, size_t used, size_t n, size_t size)
{
    size_t want = *cap ? *cap : 64;

    while (want - used < n)
        want *= 2;
    if (want == *cap)
        return 0;
    void *bigger = realloc(*array, want * size);
    if (!bigger)
        return -ENOMEM;
    *array = bigger;
    *cap = want;
    return 0;
}

static int keep_image(struct reading *r, uint64_t home, const void *data)
{
    int err = grow((void **)&r->images, &r->cap, r->n, 1, sizeof(*r->images));

    if (err)
        return err;
    struct ffs_image *image = ffs_image_new(home, data);
    if (!image)
        return -ENOMEM;
    r->images[r->n++] = image;
    return 0;
}

static int read_desc(struct reading *r, const void *block)
{
    const char *why;
    int err = lay_check_journal_desc(&r->fs->geo, block, address(r), r->tid, &why);

    if (err)
        return err;
    struct lay_journal_desc desc;
    memcpy(&desc, block, sizeof(desc));
    r->chain = lay_journal_chain(r->chain, &desc);
    err = advance(r);
    for (uint32_t i = 0; i < lay_get32(desc.count) && !err; i++) {
        const void *data;
        err = peek(r, &data);
        if (!err)
            err =
                lay_check_journal_image(&r->fs->geo, &desc.tags[i], data, address(r), r->tid, NULL);
        if (!err)
            err = keep_image(r, lay_get64(desc.tags[i].block), data);
        if (!err)
            err = advance(r);
    }
    return err;
}

static int read_revoke(struct reading *r, const void *block)
{
    const struct lay_journal_revoke *revoke = block;
    const char *why;
    int err = lay_check_journal_revoke(&r->fs->geo, revoke, address(r), r->tid, &why);

    if (err)
        return err;
    uint32_t n = lay_get32(revoke->count);
    err = grow((void **)&r->revoked, &r->revoked_cap, r->nrevoked, n, sizeof(*r->revoked));
    if (err)
        return err;
    for (uint32_t i = 0; i < n; i++)
        r->revoked[r->nrevoked++] = lay_get64(revoke->blocks[i]);
    r->chain = lay_journal_chain(r->chain, revoke);
    return advance(r);
}

static int read_commit(struct reading *r, const void *block)
{
    const struct lay_journal_commit *commit = block;
    const char *why;
    int err = lay_check_journal_commit(&r->fs->geo, commit, address(r), r->tid, &why);

    if (err)
        return err;
    if (lay_get32(commit->crc) != r->chain || lay_get32(commit->blocks) != r->count + 1)
        return -EUCLEAN;
    return advance(r);
}

/* Reads transaction r->tid. -EUCLEAN: it is not there, or not whole. */
static int read_transaction(struct reading *r)
{
    for (;;) {
        const void *block;
        int err = peek(r, &block);
        if (err)
            return err;
        const struct lay_head *head = block;
        uint32_t magic = lay_get32(head->magic);
        if (magic == LAY_MAGIC_JCOMMIT)
            return read_commit(r, block);
        err = magic == LAY_MAGIC_JREVOKE ? read_revoke(r, block) : read_desc(r, block);
        if (err)
            return err;
    }
}

static void reset(struct reading *r)
{
    for (size_t i = 0; i < r->n; i++)
        ffs_image_free(r->images[i]);
    r->n = 0;
    r->nrevoked = 0;
    r->count = 0;
    r->chain = 0;
}

/* A whole transaction: images replace older ones, revokes undo images up to this one. */
static void apply(struct reading *r)
{
    struct ffs_home *home = &r->fs->home;

    for (size_t i = 0; i < r->n; i++) {
        ffs_home_put(home, r->images[i]);
        r->images[i] = NULL;
    }
    for (size_t i = 0; i < r->nrevoked; i++)
        ffs_home_drop(home, r->revoked[i]);
    reset(r);
}

/* Applies all whole transactions; *last is the last of them, or tail_tid - 1. */
static int scan(struct ffs *fs, uint64_t tail_tid, uint64_t tail_pos, uint64_t *last)
{
    struct reading r = {.fs = fs, .tid = tail_tid, .pos = tail_pos};
    uint64_t left = fs->geo.journal_blocks - 1;
    int err;

    fs->journal.head = tail_pos;
    for (;;) {
        err = read_transaction(&r);
        if (err || r.count > left)
            break;
        left -= r.count;
        fs->journal.head = r.pos;
        apply(&r);
        r.tid++;
    }
    reset(&r);
    free(r.images);
    free(r.revoked);
    *last = r.tid - 1;
    return err == -EUCLEAN ? 0 : err;
}

static bool is_commit_from(const struct ffs *fs, const void *block, uint64_t addr, uint64_t tid)
{
    const struct lay_head *head = block;
    uint64_t own = lay_get64(head->tid);

    return lay_get32(head->magic) == LAY_MAGIC_JCOMMIT && own >= tid &&
           lay_check_journal_commit(&fs->geo, block, addr, own, NULL) == 0;
}

/*
 * A commit block is written when all before it is durable. So where transaction `tid` is not
 * valid, a crash leaves no commit block of it or of a later one; damage does.
 */
static int check_damage(struct ffs *fs, uint64_t tid, bool *damaged)
{
    const uint8_t *staging = fs->journal.staging;
    uint64_t pos = 1, n;

    for (*damaged = false; pos < fs->geo.journal_blocks && !*damaged; pos += n) {
        uint64_t addr = fs->geo.journal_start + pos;
        n = fs->geo.journal_blocks - pos;
        if (n > FFS_STAGING_BLOCKS)
            n = FFS_STAGING_BLOCKS;
        int err = ffs_interrupted(fs);
        if (!err)
            err = bd_read(fs->dev, ffs_bytes(addr), fs->journal.staging, ffs_bytes(n));
        if (err)
            return err;
        for (uint64_t i = 0; i < n && !*damaged; i++)
            *damaged = is_commit_from(fs, staging + ffs_bytes(i), addr + i, tid);
    }
    return 0;
}

static int read_header(struct ffs *fs, uint64_t *tid, uint64_t *pos, const char **why)
{
    struct lay_journal *header = fs->journal.staging;
    int err = bd_read(fs->dev, ffs_bytes(fs->geo.journal_start), header, LAY_BLOCK_SIZE);

    if (err) {
        *why = "cannot read the journal";
        return err;
    }
    err = lay_check_journal(&fs->geo, header, why);
    *tid = lay_get64(header->tail_tid);
    *pos = lay_get64(header->tail_pos);
    fs->journal.super_tid = lay_get64(header->super_tid);
    return err;
}

static const char *explain(int err)
{
    switch (err) {
    case -ENOMEM:
        return "out of memory for the journal";
    case -EINTR:
        return "recovery was interrupted, the next mount begins it again";
    default:
        return "cannot read the journal";
    }
}

/* Sets the transaction that comes next; everything before it is durable. */
static void begin_after(struct ffs *fs, uint64_t last)
{
    struct ffs_journal *j = &fs->journal;

    j->running.tid = last + 1;
    atomic_store(&j->running_tid, last + 1);
    atomic_store(&j->committed, last);
}

/* A copy may be older than the last mount, so its state says nothing. */
static bool is_clean(const struct ffs_super_found *super)
{
    return super->at == 0 && lay_get32(super->sb.state) & LAY_STATE_CLEAN;
}

/*
 * Without a header the log cannot be read. After an orderly unmount it has nothing to tell: the
 * superblock was changed by the last transaction of all, and a log that begins anew is right.
 */
static int without_header(struct ffs *fs, const struct ffs_super_found *super, bool write,
                          const char *why)
{
    bool clean = is_clean(super);

    if (!clean && !fs->opts.read_only)
        return -EUCLEAN;
    ffs_log(fs, LOG_WARNING, "%s: journal header damaged (%s); %s", fs->dev->info.name, why,
            clean ? "not needed, the file system was unmounted in order"
                  : "shown without the last changes");
    fs->sums.stale = !clean;
    fs->journal.head = 1;
    fs->journal.super_tid = lay_get64(super->sb.head.tid);
    begin_after(fs, fs->journal.super_tid);
    return write && clean ? ffs_log_reset(fs, fs->journal.super_tid + 1) : 0;
}

/* The log from the header's tail on. */
static int replay(struct ffs *fs, const struct ffs_super_found *super, uint64_t tail_tid,
                  uint64_t tail_pos, bool *damaged)
{
    uint64_t last;
    int err = scan(fs, tail_tid, tail_pos, &last);

    /* After an orderly unmount the log has nothing to tell, and is not worth reading. */
    if (!err && (last + 1 != tail_tid || !is_clean(super)))
        err = check_damage(fs, last + 1, damaged);
    begin_after(fs, last);
    return err;
}

int ffs_recover(struct ffs *fs, const struct ffs_super_found *super, bool write, bool *replayed,
                const char **why)
{
    uint64_t tail_tid, tail_pos;
    bool damaged = false;
    int err = read_header(fs, &tail_tid, &tail_pos, why);

    if (err)
        return without_header(fs, super, write, *why);
    err = replay(fs, super, tail_tid, tail_pos, &damaged);
    if (err) {
        *why = explain(err);
        return err;
    }
    if (damaged) {
        *why = "log: a transaction that was durable is damaged";
        if (!fs->opts.read_only)
            return -EUCLEAN;
        ffs_log(fs, LOG_ERR, "%s: journal damaged: %s; shown without what followed",
                fs->dev->info.name, *why);
        fs->sums.stale = true;
        write = false; /* fsck may make more of it */
    }
    *replayed = fs->journal.running.tid != tail_tid;
    if (!write || !*replayed)
        return 0;
    err = ffs_checkpoint(fs, fs->journal.running.tid);
    if (err)
        *why = err == -EINTR ? explain(err) : "cannot write to the device";
    return err;
}
