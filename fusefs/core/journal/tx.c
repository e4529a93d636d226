/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements handles. A handle is one operation, which takes effect as a whole
 * or not at all.
 *
 * A handle keeps the old contents of each block and inode that it changes. At its end the blocks
 * join the running transaction, which a commit writes to the log. An abort restores the old
 * contents.
 */
#include "fusefs/core/inode/tx.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/core/journal/ops.h"
#include "fusefs/core/state.h"

/*
 * Takes ffs.meta exclusively when the running transaction has room for `blocks`
 * more blocks. Returns -EAGAIN instead of making room unless `may_commit` is
 * set.
 */
static int tx_lock_with_room(struct ffs *fs, unsigned blocks, bool may_commit)
{
    for (;;) {
        pthread_rwlock_wrlock(&fs->meta);
        int err = ffs_writable(fs);
        bool starved = ffs_alloc_starved(fs);
        bool room = !fs->frozen && ffs_running_has_room(fs, blocks) && !starved;
        if (!err && room)
            err = ffs_running_reserve(fs, blocks);
        if (!err && room)
            return 0;
        uint64_t tid = fs->journal.running.tid;
        pthread_rwlock_unlock(&fs->meta);
        if (err || !may_commit)
            return err ? err : -EAGAIN;
        /*
         * Every round makes a transaction durable. Other threads may fill the next one, but then
         * those make progress. While the file system is frozen, the commit waits for ffs_thaw().
         */
        err = starved ? ffs_commit_freed(fs) : ffs_commit_for_room(fs, tid);
        if (err)
            return err;
    }
}

static int tx_begin(struct ffs *fs, unsigned credits, bool may_commit, struct ffs_tx **out)
{
    assert(credits <= FFS_TX_MAX_CREDITS);
    struct ffs_tx *tx = malloc(sizeof(*tx));
    if (!tx)
        return -ENOMEM;
    /* Only the first nbufs entries of bufs are ever used. */
    memset(tx, 0, offsetof(struct ffs_tx, bufs));
    tx->fs = fs;
    tx->credits = credits;
    /* A handle of one block does not allocate, so it needs no section. */
    int err = credits > 1 && may_commit ? ffs_sections_look(fs, false) : 0;
    if (!err)
        err = tx_lock_with_room(fs, credits + FFS_TX_SLACK, may_commit);
    if (err) {
        free(tx);
        return err;
    }
    if (atomic_load(&fs->checked.any_damaged))
        ffs_alloc_avoid(fs);
    *out = tx;
    return 0;
}

int ffs_tx_begin(struct ffs *fs, unsigned credits, struct ffs_tx **out)
{
    return tx_begin(fs, credits, true, out);
}

int ffs_tx_begin_committing(struct ffs *fs, unsigned credits, struct ffs_tx **out)
{
    return tx_begin(fs, credits, false, out);
}

/*
 * Releases ffs.meta and then everything that the handle holds: dropping the last reference to an
 * inode may evict it, which takes ffs.meta.
 */
static void tx_free(struct ffs_tx *tx)
{
    pthread_rwlock_unlock(&tx->fs->meta);
    struct ffs_tx_inode *next;
    for (struct ffs_tx_inode *e = tx->inodes; e; e = next) {
        next = e->next;
        if (e->inode->ino)
            ffs_iput(e->inode, 1);
        free(e);
    }
    ffs_evict_doomed(tx->fs);
    ffs_ranges_free(&tx->allocated);
    ffs_ranges_free(&tx->freed);
    ffs_ranges_free(&tx->forgotten);
    ffs_ranges_free(&tx->unmapped);
    free(tx);
}

/* Returns true if a and b differ in a field that is needed to read the data back. */
static bool tx_data_changed(const struct lay_inode *a, const struct lay_inode *b)
{
    return a->size.le != b->size.le || a->blocks.le != b->blocks.le ||
           a->map_kind.le != b->map_kind.le || a->map_count.le != b->map_count.le ||
           a->map_height.le != b->map_height.le || a->generation.le != b->generation.le ||
           memcmp(&a->map, &b->map, sizeof(a->map)) != 0;
}

/* Copies the inode to its slot in its block. */
static void tx_store_inode(struct ffs_tx *tx, const struct ffs_tx_inode *e)
{
    struct ffs_inode *inode = e->inode;
    uint64_t tid = tx->fs->journal.running.tid;
    uint64_t map_generation = atomic_load_explicit(&inode->map_generation, memory_order_relaxed);

    if (lay_get32(inode->d.mode) != 0)
        inode->d.version = lay_put64(lay_get64(inode->d.version) + 1);
    *ffs_inode_slot(e->buf, inode->ino) = inode->d;
    if (e->fresh || map_generation != inode->stored_map_generation ||
        tx_data_changed(&e->before, &inode->d)) {
        atomic_store(&inode->data_tid, tid);
        ffs_watches_tell(inode);
    }
    atomic_store(&inode->tid, tid);
    inode->stored_map_generation = map_generation;
    inode->dirty_in = NULL;
}

void ffs_tx_end(struct ffs_tx *tx)
{
    struct ffs *fs = tx->fs;

    for (struct ffs_tx_inode *e = tx->inodes; e; e = e->next) {
        tx_store_inode(tx, e);
        if (lay_get32(e->inode->d.mode) == 0)
            ffs_itable_retire(fs, e->inode);
        else if (e->fresh)
            ffs_itable_publish(fs, e->inode);
    }
    for (unsigned i = 0; i < tx->nbufs; i++) {
        tx->bufs[i].cb->tx = NULL;
        ffs_running_add(fs, tx->bufs[i].cb);
    }
    ffs_running_free(fs, tx);
    tx_free(tx);
}

/* Restores a block. A block that did not exist before the handle leaves the cache. */
static void tx_restore_buf(struct ffs *fs, const struct ffs_tx_buf *b)
{
    b->cb->tx = NULL;
    if (b->before) {
        memcpy(b->cb->pub.data, b->before, LAY_BLOCK_SIZE);
        ffs_chunks_undo(fs, &b->cb->pub);
    } else {
        ffs_cache_forget(b->cb);
    }
    ffs_buf_put(&b->cb->pub);
}

void ffs_tx_abort(struct ffs_tx *tx)
{
    for (struct ffs_tx_inode *e = tx->inodes; e; e = e->next) {
        e->inode->d = e->before;
        e->inode->dirty_in = NULL;
        if (e->fresh)
            ffs_itable_discard(tx->fs, e->inode);
    }
    for (unsigned i = 0; i < tx->nbufs; i++)
        tx_restore_buf(tx->fs, &tx->bufs[i]);
    ffs_alloc_undo(tx->fs, &tx->allocated, &tx->freed);
    tx_free(tx);
}

/* --- Common parts of operations --------------------------------------------------------------- */

int ffs_touch(struct ffs_tx *tx, struct ffs_inode *inode, unsigned times)
{
    int err = ffs_inode_dirty(tx, inode);

    if (err)
        return err;
    /* An access time is exact because relatime compares it with mtime and ctime. */
    struct lay_time now = times == FFS_ATIME ? ffs_stamp_exact(inode->fs) : ffs_stamp(inode);
    if (times & FFS_ATIME)
        inode->d.atime = now;
    if (times & FFS_MTIME)
        inode->d.mtime = now;
    if (times & FFS_CTIME)
        inode->d.ctime = now;
    return 0;
}

int ffs_touch_data(struct ffs_tx *tx, struct ffs_inode *inode)
{
    if (atomic_load_explicit(&inode->fs->times_by_caller, memory_order_relaxed))
        return ffs_inode_dirty(tx, inode);
    return ffs_touch(tx, inode, FFS_MTIME | FFS_CTIME);
}

uint32_t ffs_without_setid(uint32_t mode, bool outsider)
{
    if (S_ISDIR(mode))
        return mode;
    mode &= ~(uint32_t)S_ISUID;
    return outsider || (mode & S_IXGRP) ? mode & ~(uint32_t)S_ISGID : mode;
}

void ffs_set_nlink(struct ffs_inode *inode, uint32_t nlink)
{
    inode->d.nlink = lay_put32(nlink);
}

int ffs_tx_finish(struct ffs_tx *tx, int err)
{
    if (err)
        ffs_tx_abort(tx);
    else
        ffs_tx_end(tx);
    return err;
}

bool ffs_retry_space(struct ffs *fs, int err, bool *tried)
{
    if (err != -ENOSPC)
        return false;
    /* The retries end because every call reads another section. */
    if (atomic_load(&fs->alloc.wanted))
        return ffs_sections_look(fs, true) == 0;
    if (*tried)
        return false;
    *tried = true;
    ffs_trim_wait(fs);
    return ffs_commit_freed(fs) == 0;
}
