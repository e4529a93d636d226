/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The running transaction: what handles have changed since the last commit.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "fusefs/core/state.h"

static uint64_t commit_log_blocks(const struct ffs *fs)
{
    return fs->geo.journal_blocks - 1;
}

static uint64_t commit_count(const struct ffs_ranges *ranges)
{
    uint64_t blocks = 0;

    for (size_t i = 0; i < ranges->n; i++)
        blocks += ranges->v[i].len;
    return blocks;
}

bool ffs_running_has_room(struct ffs *fs, unsigned blocks)
{
    const struct ffs_running *r = &fs->journal.running;
    /* A handle revokes at most one block's worth; the superblock joins when it is marked. */
    uint64_t revokes = commit_count(&r->revoked) + LAY_JREVOKE_MAX;

    return ffs_log_need(r->n + blocks + 1, revokes) <= commit_log_blocks(fs);
}

int ffs_running_reserve(struct ffs *fs, unsigned blocks)
{
    struct ffs_running *r = &fs->journal.running;
    size_t need = r->n + blocks + 1;

    if (need <= r->cap)
        return 0;
    size_t cap = need * 2;
    struct ffs_cbuf **bufs = realloc(r->bufs, cap * sizeof(struct ffs_cbuf *));
    if (!bufs)
        return -ENOMEM;
    r->bufs = bufs;
    r->cap = cap;
    return 0;
}

void ffs_running_add(struct ffs *fs, struct ffs_cbuf *cb)
{
    struct ffs_running *r = &fs->journal.running;

    if (cb->running_at) {
        ffs_buf_put(&cb->pub);
        return;
    }
    assert(r->n < r->cap);
    r->bufs[r->n++] = cb;
    cb->running_at = r->n;
    if (r->n == commit_log_blocks(fs) / 4)
        ffs_background_hurry(fs);
}

static void commit_remove_buf(struct ffs_running *r, struct ffs_cbuf *cb)
{
    struct ffs_cbuf *last = r->bufs[--r->n];

    r->bufs[cb->running_at - 1] = last;
    last->running_at = cb->running_at;
    cb->running_at = 0;
    ffs_buf_put(&cb->pub);
}

/* The block may soon hold data: nothing in memory may be written over it. */
static void commit_forget(struct ffs *fs, uint64_t block)
{
    struct ffs_cbuf *cb = ffs_cache_find(fs, block);

    if (!cb)
        return;
    if (cb->running_at)
        commit_remove_buf(&fs->journal.running, cb);
    ffs_cache_forget(cb);
    ffs_buf_put(&cb->pub);
}

void ffs_running_free(struct ffs *fs, const struct ffs_ranges *freed,
                      const struct ffs_ranges *revoked)
{
    struct ffs_running *r = &fs->journal.running;

    for (size_t i = 0; i < revoked->n; i++) {
        for (uint64_t b = 0; b < revoked->v[i].len; b++)
            commit_forget(fs, revoked->v[i].block + b);
    }
    ffs_ranges_join(&r->freed, freed);
    ffs_ranges_join(&r->revoked, revoked);
}

bool ffs_running_empty(const struct ffs_running *r)
{
    return r->n == 0;
}
