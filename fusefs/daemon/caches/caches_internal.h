/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Shared by the files of caches.h. caches.c calls caches_walk.c, and both call
 * caches_table.c.
 */
#ifndef FUSEFS_DAEMON_CACHES_CACHES_INTERNAL_H
#define FUSEFS_DAEMON_CACHES_CACHES_INTERNAL_H

#include <pthread.h>

#include "fusefs/daemon/base/ledger.h"
#include "fusefs/daemon/caches/caches.h"
#include "support/evict.h"

/* Bits of an inode's word that kernel_cache.h does not use. */
#define WORD_REMOVED  4u          /* removed by the thread; opens fail */
#define WORD_EXAMINED 8u          /* the directory's attribute has been read */
#define WORD_OPENS    0xffff0000u /* open descriptions, saturating */
#define WORD_ONE_OPEN 0x10000u

/* Replaces the bits in mask. */
void caches_word_set(struct ffs_inode *inode, uint32_t mask, uint32_t bits);
/* Sets WORD_REMOVED and returns true, or returns false if the inode is open. */
bool caches_word_claim(struct ffs_inode *inode);

/* The thread starts to remove files at this size. */
#define CACHES_BEGIN(limit) ((limit) - (limit) / 20)
/*
 * Number of files that a walk stores with their names, which takes a few
 * megabytes. A round of more files has several walks.
 */
#define CACHES_VICTIMS 16384u
#define CACHES_ENTRIES 128u /* read from a directory at a time */

struct caches_entry {
    uint64_t ino, cookie;
    uint8_t type;
    char name[256];
};

/* One round of a cache directory: walks, and removals beyond its limit. */
struct caches_round {
    struct evict evict;
    struct caches *owner;
    int cache;
    uint64_t grown;   /* of the cache at the start */
    uint64_t need;    /* room that a writer needs */
    uint64_t refused; /* need, if removals cannot make that room */
    uid_t user;       /* owner of the directory; only what that user may unlink is removed */
    /* The directory entered, and what the user may do there. */
    struct ffs_inode *dir;
    bool may_write, sticky;
    uint64_t after; /* cookie of the last entry */
    size_t n_entries, next_entry;
    struct caches_entry entries[CACHES_ENTRIES];
};
/* The caller holds the lock. Returns a round of entry i, or NULL without memory. */
struct caches_round *caches_round_new(struct caches *c, int i);

struct cache {
    struct ffs_inode *dir; /* reference; NULL without a limit */
    uid_t owner;           /* of the directory, when the limit was set */
    uint64_t limit;
    uint64_t walked;  /* bytes at the last walk */
    uint64_t grown;   /* upper bound of the growth since then */
    uint64_t holding; /* upper bound for writes in progress */
    uint64_t need;    /* largest request of a waiting writer */
    uint64_t files, removed_files, removed_bytes;
    uint64_t asked, begun, ended; /* counts of rounds; one is due while asked > begun */
    unsigned waiting;             /* threads that wait for a round */
    uint64_t refused;             /* room that the last round could not make, or 0 */
    bool barren;                  /* the last round should have removed files but found none */
    uint64_t rests_until;         /* in now_ns() time; no round begins before */
    int64_t logged;               /* now_s() of the last warning, or 0 */
    struct caches_round *round;   /* in progress; the thread frees it */
    uint64_t turn, user_turn;     /* last turns of this cache, and of those of its owner */
};

struct caches {
    struct ffs *fs;
    struct ffs_inode *root; /* of the file system */
    caches_removed_fn removed;
    void *arg;
    pthread_t thread;
    /*
     * Protects the members below. It is not held during calls that wait for an
     * inode.
     */
    pthread_mutex_t lock;
    pthread_cond_t asked, ended;
    bool running, stop;
    _Atomic unsigned used; /* number of entries in use */
    unsigned next;         /* start of the search for a free entry */
    uint64_t turns;        /* of the thread */
    struct ledger owners;  /* of the directories, charged with one for each */
    /* Used by the thread only: inodes on which something is mounted. */
    int mounts; /* /proc/self/mountinfo, or -1 */
    bool mounts_read;
    uint64_t *mounted;
    size_t n_mounted;
    struct cache at[CACHES_MAX];
};

/* caches_mounts.c */

/* Reads the mounts if they have changed. */
void caches_read_mounts(struct caches *c);
bool caches_is_mounted(const struct caches *c, uint64_t ino);

/* caches_table.c */

/* Parses a decimal number above 0. Returns 0 or -EINVAL. */
int caches_parse(const char *value, size_t len, uint64_t *limit);
/* The caller holds the lock. Returns the entry of the directory, or -1. */
int caches_find(const struct caches *c, const struct ffs_inode *dir);
/* The caller holds the lock. Requests a round of this cache. */
void caches_ask(struct caches *c, struct cache *k);
/*
 * Gives the directory a limit. *round is the number of the first round that
 * enforces it. Returns -ENOSPC if the owner has too many.
 */
int caches_enter(struct caches *c, struct ffs_inode *dir, uint64_t limit, uint64_t *round);
/* Removes the limit of a directory on which the caller holds a reference. */
void caches_leave(struct caches *c, struct ffs_inode *dir);
/* Reads the limit set by an earlier mount, once for each inode in memory. */
void caches_examine(struct caches *c, struct ffs_inode *inode);

#endif
