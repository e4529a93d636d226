/* SPDX-License-Identifier: BSD-2-Clause */
/* Records which directories have a limit, and which inodes belong to them. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>

#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/caches/caches_internal.h"
#include "support/number.h"

static bool is_dir(struct ffs_inode *inode)
{
    struct ffs_attr a;

    ffs_getattr(inode, &a);
    return S_ISDIR(a.mode);
}

int caches_parse(const char *value, size_t len, uint64_t *limit)
{
    char text[24] = "";

    if (len >= sizeof(text))
        return -EINVAL;
    memcpy(text, value, len);
    return number_parse(text, 10, INT64_MAX, limit) && *limit ? 0 : -EINVAL;
}

int caches_find(const struct caches *c, const struct ffs_inode *dir)
{
    for (int i = 0; i < CACHES_MAX; i++) {
        if (c->at[i].dir && ffs_ino(c->at[i].dir) == ffs_ino(dir))
            return i;
    }
    return -1;
}

/* The thread, or threads that wait for it, may still use an entry without a limit. */
static bool table_is_free(const struct cache *k)
{
    return !k->dir && !k->round && !k->waiting;
}

/*
 * The caller holds the lock. Returns the entry of the directory, or a free one.
 * The search starts behind the last entry used, so that entries are reused
 * late.
 */
static int entry_for(struct caches *c, struct ffs_inode *dir, uid_t owner)
{
    int i = caches_find(c, dir);

    for (unsigned n = 0; i < 0 && n < CACHES_MAX; n++) {
        unsigned at = (c->next + n) % CACHES_MAX;
        if (table_is_free(&c->at[at]))
            i = (int)at;
    }
    if (i < 0 || c->at[i].dir)
        return i;
    if (!ledger_take(&c->owners, owner, 1))
        return -1;
    c->next = (unsigned)i + 1;
    c->at[i] = (struct cache){.dir = dir, .owner = owner, .user_turn = c->turns};
    ffs_iref(dir, 1);
    c->used++;
    return i;
}

void caches_ask(struct caches *c, struct cache *k)
{
    if (k->asked == k->begun)
        k->asked++;
    pthread_cond_signal(&c->asked);
}

int caches_enter(struct caches *c, struct ffs_inode *dir, uint64_t limit, uint64_t *round)
{
    struct ffs_attr a;

    ffs_getattr(dir, &a);
    pthread_mutex_lock(&c->lock);
    int i = entry_for(c, dir, a.uid);
    if (i >= 0) {
        c->at[i].limit = limit;
        *round = c->at[i].begun + 1;
        caches_ask(c, &c->at[i]);
        caches_word_set(dir, CACHES_TAG | WORD_EXAMINED,
                        ((uint32_t)i + 1) * CACHES_ONE_TAG | WORD_EXAMINED);
    }
    pthread_mutex_unlock(&c->lock);
    return i < 0 ? -ENOSPC : 0;
}

void caches_leave(struct caches *c, struct ffs_inode *dir)
{
    pthread_mutex_lock(&c->lock);
    int i = caches_find(c, dir);
    if (i >= 0) {
        struct cache *k = &c->at[i];
        ledger_give(&c->owners, k->owner, 1);
        *k = (struct cache){.owner = k->owner, .waiting = k->waiting, .round = k->round};
        c->used--;
        caches_word_set(dir, CACHES_TAG, 0);
        pthread_cond_broadcast(&c->ended);
    }
    pthread_mutex_unlock(&c->lock);
    if (i >= 0)
        ffs_iput(dir, 1);
}

void caches_examine(struct caches *c, struct ffs_inode *inode)
{
    char value[24];
    uint64_t limit, round;

    if (caches_word_get(inode) & WORD_EXAMINED)
        return;
    caches_word_set(inode, WORD_EXAMINED, WORD_EXAMINED);
    if (!is_dir(inode))
        return;
    ssize_t n = ffs_getxattr(inode, CACHES_LIMIT_XATTR, value, sizeof(value));
    if (n > 0 && caches_parse(value, (size_t)n, &limit) == 0 &&
        caches_enter(c, inode, limit, &round) != 0)
        log_line(LOG_WARNING, "inode %" PRIu64 ": its limit is not kept: its owner has too many",
                 ffs_ino(inode));
}

void caches_adopt(struct caches *c, struct ffs_inode *dir, struct ffs_inode *inode)
{
    caches_examine(c, inode);
    uint32_t tag = caches_word_get(dir) & CACHES_TAG;
    if ((caches_word_get(inode) & CACHES_TAG) == tag)
        return;
    pthread_mutex_lock(&c->lock);
    if (caches_find(c, inode) < 0)
        caches_word_set(inode, CACHES_TAG, tag);
    pthread_mutex_unlock(&c->lock);
}

void caches_prune(struct caches *c)
{
    for (int i = 0; i < CACHES_MAX && c->used; i++) {
        struct ffs_attr a;
        pthread_mutex_lock(&c->lock);
        struct ffs_inode *dir = c->at[i].dir;
        if (dir)
            ffs_iref(dir, 1);
        pthread_mutex_unlock(&c->lock);
        if (!dir)
            continue;
        ffs_getattr(dir, &a);
        if (!a.nlink)
            caches_leave(c, dir);
        ffs_iput(dir, 1);
    }
}

/* --- Words of inodes ------------------------------------------------------------------------- */

/*
 * Replaces the bits `mask` of the word by `bits`, and adds `opens` (1, 0, -1) to
 * its count unless that is saturated. Returns false if a bit of `forbidden` is
 * set; the word is unchanged then.
 */
static bool table_change_word(struct ffs_inode *inode, uint32_t forbidden, uint32_t mask,
                              uint32_t bits, int opens)
{
    uint32_t *word = ffs_user_word(inode);
    uint32_t old = __atomic_load_n(word, __ATOMIC_SEQ_CST), next;

    do {
        if (old & forbidden)
            return false;
        next = (old & ~mask) | bits;
        if ((old & WORD_OPENS) != WORD_OPENS)
            next += (uint32_t)opens * WORD_ONE_OPEN;
    } while (
        !__atomic_compare_exchange_n(word, &old, next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return true;
}

void caches_word_set(struct ffs_inode *inode, uint32_t mask, uint32_t bits)
{
    table_change_word(inode, 0, mask, bits, 0);
}

bool caches_word_claim(struct ffs_inode *inode)
{
    return table_change_word(inode, WORD_OPENS, 0, WORD_REMOVED, 0);
}

int caches_file_opened(struct ffs_inode *inode)
{
    return table_change_word(inode, WORD_REMOVED, 0, 0, 1) ? 0 : -ESTALE;
}

void caches_file_closed(struct ffs_inode *inode)
{
    table_change_word(inode, 0, 0, 0, -1);
}

bool caches_counts_use(struct ffs_inode *inode)
{
    return caches_word_cache(inode) >= 0;
}
