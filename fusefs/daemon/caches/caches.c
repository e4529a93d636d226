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

/*
 * Bytes of tree blocks that a write of a file may need in addition to its data.
 */
#define TREE_BYTES 16384u
#define GPU_UNIT   (2u << 20)
/*
 * Time between rounds of a cache that remove nothing, for example while all
 * files are open.
 */
#define PAUSE_MS 100u
/* Entries and files of one cache that the thread handles before the next turn. */
#define TURN  256u
#define LOG_S 60
/*
 * Calls of one owner that wait for caches without a file to remove. Each occupies
 * a session thread, so further ones do not wait.
 */
#define WAITING_MAX 4u

/* --- The thread ------------------------------------------------------------------------------ */

/* The caller holds the lock. */
static uint64_t taken(const struct cache *k)
{
    return k->walked + k->grown + k->holding;
}

static void warn_barren(struct cache *k, const struct evict *e)
{
    if (k->logged && now_s() - k->logged < LOG_S)
        return;
    k->logged = now_s();
    log_line(LOG_WARNING,
             "inode %" PRIu64 ": the cache directory has %" PRIu64 " bytes, limit %" PRIu64
             ", and no file that can be removed",
             e->root, e->bytes, k->limit);
}

/* The caller holds the lock. Returns NULL without memory. */
static struct caches_round *round_begin(struct caches *c, int i)
{
    struct cache *k = &c->at[i];

    k->begun = k->asked;
    k->round = caches_round_new(c, i);
    if (k->round) {
        k->round->grown = k->grown;
        k->round->need = k->need;
    }
    k->need = 0;
    return k->round;
}

/* The caller holds the lock. Takes over the results of a round. */
static void round_end(struct cache *k, const struct caches_round *r, int err)
{
    const struct evict *e = &r->evict;

    if (!k->dir)
        return;
    k->ended = k->begun;
    k->removed_files += e->removed_files;
    k->removed_bytes += e->removed_bytes;
    k->refused = r->refused;
    k->barren = err || (!e->removed_files && e->bytes > e->begin);
    k->rests_until = k->barren ? deadline_after_ms(PAUSE_MS) : 0;
    if (err)
        return;
    k->walked = e->bytes;
    k->grown -= r->grown < k->grown ? r->grown : k->grown; /* may have been cleared */
    k->files = e->files;
    if (k->barren)
        warn_barren(k, e);
}

/* The caller holds the lock, which is released during the turn. */
static void caches_turn(struct caches *c, int i)
{
    struct cache *k = &c->at[i];
    struct caches_round *r = k->round ? k->round : round_begin(c, i);
    int more = k->dir ? 1 : 0;

    k->turn = ++c->turns;
    for (int other = 0; other < CACHES_MAX; other++) {
        if (c->at[other].owner == k->owner)
            c->at[other].user_turn = c->turns;
    }
    if (!r) {
        k->rests_until = deadline_after_ms(PAUSE_MS);
        k->asked++;
        return;
    }
    pthread_mutex_unlock(&c->lock);
    if (more)
        more = evict_step(&r->evict, TURN);
    if (more != 1)
        evict_end(&r->evict);
    pthread_mutex_lock(&c->lock);
    if (more == 1)
        return;
    k->round = NULL;
    round_end(k, r, more);
    free(r);
    pthread_cond_broadcast(&c->ended);
}

/*
 * The caller holds the lock. The caches of the owner that waited longest come
 * first, and of those the one with a round in progress, so that an owner has one
 * round at a time.
 */
static bool goes_before(const struct cache *a, const struct cache *b)
{
    if (a->user_turn != b->user_turn)
        return a->user_turn < b->user_turn;
    return a->round || b->round ? a->round != NULL : a->turn < b->turn;
}

/*
 * The caller holds the lock. Returns the next cache for which a turn is due, or
 * -1. In that case *until is the time of the next one, or UINT64_MAX.
 */
static int next_due(const struct caches *c, uint64_t *until)
{
    uint64_t now = now_ns();
    int due = -1;

    *until = UINT64_MAX;
    for (int i = 0; i < CACHES_MAX; i++) {
        const struct cache *k = &c->at[i];
        if (!k->round && (!k->dir || k->asked == k->begun))
            continue;
        if (!k->round && k->rests_until > now)
            *until = k->rests_until < *until ? k->rests_until : *until;
        else if (due < 0 || goes_before(k, &c->at[due]))
            due = i;
    }
    return due;
}

static void *caches_keep(void *arg)
{
    struct caches *c = arg;
    uint64_t until;

    pthread_mutex_lock(&c->lock);
    while (!c->stop) {
        int i = next_due(c, &until);
        if (i >= 0)
            caches_turn(c, i);
        else if (until == UINT64_MAX)
            pthread_cond_wait(&c->asked, &c->lock);
        else
            cond_wait_until(&c->asked, &c->lock, until);
    }
    pthread_mutex_unlock(&c->lock);
    for (int i = 0; i < CACHES_MAX; i++) {
        if (c->at[i].round)
            evict_end(&c->at[i].round->evict);
        free(c->at[i].round);
    }
    return NULL;
}

/* --- Open and close -------------------------------------------------------------------------- */

int caches_open(struct ffs *fs, int mounts, struct caches **out)
{
    struct caches *c = calloc(1, sizeof(*c));

    if (!c)
        return -ENOMEM;
    c->fs = fs;
    c->mounts = mounts;
    c->owners = (struct ledger){.total = CACHES_MAX, .for_root = CACHES_FOR_ROOT};
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
    free(c->mounted);
    free(c);
}

/* --- The attributes -------------------------------------------------------------------------- */

/*
 * The caller holds the lock. Waits for the end of a round, by its number.
 * Returns false if the deadline passes first.
 */
static bool await_round(struct caches *c, struct cache *k, uint64_t round, uint64_t deadline)
{
    const struct ffs_inode *dir = k->dir;
    bool in_time = true;

    k->waiting++;
    while (in_time && !c->stop && k->dir == dir && k->ended < round) {
        caches_ask(c, k);
        in_time = cond_wait_until(&c->ended, &c->lock, deadline) != ETIMEDOUT;
    }
    k->waiting--;
    return in_time;
}

/* The caller holds the lock. */
static bool too_many_wait(const struct caches *c, const struct cache *k)
{
    unsigned n = 0;

    for (int i = 0; k->barren && i < CACHES_MAX; i++)
        n += c->at[i].owner == k->owner ? c->at[i].waiting : 0;
    return n >= WAITING_MAX;
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
    uint64_t limit, round;
    int err = check_owner(dir, caller);

    if (!err)
        err = caches_parse(value, len, &limit);
    if (!err)
        err = ffs_setxattr(dir, CACHES_LIMIT_XATTR, value, len, flags);
    if (err)
        return err;
    err = caches_enter(c, dir, limit, &round);
    if (err) {
        (void)ffs_removexattr(dir, CACHES_LIMIT_XATTR);
        return err;
    }
    pthread_mutex_lock(&c->lock);
    int i = caches_find(c, dir);
    if (i >= 0 && !too_many_wait(c, &c->at[i]))
        await_round(c, &c->at[i], round, deadline_after_ms(CACHES_WAIT_MS));
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
 * The caller holds the lock. Returns true if there is room. The size of the
 * files is unknown before the first walk.
 */
static bool caches_fits(const struct cache *k, uint64_t bytes)
{
    return k->ended && bytes <= k->limit && taken(k) <= k->limit - bytes;
}

/* The caller holds the lock. Waits for room. Returns 0 or -ENOSPC. */
static int make_room(struct caches *c, struct cache *k, uint64_t bytes)
{
    uint64_t deadline = deadline_after_ms(CACHES_WAIT_MS);

    if (too_many_wait(c, k))
        return -ENOSPC;
    do {
        k->need = k->need > bytes ? k->need : bytes;
        bool in_time = await_round(c, k, k->begun + 1, deadline);
        if (c->stop || !k->dir)
            return 0;
        if (caches_fits(k, bytes))
            return 0;
        if (!in_time && !k->ended)
            return 0;                     /* the first walk will count these bytes */
        if (!in_time || bytes > k->limit) /* the limit may have changed */
            return -ENOSPC;
    } while (!k->barren && !(k->refused && bytes >= k->refused));
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
        if (k->walked + k->grown > CACHES_BEGIN(k->limit) && !k->barren)
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

int caches_charge_in(struct caches *c, struct ffs_inode *inode, uint64_t offset, uint64_t len,
                     struct caches_charge *charge)
{
    int i = charge->cache;
    struct ffs_attr a;

    *charge = (struct caches_charge){.cache = -1};
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
void caches_charge_out(struct caches *c, struct ffs_inode *inode,
                       const struct caches_charge *charge)
{
    struct ffs_attr a;

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

/*
 * Called after a rename between two directories of cache i, before which `ended`
 * rounds had ended. A walk in between may have found the inode in neither. A
 * file then counts as growth; for a directory or an exchange another round
 * follows.
 */
static void count_moved(struct caches *c, int i, uint64_t ended, const struct ffs_attr *a,
                        bool exchange)
{
    struct cache *k = &c->at[i];

    pthread_mutex_lock(&c->lock);
    if (k->dir && (k->round || k->ended != ended)) {
        k->grown += S_ISREG(a->mode) ? a->blocks * 512 : 0;
        if (exchange || S_ISDIR(a->mode))
            caches_ask(c, k);
    }
    pthread_mutex_unlock(&c->lock);
}

static int rename_within(struct caches *c, int i, const struct caches_rename *r,
                         struct ffs_inode *inode)
{
    struct ffs_attr a;

    pthread_mutex_lock(&c->lock);
    uint64_t ended = c->at[i].ended;
    pthread_mutex_unlock(&c->lock);
    int err = rename_plain(r);
    ffs_getattr(inode, &a);
    if (!err)
        count_moved(c, i, ended, &a, r->flags & RENAME_EXCHANGE);
    return err;
}

static void adopt_name(struct caches *c, struct ffs_inode *dir, const char *name)
{
    struct ffs_inode *inode;

    if (ffs_lookup(dir, name, &inode) != 0)
        return;
    caches_adopt(c, dir, inode);
    ffs_iput(inode, 1);
}

/* Like hold_file(), for the file that an exchange moves the other way. */
static int hold_other(struct caches *c, const struct caches_rename *r, struct caches_charge *charge)
{
    struct ffs_inode *other;
    int err;

    *charge = (struct caches_charge){.cache = -1};
    if (!(r->flags & RENAME_EXCHANGE))
        return 0;
    err = ffs_lookup(r->new_dir, r->new_name, &other);
    if (err)
        return err;
    err = hold_file(c, r->dir, other, charge);
    ffs_iput(other, 1);
    return err;
}

static int rename_between(struct caches *c, const struct caches_rename *r, struct ffs_inode *inode)
{
    struct caches_charge charge, other;
    int err = hold_file(c, r->new_dir, inode, &charge);

    if (err)
        return err;
    err = hold_other(c, r, &other);
    if (!err)
        err = rename_plain(r);
    caches_let_go(c, &charge, err ? 0 : charge.held);
    caches_let_go(c, &other, err ? 0 : other.held);
    if (err)
        return err;
    adopt_name(c, r->new_dir, r->new_name);
    adopt_name(c, r->dir, r->name); /* for an exchange */
    return 0;
}

int caches_rename(struct caches *c, const struct caches_rename *r)
{
    struct ffs_inode *inode;
    int i = caches_word_cache(r->dir);
    bool within = i == caches_word_cache(r->new_dir);

    if (within && (i < 0 || r->dir == r->new_dir))
        return rename_plain(r);
    int err = ffs_lookup(r->dir, r->name, &inode);
    if (err)
        return err;
    err = within ? rename_within(c, i, r, inode) : rename_between(c, r, inode);
    ffs_iput(inode, 1);
    return err;
}
