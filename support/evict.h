/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Removes the least recently used files of a directory tree until the others
 * are small enough. The mount's cache directories and the command `gpunvme
 * cache` use it; evict_ops reaches their trees.
 *
 * A pass reads every directory once, even one that a damaged tree names several
 * times, and then removes files. It works in steps, so that one thread can serve
 * several trees in turn. The functions do not lock.
 */
#ifndef SUPPORT_EVICT_H
#define SUPPORT_EVICT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>
#include <time.h>

__BEGIN_DECLS

struct evict;

/* Describes a directory that has been found. The struct exists until the pass ends. */
struct evict_dir {
    const struct evict_dir *in; /* NULL for the root */
    struct evict_dir *next;     /* found after this one */
    uint64_t ino;
    char name[]; /* in the directory `in` */
};

/* Describes an entry of a directory. bytes and used are set only for files. */
struct evict_file {
    const char *name; /* valid until the next call */
    uint64_t ino;
    uint64_t bytes;       /* disk usage */
    struct timespec used; /* last use */
};

enum evict_kind {
    EVICT_END,       /* no further entry */
    EVICT_OTHER,     /* not counted */
    EVICT_DIRECTORY, /* to be read */
    EVICT_FIXED,     /* a file that is counted and never removed */
    EVICT_FILE,      /* a file that may be removed */
};

struct evict_ops {
    /*
     * Makes dir the directory of the other functions, at its start, or none if
     * dir is NULL. Returns 0, 1 if the directory cannot be read and is
     * ignored, or -errno.
     */
    int (*enter)(void *arg, const struct evict_dir *dir);
    /* Fills in *f and returns an enum evict_kind, or -errno. */
    int (*next)(void *arg, struct evict_file *f);
    /*
     * Removes a file of the directory, unless it was used or replaced since
     * next() returned it. Returns true if it is gone.
     */
    bool (*remove)(void *arg, const struct evict_file *f);
    /*
     * Sets e->begin and e->end after all directories have been read. NULL
     * leaves them as the caller set them.
     */
    void (*aim)(void *arg, struct evict *e);
};

struct evict {
    /* Set by the caller. All other members are 0 at first. */
    const struct evict_ops *ops;
    void *arg;
    uint64_t root;  /* inode number */
    size_t most;    /* files that a pass stores, at most twice as many for a while */
    uint64_t begin; /* files are removed if there are more bytes */
    uint64_t end;   /* the removal ends at this size */
    /* Results: the remaining files and the removed files. */
    uint64_t bytes, files;
    uint64_t fixed; /* bytes of EVICT_FIXED */
    uint64_t removed_files, removed_bytes;
    /* Private state of evict.c. */
    struct evict_dir *first, *last, *at;
    void *seen; /* tsearch(3) */
    struct evict_victim *victims;
    size_t n_victims, next_victim;
    uint64_t removed_before; /* in earlier passes */
    bool removes;            /* the directories have been read */
    bool entered;            /* `at` can be read */
    bool forgot;             /* the pass found more than `most` files */
};

/*
 * Handles at most n entries or files. Returns 1 if there is more to do, 0 at the
 * end, or -errno, after which the results cover a part of the tree. Another pass
 * follows if one could not remember all files.
 */
int evict_step(struct evict *e, unsigned n);
/* Frees the state and leaves the directory. The results remain. */
void evict_end(struct evict *e);

/* Returns true if a is later than b. */
static inline bool evict_later(struct timespec a, struct timespec b)
{
    return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

__END_DECLS

#endif
