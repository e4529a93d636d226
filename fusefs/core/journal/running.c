/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the running transaction, which has all changes since the last
 * commit. Stores the addresses of the naming blocks above the blocks in the
 * log.
 *
 * A naming block has the ages that the blocks below it had in place after the
 * last checkpoint (FORMAT.md 2.4). A checkpoint enters the ages of all blocks
 * that it is about to write in place, from the bottom up to the superblock, and
 * commits the changed naming blocks first.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "fusefs/core/state.h"
#include "support/array.h"

/* --- The naming blocks above the blocks in the log, for which it keeps room (R7d) ------------- */

/* Returns the slot of an address, or the empty one where it would be. */
static size_t running_find_naming(const struct ffs_naming *s, uint64_t addr)
{
    size_t i = (size_t)(addr * 0x9e3779b97f4a7c15ull >> 32) & (s->cap - 1);

    while (s->addrs[i] != 0 && s->addrs[i] != addr)
        i = (i + 1) & (s->cap - 1);
    return i;
}

int ffs_naming_reserve(struct ffs *fs, unsigned blocks)
{
    struct ffs_naming *s = &fs->journal.naming, bigger = {.cap = s->cap ? s->cap : 256};

    while (bigger.cap < 2 * (s->n + (size_t)blocks * FFS_NAMING_DEPTH))
        bigger.cap *= 2;
    if (bigger.cap == s->cap)
        return 0;
    bigger.addrs = calloc(bigger.cap, sizeof(*bigger.addrs));
    if (!bigger.addrs)
        return -ENOMEM;
    bigger.n = s->n;
    for (size_t i = 0; i < s->cap; i++) {
        if (s->addrs[i] != 0)
            bigger.addrs[running_find_naming(&bigger, s->addrs[i])] = s->addrs[i];
    }
    free(s->addrs);
    *s = bigger;
    return 0;
}

void ffs_naming_add(struct ffs *fs, uint64_t addr)
{
    struct ffs_naming *s = &fs->journal.naming;
    unsigned index;

    while ((addr = lay_name_of(&fs->geo, addr, &index)) != LAY_NONE) {
        size_t i = running_find_naming(s, addr);
        if (s->addrs[i] == addr)
            return; /* those above it are in the set, too */
        assert(2 * s->n < s->cap);
        s->addrs[i] = addr;
        s->n++;
    }
}

void ffs_naming_note(struct ffs *fs)
{
    struct ffs_journal *j = &fs->journal;

    atomic_store(&j->owed, ffs_log_need(j->running.n + 1 + j->naming.n));
}

int ffs_naming_begin(struct ffs *fs)
{
    size_t n;
    struct ffs_aged *images = ffs_home_ages(&fs->home, &n);
    int err = images ? ffs_naming_reserve(fs, (unsigned)n) : -ENOMEM;

    for (size_t i = 0; i < n && !err; i++)
        ffs_naming_add(fs, images[i].block);
    free(images);
    ffs_naming_note(fs);
    return err;
}

void ffs_naming_clear(struct ffs *fs)
{
    struct ffs_naming *s = &fs->journal.naming;

    if (s->n > 0)
        memset(s->addrs, 0, s->cap * sizeof(*s->addrs));
    s->n = 0;
}

void ffs_naming_destroy(struct ffs *fs)
{
    free(fs->journal.naming.addrs);
    fs->journal.naming = (struct ffs_naming){.n = 0};
}

/* --- The transaction -------------------------------------------------------------------------- */

/*
 * Returns at most how many further naming blocks a handle of so many blocks can
 * need. Entries are the only ones of which there are many.
 */
static uint64_t running_names_of(const struct ffs *fs, unsigned blocks)
{
    const unsigned others = 8; /* blocks of the map and of levels */

    return min_u64(blocks, fs->chunks.end + others);
}

bool ffs_running_has_room(struct ffs *fs, unsigned blocks)
{
    const struct ffs_journal *j = &fs->journal;
    /* One more block is the superblock, if an error is marked in it. */
    uint64_t images = j->running.n + blocks + 1;
    uint64_t taken = atomic_load(&j->taken);

    if (j->running.n == 0 && taken <= 1)
        return ffs_log_need(images) <= ffs_log_most(fs);
    images += j->naming.n + running_names_of(fs, blocks);
    return taken - 1 + ffs_log_need(images) <= ffs_log_most(fs);
}

int ffs_running_reserve(struct ffs *fs, unsigned blocks)
{
    struct ffs_running *r = &fs->journal.running;
    int err = ffs_naming_reserve(fs, blocks + 1);

    return err ? err
               : array_reserve((void **)&r->bufs, &r->cap, r->n + blocks + 1, sizeof(*r->bufs));
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
    ffs_naming_add(fs, cb->pub.block);
    ffs_naming_note(fs);
    if (r->n == fs->geo.log_blocks / 4)
        ffs_background_hurry(fs);
}

static void running_remove_buf(struct ffs_running *r, struct ffs_cbuf *cb)
{
    struct ffs_cbuf *last = r->bufs[--r->n];

    r->bufs[cb->running_at - 1] = last;
    last->running_at = cb->running_at;
    cb->running_at = 0;
    ffs_buf_put(&cb->pub);
}

/*
 * Removes a freed block from the transaction and the cache, where a new block may take its address.
 */
static void running_forget(struct ffs *fs, uint64_t block)
{
    struct ffs_cbuf *cb = ffs_cache_find(fs, block);

    if (!cb)
        return;
    if (cb->running_at)
        running_remove_buf(&fs->journal.running, cb);
    ffs_cache_forget(cb);
    ffs_buf_put(&cb->pub);
}

void ffs_running_free(struct ffs *fs, const struct ffs_tx *tx)
{
    struct ffs_running *r = &fs->journal.running;

    for (size_t i = 0; i < tx->forgotten.n; i++) {
        for (uint64_t b = 0; b < tx->forgotten.v[i].len; b++)
            running_forget(fs, tx->forgotten.v[i].block + b);
    }
    ffs_ranges_join(&r->freed, &tx->freed);
    ffs_ranges_join(&r->unmapped, &tx->unmapped);
    if (tx->unmapped.n > 0)
        ffs_chunks_leave(fs, &tx->unmapped);
}

bool ffs_running_empty(const struct ffs_running *r)
{
    return r->n == 0;
}

/* Drops the references of a transaction to its blocks, and frees its arrays. */
void ffs_running_put(struct ffs_running *r)
{
    for (size_t i = 0; i < r->n; i++)
        ffs_buf_put(&r->bufs[i]->pub);
    free(r->bufs);
    ffs_ranges_free(&r->freed);
    ffs_ranges_free(&r->unmapped);
}

/* --- Gathering -------------------------------------------------------------------------------- */

/*
 * Finds the block that names `addr`. Sets *name to NULL if no block names it.
 * This is so for the superblock, for a chunk that is not mapped, and above
 * damage.
 */
static int naming_get(struct ffs *fs, uint64_t addr, struct ffs_buf **name, unsigned *index)
{
    uint64_t places[FFS_PLACES];
    int err = 0;

    *name = NULL;
    if (ffs_places_of(fs, addr, places) != 0)
        err = ffs_cache_get_name(fs, addr, name, index);
    return err == -EUCLEAN ? 0 : err;
}

/* Adds a naming block to the running transaction. Consumes the reference to the block. */
static int naming_enter(struct ffs *fs, struct ffs_buf *name)
{
    int err = ffs_running_reserve(fs, 1);

    if (err)
        ffs_buf_put(name);
    else
        ffs_running_add(fs, ffs_cbuf(name));
    return err;
}

/*
 * Enters the age of a committed image in its naming block, unless the running
 * transaction has a newer version of the block.
 */
static int naming_enter_image(struct ffs *fs, const struct ffs_aged *image)
{
    struct ffs_cbuf *cb = ffs_cache_find(fs, image->block);
    bool newer = cb && cb->running_at;
    struct ffs_buf *name;
    unsigned index;

    if (cb)
        ffs_buf_put(&cb->pub);
    int err = newer ? 0 : naming_get(fs, image->block, &name, &index);
    if (newer || err || !name)
        return err;
    if (lay_is_unnamed(name->data, image->block) ||
        lay_named_age(name->data, image->block, index) == image->age) {
        ffs_buf_put(name);
        return 0;
    }
    lay_set_named_age(name->data, image->block, index, image->age);
    return naming_enter(fs, name);
}

int ffs_naming_gather(struct ffs *fs)
{
    struct ffs_running *r = &fs->journal.running;
    size_t n;
    struct ffs_aged *images = ffs_home_ages(&fs->home, &n);
    int err = images ? 0 : -ENOMEM;

    for (size_t i = 0; i < n && !err; i++)
        err = naming_enter_image(fs, &images[i]);
    free(images);
    /* The loop also visits the naming blocks that it adds. */
    for (size_t i = 0; i < r->n && !err; i++) {
        struct ffs_buf *name;
        unsigned index;
        err = naming_get(fs, r->bufs[i]->pub.block, &name, &index);
        if (!err && name)
            err = naming_enter(fs, name);
    }
    return err;
}

/* --- Sealing ---------------------------------------------------------------------------------- */

static void naming_seal(struct ffs *fs, struct ffs_buf *buf)
{
    struct ffs_buf *name;
    unsigned index;

    lay_seal(buf->data, fs->journal.tid);
    /* The naming block is in the transaction and therefore in the cache. */
    if (naming_get(fs, buf->block, &name, &index) || !name)
        return;
    lay_set_named_age(name->data, buf->block, index, lay_age(buf->data));
    ffs_buf_put(name);
}

void ffs_naming_seal(struct ffs *fs)
{
    struct ffs_running *r = &fs->journal.running;

    for (unsigned rank = 0; rank <= LAY_RANK_SUPER; rank++) {
        for (size_t i = 0; i < r->n; i++) {
            if (lay_rank(r->bufs[i]->pub.block) == rank)
                naming_seal(fs, &r->bufs[i]->pub);
        }
    }
}
