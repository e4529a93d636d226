/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Accounts for the space that writers use in cache directories, and runs the
 * thread that enforces the limits.
 */
#include "fusefs/daemon/caches/caches.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>

#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/caches/caches_internal.h"
#include "layout/format.h"
#include "support/clock.h"

/* The thread starts to remove files at BEGIN and stops at TARGET. */
#define BEGIN(limit)  ((limit) - (limit) / 20)
#define TARGET(limit) ((limit) - (limit) / 10)
/*
 * Bytes of tree blocks that a write of a file may need in addition to its data.
 */
#define TREE_BYTES 16384u
#define GPU_UNIT   (2u << 20)
/*
 * Time between rounds that remove nothing, for example while all files are
 * open.
 */
#define PAUSE_MS 100u
#define LOG_S    60

/* --- The thread ------------------------------------------------------------------------------ */

static bool must_stop(struct caches *c)
{
    pthread_mutex_lock(&c->lock);
    bool stop = c->stop;
    pthread_mutex_unlock(&c->lock);
    return stop;
}

/* Called with the lock held. */
static uint64_t taken(const struct cache *k)
{
    return k->walked + k->grown + k->holding;
}

/*
 * Called with the lock held. Sets the sizes at which a round starts and stops
 * to remove files, so that waiting writers get room.
 */
static void caches_aim(const struct cache *k, struct caches_round *r)
{
    uint64_t coming = k->need + k->holding;
    uint64_t room = coming < k->limit ? k->limit - coming : 0;

    r->limit = BEGIN(k->limit) < room ? BEGIN(k->limit) : room;
    r->target = TARGET(k->limit) < room ? TARGET(k->limit) : room;
}

static void warn_barren(struct cache *k, const struct caches_round *r)
{
    if (k->logged && now_s() - k->logged < LOG_S)
        return;
    k->logged = now_s();
    log_line(LOG_WARNING,
             "inode %" PRIu64 ": the cache directory has %" PRIu64 " bytes, limit %" PRIu64
             ", and no file that is not open",
             r->root, r->bytes, k->limit);
}

/*
 * Called with the lock held, which is released during the round. The entry may
 * belong to another directory afterwards.
 */
static void make_round(struct caches *c, int i)
{
    struct cache *k = &c->at[i];
    struct ffs_inode *dir = k->dir;
    uint64_t before = k->grown;
    struct ffs_attr a;
    struct caches_round r = {.fs = c->fs, .root = ffs_ino(dir), .owner = c, .cache = i};

    r.removed = c->removed;
    r.arg = c->arg;
    r.stop = must_stop;
    caches_aim(k, &r);
    k->begun = k->asked;
    k->need = 0;
    ffs_iref(dir, 1);
    pthread_mutex_unlock(&c->lock);
    ffs_getattr(dir, &a);
    r.user = a.uid;
    int err = caches_round(&r);
    ffs_iput(dir, 1);
    pthread_mutex_lock(&c->lock);
    if (k->dir != dir)
        return;
    k->ended = k->begun;
    k->removed_files += r.removed_files;
    k->removed_bytes += r.removed_bytes;
    k->barren = err || (!r.removed_files && r.bytes > r.limit);
    if (err)
        return;
    k->walked = r.bytes;
    k->grown -= before < k->grown ? before : k->grown; /* may have been cleared */
    k->files = r.files;
    if (k->barren)
        warn_barren(k, &r);
}

/*
 * Called with the lock held. Returns the next cache for which a round is due,
 * or -1.
 */
static int next_due(const struct caches *c, int last)
{
    for (int n = 1; n <= CACHES_MAX; n++) {
        int i = (last + n) % CACHES_MAX;
        if (c->at[i].dir && c->at[i].asked > c->at[i].begun)
            return i;
    }
    return -1;
}

/*
 * Called with the lock held. Waits for PAUSE_MS, or until the thread must stop.
 */
static void pause_a_little(struct caches *c)
{
    uint64_t until = deadline_after_ms(PAUSE_MS);

    while (!c->stop && cond_wait_until(&c->asked, &c->lock, until) != ETIMEDOUT)
        ;
}

static void *caches_keep(void *arg)
{
    struct caches *c = arg;
    int i = 0;

    pthread_mutex_lock(&c->lock);
    while (!c->stop) {
        int due = next_due(c, i);
        if (due < 0) {
            pthread_cond_wait(&c->asked, &c->lock);
            continue;
        }
        i = due;
        make_round(c, i);
        pthread_cond_broadcast(&c->ended);
        if (c->at[i].barren)
            pause_a_little(c);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* --- Open and close -------------------------------------------------------------------------- */

int caches_open(struct ffs *fs, struct caches **out)
{
    struct caches *c = calloc(1, sizeof(*c));

    if (!c)
        return -ENOMEM;
    c->fs = fs;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->asked, NULL);
    pthread_cond_init(&c->ended, NULL);
    int err = ffs_iget(fs, LAY_INO_ROOT, &c->root);
    if (err) {
        caches_close(c);
        return err;
    }
    caches_examine(c, c->root);
    *out = c;
    return 0;
}

int caches_start(struct caches *c, caches_removed_fn removed, void *arg)
{
    c->removed = removed;
    c->arg = arg;
    int err = -pthread_create(&c->thread, NULL, caches_keep, c);
    c->running = !err;
    return err;
}

void caches_stop(struct caches *c)
{
    pthread_mutex_lock(&c->lock);
    bool running = c->running;
    c->stop = true;
    c->running = false;
    pthread_cond_broadcast(&c->asked);
    pthread_cond_broadcast(&c->ended);
    pthread_mutex_unlock(&c->lock);
    if (running)
        pthread_join(c->thread, NULL);
}

void caches_close(struct caches *c)
{
    if (!c)
        return;
    caches_stop(c);
    for (int i = 0; i < CACHES_MAX; i++) {
        if (c->at[i].dir)
            ffs_iput(c->at[i].dir, 1);
    }
    if (c->root)
        ffs_iput(c->root, 1);
    pthread_cond_destroy(&c->ended);
    pthread_cond_destroy(&c->asked);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* --- The attributes -------------------------------------------------------------------------- */

/*
 * Called with the lock held. Waits for the end of a round that starts after
 * this call. Returns false if the deadline passes first.
 */
static bool await_round(struct caches *c, const struct cache *k, uint64_t deadline)
{
    const struct ffs_inode *dir = k->dir;
    uint64_t round = k->begun + 1;

    while (!c->stop && k->dir == dir && k->ended < round) {
        caches_ask(c, (struct cache *)k);
        if (cond_wait_until(&c->ended, &c->lock, deadline) == ETIMEDOUT)
            return false;
    }
    return true;
}

/* Files are removed with the rights of the owner, so only the owner may cause that. */
static int check_owner(struct ffs_inode *dir, uid_t caller)
{
    struct ffs_attr a;

    ffs_getattr(dir, &a);
    if (!S_ISDIR(a.mode))
        return -EINVAL;
    return caller == 0 || caller == a.uid ? 0 : -EPERM;
}

int caches_set(struct caches *c, struct ffs_inode *dir, uid_t caller, const char *value, size_t len,
               int flags)
{
    uint64_t limit;
    int err = check_owner(dir, caller);

    if (!err)
        err = caches_parse(value, len, &limit);
    if (!err)
        err = ffs_setxattr(dir, CACHES_LIMIT_XATTR, value, len, flags);
    if (err)
        return err;
    err = caches_enter(c, dir, limit);
    if (err) {
        (void)ffs_removexattr(dir, CACHES_LIMIT_XATTR);
        return err;
    }
    pthread_mutex_lock(&c->lock);
    int i = caches_find(c, dir);
    if (i >= 0)
        await_round(c, &c->at[i], deadline_after_ms(CACHES_WAIT_MS));
    pthread_mutex_unlock(&c->lock);
    return 0;
}

int caches_clear(struct caches *c, struct ffs_inode *dir, uid_t caller)
{
    int err = check_owner(dir, caller);

    if (err == -EINVAL) /* a file may have the attribute, which then means nothing */
        err = 0;
    if (!err)
        err = ffs_removexattr(dir, CACHES_LIMIT_XATTR);
    if (!err)
        caches_leave(c, dir);
    return err;
}

ssize_t caches_state(struct caches *c, struct ffs_inode *dir, char *value, size_t size)
{
    char text[160];
    int n = -ENODATA;

    pthread_mutex_lock(&c->lock);
    int i = caches_find(c, dir);
    if (i >= 0) {
        const struct cache *k = &c->at[i];
        n = snprintf(text, sizeof(text),
                     "limit=%" PRIu64 " bytes=%" PRIu64 " files=%" PRIu64 " removed_files=%" PRIu64
                     " removed_bytes=%" PRIu64,
                     k->limit, taken(k), k->files, k->removed_files, k->removed_bytes);
    }
    pthread_mutex_unlock(&c->lock);
    if (n < 0 || !size)
        return n;
    if ((size_t)n > size)
        return -ERANGE;
    memcpy(value, text, (size_t)n);
    return n;
}

/* --- Writers --------------------------------------------------------------------------------- */

/*
 * Called with the lock held. Returns whether there is room. The size of the
 * files is unknown before the first walk.
 */
static bool caches_fits(const struct cache *k, uint64_t bytes)
{
    return k->ended && bytes <= k->limit && taken(k) <= k->limit - bytes;
}

/* Called with the lock held. Waits for room. Returns 0 or -ENOSPC. */
static int make_room(struct caches *c, struct cache *k, uint64_t bytes)
{
    uint64_t deadline = deadline_after_ms(CACHES_WAIT_MS);

    do {
        k->need = k->need > bytes ? k->need : bytes;
        bool in_time = await_round(c, k, deadline);
        if (c->stop || !k->dir)
            return 0;
        if (caches_fits(k, bytes))
            return 0;
        if (!in_time && !k->ended)
            return 0;                     /* the first walk will count these bytes */
        if (!in_time || bytes > k->limit) /* the limit may have changed */
            return -ENOSPC;
    } while (!k->barren);
    return -ENOSPC;
}

/*
 * Reserves bytes of cache i and waits for room. Returns 0 or -ENOSPC.
 * charge->cache stays -1 if nothing was reserved.
 */
static int caches_hold(struct caches *c, int i, uint64_t bytes, struct caches_charge *charge)
{
    struct cache *k = &c->at[i];
    int err = 0;

    pthread_mutex_lock(&c->lock);
    if (k->dir && bytes > k->limit) /* no removal makes room for it, so none is tried */
        err = -ENOSPC;
    else if (k->dir && bytes && !caches_fits(k, bytes))
        err = make_room(c, k, bytes);
    if (!err && k->dir) {
        *charge = (struct caches_charge){.cache = i, .held = bytes};
        k->holding += bytes;
        if (k->walked + k->grown > BEGIN(k->limit) && !k->barren)
            caches_ask(c, k);
    }
    pthread_mutex_unlock(&c->lock);
    return err;
}

/*
 * Ends a reservation, of which `grown` bytes were used. Does nothing without
 * one.
 */
static void caches_let_go(struct caches *c, const struct caches_charge *charge, uint64_t grown)
{
    if (charge->cache < 0)
        return;
    struct cache *k = &c->at[charge->cache];
    pthread_mutex_lock(&c->lock);
    k->holding -= charge->held < k->holding ? charge->held : k->holding;
    k->grown += k->dir ? grown : 0;
    pthread_mutex_unlock(&c->lock);
}

/*
 * Returns an upper bound of the bytes that a write of the range adds, which is
 * 0 if the file has no holes up to its end.
 */
static uint64_t may_grow(const struct ffs_attr *a, uint64_t offset, uint64_t len)
{
    uint64_t unit = a->flags & LAY_INODE_GPU_BOUND ? GPU_UNIT : LAY_BLOCK_SIZE;
    uint64_t end = offset + len < offset ? UINT64_MAX - unit : offset + len;

    if (!len || (a->blocks * 512 >= end && a->blocks * 512 >= a->size))
        return 0;
    return (end + unit - 1) / unit * unit - offset / unit * unit + TREE_BYTES;
}

int caches_charge_begin(struct caches *c, struct ffs_inode *inode, uint64_t offset, uint64_t len,
                        struct caches_charge *charge)
{
    int i = caches_word_cache(inode);
    struct ffs_attr a;

    *charge = (struct caches_charge){.cache = -1};
    if (i < 0)
        return 0;
    ffs_getattr(inode, &a);
    int err = caches_hold(c, i, may_grow(&a, offset, len), charge);
    charge->before = a.blocks * 512;
    return err;
}

/*
 * Each of several concurrent writers of a file may see blocks written by
 * another one, so the charge is limited to the growth that this writer may have
 * caused.
 */
void caches_charge_end(struct caches *c, struct ffs_inode *inode,
                       const struct caches_charge *charge)
{
    struct ffs_attr a;

    if (charge->cache < 0)
        return;
    ffs_getattr(inode, &a);
    uint64_t now = a.blocks * 512, grown = now > charge->before ? now - charge->before : 0;
    caches_let_go(c, charge, charge->held && grown > charge->held ? charge->held : grown);
}

/* --- Names ----------------------------------------------------------------------------------- */

/* Reserves the size of the file until the new name exists. */
static int hold_file(struct caches *c, struct ffs_inode *dir, struct ffs_inode *inode,
                     struct caches_charge *charge)
{
    struct ffs_attr a;
    int i = caches_word_cache(dir);

    *charge = (struct caches_charge){.cache = -1};
    if (caches_word_get(inode) & WORD_REMOVED)
        return -ESTALE;
    ffs_getattr(inode, &a);
    return i >= 0 && S_ISREG(a.mode) ? caches_hold(c, i, a.blocks * 512, charge) : 0;
}

int caches_link(struct caches *c, struct ffs_inode *inode, struct ffs_inode *dir, const char *name)
{
    struct caches_charge charge;
    int err = hold_file(c, dir, inode, &charge);

    if (err)
        return err;
    err = ffs_link(inode, dir, name);
    caches_let_go(c, &charge, err ? 0 : charge.held);
    if (!err)
        caches_adopt(c, dir, inode);
    return err;
}

static int rename_plain(const struct caches_rename *r)
{
    return ffs_rename(r->dir, r->name, r->new_dir, r->new_name, r->flags);
}

static void adopt_name(struct caches *c, struct ffs_inode *dir, const char *name)
{
    struct ffs_inode *inode;

    if (ffs_lookup(dir, name, &inode) != 0)
        return;
    caches_adopt(c, dir, inode);
    ffs_iput(inode, 1);
}

int caches_rename(struct caches *c, const struct caches_rename *r)
{
    struct caches_charge charge;
    struct ffs_inode *inode;

    if (caches_word_cache(r->dir) == caches_word_cache(r->new_dir))
        return rename_plain(r);
    int err = ffs_lookup(r->dir, r->name, &inode);
    if (err)
        return err;
    err = hold_file(c, r->new_dir, inode, &charge);
    if (!err) {
        err = rename_plain(r);
        caches_let_go(c, &charge, err ? 0 : charge.held);
    }
    if (!err) {
        adopt_name(c, r->new_dir, r->new_name);
        adopt_name(c, r->dir, r->name); /* for an exchange */
    }
    ffs_iput(inode, 1);
    return err;
}
