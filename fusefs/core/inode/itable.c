/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the table of inodes in memory, their locations on disk, and the
 * orphan list. The orphan list contains inodes whose change must be finished
 * after a crash (FORMAT.md 3.5). The list begins in the superblock and is
 * linked through next_orphan, most recent inode first.
 */
#include "fusefs/core/inode/itable.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <time.h>

#include "fusefs/core/base/extent_find.h"
#include "fusefs/core/inode/tx.h"
#include "fusefs/core/state.h"

/* --- Places on disk --------------------------------------------------------------------------- */

uint64_t ffs_inode_file_blocks(const struct ffs *fs)
{
    return lay_get64(fs->inode_file.d.size) >> LAY_BLOCK_SHIFT;
}

int ffs_inode_file_block(struct ffs *fs, uint64_t index, struct ffs_buf **out)
{
    struct lay_expect expect = {.magic = LAY_MAGIC_INODES, .owner = index * LAY_INODES_PER_BLOCK};
    struct ffs_extent extent;

    if (index >= ffs_inode_file_blocks(fs))
        return -ESTALE;
    int err = ffs_extent_find(&fs->inode_file, index, &extent);
    if (err)
        return err;
    if (extent.block == LAY_NONE || extent.damaged)
        return ffs_corrupt(fs, 0, 0, "hole in the inode file");
    return ffs_buf_get(fs, extent.block, &expect, out);
}

int ffs_inode_block(struct ffs *fs, uint64_t ino, struct ffs_buf **out)
{
    if (ino != 0)
        return ffs_inode_file_block(fs, ino / LAY_INODES_PER_BLOCK, out);
    ffs_cache_ref(ffs_cbuf(fs->super));
    *out = fs->super;
    return 0;
}

struct lay_inode *ffs_inode_slot(struct ffs_buf *buf, uint64_t ino)
{
    if (ino == 0)
        return &((struct lay_super *)buf->data)->inode_file;
    return &((struct lay_inode_block *)buf->data)->inodes[ino % LAY_INODES_PER_BLOCK];
}

/* --- Inodes in memory ------------------------------------------------------------------------- */

static struct ffs_inode *itable_of_item(const struct ffs_item *item)
{
    return item ? (void *)((char *)item - offsetof(struct ffs_inode, item)) : NULL;
}

static struct ffs_inode *itable_find(const struct ffs_itable *table, uint64_t ino)
{
    return itable_of_item(ffs_table_find(&table->inodes, ino));
}

int ffs_itable_init(struct ffs_itable *table)
{
    int err = ffs_table_init(&table->inodes, FFS_INODE_BUCKETS_MIN, FFS_INODE_BUCKETS_MAX,
                             FFS_INODE_FACTOR);

    if (err)
        return err;
    pthread_mutex_init(&table->lock, NULL);
    ffs_slabs_init(&table->slabs, sizeof(struct ffs_inode), _Alignof(struct ffs_inode));
    TAILQ_INIT(&table->unused);
    TAILQ_INIT(&table->doomed);
    return 0;
}

static void itable_free_inode(struct ffs_inode *inode)
{
    pthread_rwlock_destroy(&inode->data);
    ffs_slab_give(&inode->fs->itable.slabs, inode);
}

void ffs_itable_destroy(struct ffs_itable *table)
{
    struct ffs_item *next;

    if (!table->inodes.buckets)
        return;
    for (struct ffs_item *item = ffs_table_next(&table->inodes, NULL); item; item = next) {
        next = ffs_table_next(&table->inodes, item);
        itable_free_inode(itable_of_item(item));
    }
    ffs_table_destroy(&table->inodes);
    ffs_slabs_destroy(&table->slabs);
    pthread_mutex_destroy(&table->lock);
}

struct ffs_inode *ffs_inode_alloc(struct ffs *fs, uint64_t ino)
{
    struct ffs_inode *inode = ffs_slab_take(&fs->itable.slabs);

    if (!inode)
        return NULL;
    *inode = (struct ffs_inode){.fs = fs, .ino = ino, .refs = 1};
    pthread_rwlock_init(&inode->data, NULL);
    return inode;
}

static void itable_unused_remove(struct ffs_itable *table, struct ffs_inode *inode)
{
    TAILQ_REMOVE(&table->unused, inode, listed);
    table->unused_count--;
}

static void itable_unused_add(struct ffs_itable *table, struct ffs_inode *inode)
{
    TAILQ_INSERT_TAIL(&table->unused, inode, listed);
    if (++table->unused_count <= FFS_INODES_UNUSED_MAX)
        return;
    struct ffs_inode *victim = TAILQ_FIRST(&table->unused);
    itable_unused_remove(table, victim);
    ffs_table_remove(&table->inodes, &victim->item);
    itable_free_inode(victim);
}

/*
 * Sets *out to the inode with a new reference, or to NULL if it is not in memory. Returns -ESTALE
 * if the inode is being evicted.
 */
static int itable_find_ref(struct ffs *fs, uint64_t ino, bool evicting, struct ffs_inode **out)
{
    struct ffs_itable *table = &fs->itable;
    int err = 0;

    pthread_mutex_lock(&table->lock);
    struct ffs_inode *inode = itable_find(table, ino);
    if (inode && inode->evicting && !evicting)
        err = -ESTALE;
    else if (inode && inode->refs++ == 0)
        itable_unused_remove(table, inode);
    pthread_mutex_unlock(&table->lock);
    *out = err ? NULL : inode;
    return err;
}

/*
 * Adds an inode that was read from its block, unless another thread has added it. Returns the inode
 * of the table.
 */
static struct ffs_inode *itable_enter(struct ffs *fs, struct ffs_inode *inode)
{
    struct ffs_itable *table = &fs->itable;

    pthread_mutex_lock(&table->lock);
    struct ffs_inode *other = itable_find(table, inode->ino);
    if (!other)
        ffs_table_add(&table->inodes, &inode->item, inode->ino);
    else if (other->refs++ == 0)
        itable_unused_remove(table, other);
    pthread_mutex_unlock(&table->lock);
    if (!other)
        return inode;
    itable_free_inode(inode);
    return other;
}

static int itable_read_inode(struct ffs *fs, uint64_t ino, bool unlinked, struct ffs_inode **out)
{
    struct ffs_buf *buf;
    int err = ffs_inode_block(fs, ino, &buf);

    if (err)
        return err;
    const struct lay_inode *slot = ffs_inode_slot(buf, ino);
    if (lay_get32(slot->mode) == 0 || (lay_get32(slot->nlink) == 0 && !unlinked)) {
        err = -ESTALE;
        goto put;
    }
    struct ffs_inode *inode = ffs_inode_alloc(fs, ino);
    if (!inode) {
        err = -ENOMEM;
        goto put;
    }
    inode->d = *slot;
    ffs_stamp_see(inode);
    *out = itable_enter(fs, inode);
put:
    ffs_buf_put(buf);
    return err;
}

int ffs_inode_load(struct ffs *fs, uint64_t ino, bool evicting, struct ffs_inode **out)
{
    if (ino < LAY_INO_ROOT)
        return -ESTALE; /* The inode file is not visible outside this half. */
    int err = itable_find_ref(fs, ino, evicting, out);
    if (err || *out)
        return err;
    return itable_read_inode(fs, ino, evicting || fs->mounting, out);
}

int ffs_iget_meta(struct ffs *fs, uint64_t ino, struct ffs_inode **out)
{
    int err = ffs_alive(fs);

    return err ? err : ffs_inode_load(fs, ino, false, out);
}

int ffs_iget(struct ffs *fs, uint64_t ino, struct ffs_inode **out)
{
    int err = ffs_alive(fs);

    if (!err)
        err = itable_find_ref(fs, ino, false, out);
    if (err || *out)
        return err;
    ffs_meta_read(fs);
    err = ffs_iget_meta(fs, ino, out);
    ffs_meta_done(fs);
    return err;
}

void ffs_iref(struct ffs_inode *inode, uint64_t n)
{
    struct ffs_itable *table = &inode->fs->itable;

    pthread_mutex_lock(&table->lock);
    assert(inode->refs > 0);
    inode->refs += n;
    pthread_mutex_unlock(&table->lock);
}

/* Drops references of an inode that is being evicted. The caller holds itable.lock. */
static void itable_put_last(struct ffs_itable *table, struct ffs_inode *inode)
{
    if (inode->refs > 0)
        return;
    ffs_table_remove(&table->inodes, &inode->item);
    itable_free_inode(inode);
}

/*
 * Frees everything that an unlinked inode owns. The caller's reference keeps the inode until then.
 */
static void itable_evict(struct ffs_inode *inode)
{
    struct ffs *fs = inode->fs;
    struct ffs_itable *table = &fs->itable;
    int err = fs->semantics->evict(inode);

    if (err && err != -EROFS && !(ffs_health(fs) & FFS_DOWN))
        ffs_log(fs, 4, "inode %llu: cannot free it now (error %d); the next mount will",
                (unsigned long long)inode->ino, -err);
    pthread_mutex_lock(&table->lock);
    inode->refs--;
    itable_put_last(table, inode);
    pthread_mutex_unlock(&table->lock);
}

/*
 * Drops references. Returns true if the inode is unlinked and has none left: the caller has to
 * evict it.
 */
static bool itable_put(struct ffs_itable *table, struct ffs_inode *inode, uint64_t n)
{
    assert(inode->refs >= n);
    inode->refs -= n;
    if (inode->evicting) {
        itable_put_last(table, inode);
        return false;
    }
    if (inode->refs > 0)
        return false;
    /*
     * The value of nlink is final: a thread that changed it had a reference, and has dropped it
     * under this lock.
     */
    if (lay_get32(inode->d.nlink) != 0) {
        itable_unused_add(table, inode);
        return false;
    }
    inode->evicting = true;
    inode->refs = 1;
    return true;
}

void ffs_iput(struct ffs_inode *inode, uint64_t n)
{
    struct ffs_itable *table = &inode->fs->itable;

    pthread_mutex_lock(&table->lock);
    bool mine = itable_put(table, inode, n);
    pthread_mutex_unlock(&table->lock);
    if (mine)
        itable_evict(inode);
}

void ffs_inode_put_meta(struct ffs_inode *inode)
{
    struct ffs_itable *table = &inode->fs->itable;

    pthread_mutex_lock(&table->lock);
    if (itable_put(table, inode, 1))
        TAILQ_INSERT_HEAD(&table->doomed, inode, listed);
    pthread_mutex_unlock(&table->lock);
}

/*
 * Returns the next doomed inode. NULL means that there is none; the thread that dooms the next one
 * evicts it itself.
 */
static struct ffs_inode *itable_next_doomed(struct ffs_itable *table)
{
    pthread_mutex_lock(&table->lock);
    struct ffs_inode *inode = TAILQ_FIRST(&table->doomed);
    if (inode)
        TAILQ_REMOVE(&table->doomed, inode, listed);
    else
        table->evicting = false;
    pthread_mutex_unlock(&table->lock);
    return inode;
}

/*
 * An eviction may doom the neighbour on the orphan list, and so on along the list. This loop evicts
 * such inodes, which the end of the handle inside itable_evict() does not.
 */
void ffs_evict_doomed(struct ffs *fs)
{
    struct ffs_itable *table = &fs->itable;
    struct ffs_inode *inode;

    pthread_mutex_lock(&table->lock);
    bool mine = !TAILQ_EMPTY(&table->doomed) && !table->evicting;
    table->evicting = table->evicting || mine;
    pthread_mutex_unlock(&table->lock);
    while (mine && (inode = itable_next_doomed(table)))
        itable_evict(inode);
}

void ffs_itable_publish(struct ffs *fs, struct ffs_inode *inode)
{
    pthread_mutex_lock(&fs->itable.lock);
    ffs_table_add(&fs->itable.inodes, &inode->item, inode->ino);
    pthread_mutex_unlock(&fs->itable.lock);
}

void ffs_itable_retire(struct ffs *fs, struct ffs_inode *inode)
{
    pthread_mutex_lock(&fs->itable.lock);
    ffs_table_remove(&fs->itable.inodes, &inode->item);
    inode->evicting = true;
    pthread_mutex_unlock(&fs->itable.lock);
}

void ffs_itable_discard(struct ffs *fs, struct ffs_inode *inode)
{
    pthread_mutex_lock(&fs->itable.lock);
    inode->evicting = true;
    pthread_mutex_unlock(&fs->itable.lock);
}

/*
 * Returns an unlinked inode that is still referenced, after marking it as being evicted, or NULL if
 * there is none.
 */
static struct ffs_inode *itable_next_unlinked(struct ffs_itable *table)
{
    const struct ffs_item *item = NULL;
    struct ffs_inode *inode;

    pthread_mutex_lock(&table->lock);
    do {
        item = ffs_table_next(&table->inodes, item);
        inode = itable_of_item(item);
    } while (inode && (inode->evicting || lay_get32(inode->d.nlink) != 0));
    if (inode)
        inode->evicting = true;
    pthread_mutex_unlock(&table->lock);
    return inode;
}

void ffs_itable_drain(struct ffs *fs)
{
    struct ffs_inode *inode;

    while (!ffs_writable(fs) && (inode = itable_next_unlinked(&fs->itable))) {
        inode->refs = 1;
        itable_evict(inode);
    }
}

uint64_t ffs_ino(const struct ffs_inode *inode)
{
    return inode->ino;
}

uint32_t ffs_generation(const struct ffs_inode *inode)
{
    /* The generation is set once, before another thread can find the inode. */
    return lay_get32(inode->d.generation);
}

uint32_t *ffs_user_word(struct ffs_inode *inode)
{
    return &inode->user_word;
}

uint32_t *ffs_user_count(struct ffs_inode *inode)
{
    return &inode->user_count;
}

/* --- Times ----------------------------------------------------------------------------------- */

#define SECOND_NS INT64_C(1000000000)

static int64_t stamp_read_clock(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return now.tv_sec * SECOND_NS + now.tv_nsec;
}

static struct lay_time stamp_time_of(int64_t ns)
{
    return lay_time_make(ns / SECOND_NS, (uint32_t)(ns % SECOND_NS));
}

/* An exact time far in the future was taken before the clock was set back. */
static struct lay_time stamp_tick(const struct ffs *fs)
{
    int64_t now = stamp_read_clock(CLOCK_REALTIME_COARSE), ahead = fs->exact_stamp - now;

    return stamp_time_of(ahead > 0 && ahead < SECOND_NS ? fs->exact_stamp : now);
}

struct lay_time ffs_stamp_exact(struct ffs *fs)
{
    fs->exact_stamp = stamp_read_clock(CLOCK_REALTIME);
    return stamp_time_of(fs->exact_stamp);
}

void ffs_set_data_times(struct ffs *fs, bool by_caller)
{
    atomic_store(&fs->times_by_caller, by_caller);
}

/*
 * If the handle is aborted, exact_stamp keeps its value, which is later than
 * the times that were read.
 */
struct lay_time ffs_stamp(struct ffs_inode *inode)
{
    bool seen = atomic_exchange_explicit(&inode->times_seen, false, memory_order_relaxed);

    return seen ? ffs_stamp_exact(inode->fs) : stamp_tick(inode->fs);
}

void ffs_stamp_see(struct ffs_inode *inode)
{
    if (!atomic_load_explicit(&inode->times_seen, memory_order_relaxed))
        atomic_store_explicit(&inode->times_seen, true, memory_order_relaxed);
}

static bool stamp_is_same(struct lay_time a, struct lay_time b)
{
    return lay_time_sec(a) == lay_time_sec(b) && a.nsec.le == b.nsec.le;
}

bool ffs_stamp_stays(struct ffs_inode *inode)
{
    if (atomic_load_explicit(&inode->fs->times_by_caller, memory_order_relaxed))
        return true;
    if (atomic_load_explicit(&inode->times_seen, memory_order_relaxed))
        return false;
    struct lay_time now = stamp_tick(inode->fs);
    return stamp_is_same(inode->d.mtime, now) && stamp_is_same(inode->d.ctime, now);
}

/* --- Changes of a handle --------------------------------------------------------------------- */

unsigned ffs_tx_left(const struct ffs_tx *tx)
{
    return tx->nbufs < tx->credits ? tx->credits - tx->nbufs : 0;
}

void ffs_tx_use_reserve(struct ffs_tx *tx)
{
    tx->use_reserve = true;
}

int ffs_tx_dirty(struct ffs_tx *tx, struct ffs_buf *buf)
{
    struct ffs_cbuf *cb = ffs_cbuf(buf);

    if (cb->tx == tx)
        return 0;
    assert(!cb->tx);
    if (tx->nbufs >= tx->credits + FFS_TX_SLACK)
        return -ENOSPC;
    void **before = &tx->fs->old_blocks[tx->nbufs];
    if (!*before)
        *before = malloc(LAY_BLOCK_SIZE);
    if (!*before)
        return -ENOMEM;
    memcpy(*before, buf->data, LAY_BLOCK_SIZE);
    ffs_cache_ref(cb);
    cb->tx = tx;
    tx->bufs[tx->nbufs++] = (struct ffs_tx_buf){cb, *before};
    return 0;
}

int ffs_tx_new(struct ffs_tx *tx, uint64_t block, uint32_t magic, uint64_t owner,
               struct ffs_buf **out)
{
    struct ffs *fs = tx->fs;
    struct ffs_cbuf *cb;

    if (tx->nbufs >= tx->credits + FFS_TX_SLACK)
        return -ENOSPC;
    int err = ffs_cache_create(fs, block, &cb);
    if (err == -EEXIST)
        return ffs_corrupt(fs, block, owner, "free in the entries, but in use as metadata");
    if (err)
        return err;
    lay_head_init(cb->pub.data, magic, fs->geo.uuid, block, owner);
    ffs_cache_ref(cb);
    cb->tx = tx;
    tx->bufs[tx->nbufs++] = (struct ffs_tx_buf){cb, NULL};
    *out = &cb->pub;
    return 0;
}

int ffs_tx_add_inode(struct ffs_tx *tx, struct ffs_inode *inode, struct ffs_buf *buf, bool fresh)
{
    assert(ffs_cbuf(buf)->tx == tx && !inode->dirty_in);
    struct ffs_tx_inode *entry = malloc(sizeof(*entry));
    if (!entry)
        return -ENOMEM;
    *entry = (struct ffs_tx_inode){
        .next = tx->inodes, .inode = inode, .buf = buf, .before = inode->d, .fresh = fresh};
    tx->inodes = entry;
    inode->dirty_in = tx;
    if (inode->ino)
        ffs_iref(inode, 1);
    return 0;
}

int ffs_inode_dirty(struct ffs_tx *tx, struct ffs_inode *inode)
{
    struct ffs_buf *buf;

    if (inode->dirty_in == tx)
        return 0;
    int err = ffs_inode_block(tx->fs, inode->ino, &buf);
    if (err)
        return err;
    err = ffs_tx_dirty(tx, buf);
    if (!err)
        err = ffs_tx_add_inode(tx, inode, buf, false);
    ffs_buf_put(buf);
    return err;
}

/* --- Watches --------------------------------------------------------------------------------- */

static void watch_store(const struct ffs_watch *w)
{
    /* Release: a reader that sees the new count sees the change itself. */
    if (w->word)
        __atomic_store_n(w->word, w->changes, __ATOMIC_RELEASE);
}

void ffs_watch_add(struct ffs_inode *inode, struct ffs_watch *w)
{
    pthread_rwlock_wrlock(&inode->fs->meta);
    *w = (struct ffs_watch){.changes = 1};
    LIST_INSERT_HEAD(&inode->watches, w, entry);
    pthread_rwlock_unlock(&inode->fs->meta);
}

void ffs_watch_share(struct ffs_inode *inode, struct ffs_watch *w, uint64_t *word)
{
    pthread_rwlock_wrlock(&inode->fs->meta);
    w->word = word;
    watch_store(w);
    pthread_rwlock_unlock(&inode->fs->meta);
}

void ffs_watch_remove(struct ffs_inode *inode, struct ffs_watch *w)
{
    pthread_rwlock_wrlock(&inode->fs->meta);
    LIST_REMOVE(w, entry);
    pthread_rwlock_unlock(&inode->fs->meta);
}

bool ffs_watch_any(struct ffs_inode *inode)
{
    ffs_meta_read(inode->fs);
    bool any = !LIST_EMPTY(&inode->watches);
    ffs_meta_done(inode->fs);
    return any;
}

void ffs_watches_tell(struct ffs_inode *inode)
{
    for (struct ffs_watch *w = LIST_FIRST(&inode->watches); w; w = LIST_NEXT(w, entry)) {
        w->changes++;
        watch_store(w);
    }
}

static bool watch_drop(struct ffs_watch *w, uint64_t first, uint64_t end)
{
    bool any = false;

    for (uint64_t i = first; i < end && i < w->n_sums; i++) {
        any |= __atomic_load_n(&w->sums[i], __ATOMIC_RELAXED) != LAY_NO_SUM;
        /* The submission of the write, which follows, releases it. */
        __atomic_store_n(&w->sums[i], LAY_NO_SUM, __ATOMIC_RELAXED);
    }
    return any;
}

/* ffs.meta, shared, excludes handles; the data lock excludes other calls for this inode. */
void ffs_watches_drop_sums(struct ffs_inode *inode, uint64_t first, uint64_t end)
{
    ffs_meta_read(inode->fs);
    for (struct ffs_watch *w = LIST_FIRST(&inode->watches); w; w = LIST_NEXT(w, entry)) {
        if (!w->sums || !watch_drop(w, first, end))
            continue;
        w->changes++;
        watch_store(w);
    }
    ffs_meta_done(inode->fs);
}

int ffs_orphan_add(struct ffs_tx *tx, struct ffs_inode *inode)
{
    struct ffs *fs = tx->fs;

    if (lay_get64(inode->d.next_orphan) != 0)
        return 0;
    int err = ffs_inode_dirty(tx, inode);
    if (!err)
        err = ffs_tx_dirty(tx, fs->super);
    if (err)
        return err;
    uint64_t head = lay_get64(ffs_super(fs)->orphan);
    inode->d.next_orphan = lay_put64(head);
    inode->orphan_prev = 0;
    ffs_super(fs)->orphan = lay_put64(inode->ino);
    struct ffs_inode *second;
    if (head == LAY_NONE || ffs_inode_load(fs, head, true, &second))
        return 0;
    second->orphan_prev = inode->ino;
    ffs_inode_put_meta(second);
    return 0;
}

/*
 * Returns true if the inode named by the hint is the predecessor. In that case
 * *out is a reference to it.
 */
static bool orphan_try_hint(struct ffs *fs, const struct ffs_inode *inode, struct ffs_inode **out)
{
    if (inode->orphan_prev == 0 || ffs_inode_load(fs, inode->orphan_prev, true, out))
        return false;
    if (lay_get64((*out)->d.next_orphan) == inode->ino)
        return true;
    ffs_inode_put_meta(*out);
    *out = NULL;
    return false;
}

/*
 * Finds the predecessor in the list by the hint, or else by a walk from the
 * head. Adds a reference to the predecessor. Returns 0 or -errno.
 */
static int orphan_find_prev(struct ffs *fs, const struct ffs_inode *inode, struct ffs_inode **out)
{
    uint64_t at = lay_get64(ffs_super(fs)->orphan);
    uint64_t left = lay_get64(ffs_super(fs)->inodes);

    if (orphan_try_hint(fs, inode, out))
        return 0;
    while (at != LAY_NONE && at != 0 && left-- > 0) {
        int err = ffs_inode_load(fs, at, true, out);
        if (err)
            return err == -ESTALE ? ffs_corrupt(fs, 0, at, "on the orphan list, but free") : err;
        at = lay_get64((*out)->d.next_orphan);
        if (at == inode->ino)
            return 0;
        ffs_inode_put_meta(*out);
        *out = NULL;
    }
    return ffs_corrupt(fs, 0, inode->ino, "not on the orphan list");
}

int ffs_orphan_del(struct ffs_tx *tx, struct ffs_inode *inode)
{
    struct ffs *fs = tx->fs;
    struct ffs_inode *prev = NULL;
    uint64_t next = lay_get64(inode->d.next_orphan);

    if (next == 0)
        return 0;

    int err = ffs_inode_dirty(tx, inode);
    if (!err)
        err = ffs_tx_dirty(tx, fs->super);
    if (!err && lay_get64(ffs_super(fs)->orphan) != inode->ino)
        err = orphan_find_prev(fs, inode, &prev);
    if (!err && prev)
        err = ffs_inode_dirty(tx, prev);
    if (err)
        goto put;
    if (prev)
        prev->d.next_orphan = lay_put64(next);
    else
        ffs_super(fs)->orphan = lay_put64(next);
    inode->d.next_orphan = lay_put64(0);

    struct ffs_inode *after;
    if (next != LAY_NONE && !ffs_inode_load(fs, next, true, &after)) {
        after->orphan_prev = prev ? prev->ino : 0;
        ffs_inode_put_meta(after);
    }
put:
    if (prev)
        ffs_inode_put_meta(prev);
    return err;
}

/* Finishes the inode at the head of the list. */
static int orphan_finish_one(struct ffs *fs, uint64_t ino)
{
    struct ffs_inode *inode;
    int err = ffs_iget(fs, ino, &inode);

    if (err)
        return err == -ESTALE ? ffs_corrupt(fs, 0, ino, "on the orphan list, but free") : err;
    /* Dropping the only reference of an unlinked inode frees it. */
    if (lay_get32(inode->d.nlink) != 0)
        err = fs->semantics->truncate_finish(inode);
    ffs_iput(inode, 1);
    return err;
}

/*
 * Returns true if the inode could not be finished because a block of it is
 * damaged. Such an inode and the inodes after it stay on the list until fsck
 * has repaired the damage.
 */
static bool orphan_is_damaged(struct ffs *fs, int err, uint64_t ino)
{
    bool stays = lay_get64(ffs_super(fs)->orphan) == ino;

    if ((err && err != -EUCLEAN) || !stays || !atomic_load(&fs->checked.any_damaged) ||
        ffs_health(fs))
        return false;
    ffs_log(fs, LOG_WARNING, "inode %llu: damaged, so it cannot be freed; run fsck.gpunvme",
            (unsigned long long)ino);
    return true;
}

/*
 * The loop ends on any image: a finished inode leaves the list, so a list that
 * is a ring becomes open.
 */
int ffs_orphans_finish(struct ffs *fs)
{
    for (;;) {
        uint64_t ino = lay_get64(ffs_super(fs)->orphan);
        if (ino == LAY_NONE)
            return 0;
        int err = orphan_finish_one(fs, ino);
        if (orphan_is_damaged(fs, err, ino))
            return 0;
        if (!err && lay_get64(ffs_super(fs)->orphan) == ino)
            err = ffs_corrupt(fs, 0, ino, "the orphan list is a ring");
        if (err)
            return err;
    }
}
