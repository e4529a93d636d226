/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the files of caches.h share. caches_names.c calls caches.c, that calls caches_walk.c, and
 * all call caches_table.c and caches_word.c.
 */
#ifndef FUSEFS_DAEMON_CACHES_CACHES_INTERNAL_H
#define FUSEFS_DAEMON_CACHES_CACHES_INTERNAL_H

#include <pthread.h>

#include "fusefs/daemon/caches/caches.h"

/* The kernel's bits are those of kernel_cache.h. */
#define WORD_REMOVED  4u          /* by the thread, with its last name: it is not opened any more */
#define WORD_EXAMINED 8u          /* the attribute of a directory has been looked for */
#define WORD_TAG      0xff00u     /* number of the cache + 1; 0: none */
#define WORD_OPENS    0xffff0000u /* open file descriptions; full, it stays so */
#define WORD_ONE_TAG  0x100u
#define WORD_ONE_OPEN 0x10000u

static inline uint32_t caches_word_get(struct ffs_inode *inode)
{
    return __atomic_load_n(ffs_user_word(inode), __ATOMIC_SEQ_CST);
}
/* Replaces the bits of mask. */
void caches_word_set(struct ffs_inode *inode, uint32_t mask, uint32_t bits);
/* The number of the inode's cache, or -1. */
static inline int caches_word_cache(struct ffs_inode *inode)
{
    return (int)((caches_word_get(inode) & WORD_TAG) / WORD_ONE_TAG) - 1;
}
/* Sets WORD_REMOVED unless the inode is open: then false. */
bool caches_word_claim(struct ffs_inode *inode);

/* One look at a cache directory, and the removal of files beyond its limit. */
struct caches_round {
    struct ffs *fs;
    uint64_t root;   /* inode number */
    uint64_t limit;  /* nothing is removed up to here, bytes */
    uint64_t target; /* else down to here */
    struct caches *owner;
    int cache;
    caches_removed_fn removed;
    void *arg;
    bool (*stop)(struct caches *owner); /* polled */
    /* Out. */
    uint64_t bytes, files; /* as found, less the removed ones */
    uint64_t removed_files, removed_bytes;
};
/* 0, or -errno when the directory could not be read: the counts are then of a part. */
int caches_round(struct caches_round *r);

struct cache {
    struct ffs_inode *dir; /* a reference; NULL: the entry is free */
    uint64_t limit;
    uint64_t walked;  /* at the last walk, bytes */
    uint64_t grown;   /* since then, at most */
    uint64_t holding; /* by writes under way, at most */
    uint64_t need;    /* most of what a waiting writer wants */
    uint64_t files, removed_files, removed_bytes;
    uint64_t asked, begun, ended; /* rounds: one is due while asked > begun */
    bool barren;                  /* the last round removed nothing that it should have */
    int64_t logged;               /* now_s() of the last warning, 0: none */
};

struct caches {
    struct ffs *fs;
    struct ffs_inode *root; /* of the file system */
    caches_removed_fn removed;
    void *arg;
    pthread_t thread;
    pthread_mutex_t lock; /* protects the rest; held during no call that waits for an inode */
    pthread_cond_t asked, ended;
    bool running, stop;
    _Atomic unsigned used; /* entries taken */
    unsigned next;         /* where a free entry is looked for first */
    struct cache at[CACHES_MAX];
};

/* caches_table.c; under the lock where said. */

/* A decimal number above 0, or -EINVAL. */
int caches_parse(const char *value, size_t len, uint64_t *limit);
/* Under the lock: the entry of the directory, or -1. */
int caches_find(const struct caches *c, const struct ffs_inode *dir);
/* Under the lock: a round of this cache is due. */
void caches_ask(struct caches *c, struct cache *k);
/* The directory has this limit from now on. -ENOSPC: too many of them. */
int caches_enter(struct caches *c, struct ffs_inode *dir, uint64_t limit);
/* The directory, on which the caller has a reference, has no limit any more. */
void caches_leave(struct caches *c, struct ffs_inode *dir);
/* Once for each inode in memory: the limit that an earlier mount has set. */
void caches_examine(struct caches *c, struct ffs_inode *inode);

/* caches.c */

/*
 * Bytes that the cache `i` will take; waits for room. -ENOSPC: there is none. charge->cache stays
 * -1 where nothing was held.
 */
int caches_hold(struct caches *c, int i, uint64_t bytes, struct caches_charge *charge);
/* They have grown by so much. Nothing, where nothing was held. */
void caches_let_go(struct caches *c, const struct caches_charge *charge, uint64_t grown);

#endif
