/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Walks through a cache directory, counts and tags its files, and removes the
 * least recently used ones. It remembers up to VICTIMS files at a time, however
 * many there are.
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fusefs/daemon/caches/caches_internal.h"

/*
 * A round removes at least a twentieth of the bytes: of a million files of one
 * size that is 50,000, which one walk finds. The heap has 19 MB, of which a
 * walk of few files touches little.
 */
#define VICTIMS 65536u
#define ENTRIES 128u /* entries read from a directory at a time */

struct victim {
    struct timespec used;
    uint64_t dir, ino, bytes;
    char name[256];
};

struct entry {
    uint64_t ino, cookie;
    uint8_t type;
    char name[256];
};

struct walk {
    struct caches_round *r;
    uint64_t *dirs; /* inode numbers of unread directories */
    size_t n_dirs, room;
    struct victim *victims; /* heap with the most recently used file first */
    size_t n_victims;
    struct entry entries[ENTRIES];
    size_t n_entries;
};

static bool caches_walk_later(struct timespec a, struct timespec b)
{
    return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

static struct timespec last_use(const struct ffs_attr *a)
{
    return caches_walk_later(a->atime, a->mtime) ? a->atime : a->mtime;
}

/* --- The heap -------------------------------------------------------------------------------- */

static void swap(struct victim *a, struct victim *b)
{
    struct victim t = *a;

    *a = *b;
    *b = t;
}

static void sift_up(struct victim *v, size_t i)
{
    for (; i > 0 && caches_walk_later(v[i].used, v[(i - 1) / 2].used); i = (i - 1) / 2)
        swap(&v[i], &v[(i - 1) / 2]);
}

static void caches_walk_sift_down(struct victim *v, size_t n)
{
    size_t i = 0, child;

    while ((child = 2 * i + 1) < n) {
        if (child + 1 < n && caches_walk_later(v[child + 1].used, v[child].used))
            child++;
        if (!caches_walk_later(v[child].used, v[i].used))
            return;
        swap(&v[i], &v[child]);
        i = child;
    }
}

static void add_victim(struct walk *w, uint64_t dir, const struct entry *e,
                       const struct ffs_attr *a)
{
    struct victim v = {.used = last_use(a), .dir = dir, .ino = a->ino, .bytes = a->blocks * 512};

    memcpy(v.name, e->name, sizeof(v.name));
    if (w->n_victims < VICTIMS) {
        w->victims[w->n_victims] = v;
        sift_up(w->victims, w->n_victims++);
    } else if (caches_walk_later(w->victims[0].used, v.used)) {
        w->victims[0] = v;
        caches_walk_sift_down(w->victims, w->n_victims);
    }
}

/* --- Rights ---------------------------------------------------------------------------------- */

#define WRITE_AND_SEARCH 03u
#define READ_AND_SEARCH  05u

/*
 * Returns whether the owner of the cache has the rights on a directory. Groups
 * are unknown here, so a right that only a group or an ACL gives does not count.
 */
static bool owner_has(const struct caches_round *r, const struct ffs_attr *dir, unsigned rights)
{
    unsigned mode = dir->uid == r->user ? dir->mode >> 6 : dir->mode;

    return r->user == 0 || (mode & rights) == rights;
}

/* Returns whether the owner of the cache might unlink the file. */
static bool owner_may_unlink(const struct caches_round *r, struct ffs_inode *dir,
                             const struct ffs_attr *file)
{
    struct ffs_attr d;

    ffs_getattr(dir, &d);
    bool sticky = d.mode & S_ISVTX && d.uid != r->user && file->uid != r->user;
    return r->user == 0 || (!sticky && owner_has(r, &d, WRITE_AND_SEARCH));
}

/*
 * Returns whether a directory is walked: its owner may read it, and it is found
 * where its parent is. A crafted directory may name itself or one above it.
 */
static bool is_walked(const struct caches_round *r, struct ffs_inode *found_in,
                      struct ffs_inode *dir, const struct ffs_attr *a)
{
    struct ffs_inode *parent;

    if (a->ino == r->root || !owner_has(r, a, READ_AND_SEARCH) || ffs_parent(dir, &parent) != 0)
        return false;
    bool is_parent = ffs_ino(parent) == ffs_ino(found_in);
    ffs_iput(parent, 1);
    return is_parent;
}

/* --- The walk -------------------------------------------------------------------------------- */

static int add_dir(struct walk *w, uint64_t ino)
{
    if (w->n_dirs == w->room) {
        size_t room = w->room ? 2 * w->room : 64;
        uint64_t *dirs = realloc(w->dirs, room * sizeof(*dirs));
        if (!dirs)
            return -ENOMEM;
        w->dirs = dirs;
        w->room = room;
    }
    w->dirs[w->n_dirs++] = ino;
    return 0;
}

static int note_entry(void *arg, const char *name, size_t len, uint64_t ino, uint8_t type,
                      uint64_t cookie)
{
    struct walk *w = arg;

    if (w->n_entries == ENTRIES)
        return 1;
    struct entry *e = &w->entries[w->n_entries++];
    *e = (struct entry){.ino = ino, .cookie = cookie, .type = type};
    memcpy(e->name, name, len);
    return 0;
}

static bool caches_walk_is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/*
 * Counts a file, or queues a directory. Links are neither followed nor counted,
 * and entries that have disappeared are ignored.
 */
static int caches_walk_visit(struct walk *w, struct ffs_inode *dir, const struct entry *e)
{
    struct caches_round *r = w->r;
    struct ffs_inode *inode;
    struct ffs_attr a;
    int err = 0;

    if (caches_walk_is_dots(e->name) || (e->type != DT_DIR && e->type != DT_REG) ||
        ffs_iget(r->fs, e->ino, &inode) != 0)
        return 0;
    caches_adopt(r->owner, dir, inode);
    ffs_getattr(inode, &a);
    if (S_ISDIR(a.mode) && caches_word_cache(inode) == r->cache && is_walked(r, dir, inode, &a)) {
        err = add_dir(w, e->ino);
    } else if (S_ISREG(a.mode) && a.nlink) {
        r->bytes += a.blocks * 512;
        r->files++;
        if (!(caches_word_get(inode) & WORD_OPENS) && owner_may_unlink(r, dir, &a))
            add_victim(w, ffs_ino(dir), e, &a);
    }
    ffs_iput(inode, 1);
    return err;
}

static int read_dir(struct walk *w, uint64_t ino)
{
    struct ffs_inode *dir;
    uint64_t after = 0;
    int err = ffs_iget(w->r->fs, ino, &dir);

    if (err)
        return err == -ESTALE ? 0 : err;
    do {
        w->n_entries = 0;
        err = ffs_readdir(dir, after, note_entry, w);
        for (size_t i = 0; i < w->n_entries && !err; i++) {
            after = w->entries[i].cookie;
            err = w->r->stop(w->r->owner) ? -EINTR : caches_walk_visit(w, dir, &w->entries[i]);
        }
    } while (!err && w->n_entries == ENTRIES);
    ffs_iput(dir, 1);
    return err;
}

static int caches_walk_walk(struct walk *w)
{
    int err = add_dir(w, w->r->root);

    w->r->bytes = w->r->files = 0;
    w->n_victims = 0;
    while (!err && w->n_dirs > 0)
        err = read_dir(w, w->dirs[--w->n_dirs]);
    return err;
}

/* --- Removal --------------------------------------------------------------------------------- */

static int caches_walk_by_use(const void *a, const void *b)
{
    const struct victim *x = a, *y = b;

    return caches_walk_later(x->used, y->used) ? 1 : caches_walk_later(y->used, x->used) ? -1 : 0;
}

/*
 * Removes a name. A file without further names cannot be opened any more, so
 * its blocks are freed at once, and not only when the kernel forgets it.
 */
static int remove_inode(struct ffs_inode *dir, const char *name, struct ffs_inode *inode)
{
    struct ffs_attr a;
    int err = caches_word_claim(inode) ? ffs_unlink_inode(dir, name, inode) : -EBUSY;

    ffs_getattr(inode, &a);
    if (err || a.nlink) {
        if (err != -EBUSY)
            caches_word_set(inode, WORD_REMOVED, 0);
        return err;
    }
    a.size = 0;
    (void)ffs_setattr(inode, &a, FFS_SET_SIZE,
                      &a); /* on failure the last reference frees the blocks */
    return 0;
}

/*
 * Removes a file unless it was used or replaced after the walk found it.
 * Returns true if it was removed.
 */
static bool remove_victim(struct caches_round *r, const struct victim *v)
{
    struct ffs_inode *dir, *inode;
    struct ffs_attr a;
    int err = ffs_iget(r->fs, v->dir, &dir);

    if (err)
        return false;
    err = ffs_lookup(dir, v->name, &inode);
    if (!err) {
        ffs_getattr(inode, &a);
        bool changed = a.ino != v->ino || caches_walk_later(last_use(&a), v->used);
        err = changed || !owner_may_unlink(r, dir, &a) ? -EBUSY : remove_inode(dir, v->name, inode);
        ffs_iput(inode, 1);
    }
    ffs_iput(dir, 1);
    if (!err)
        r->removed(r->arg, v->dir, v->ino, v->name);
    return !err;
}

/* Returns the number of removed files. */
static size_t remove_some(struct walk *w)
{
    struct caches_round *r = w->r;
    size_t removed = 0;

    qsort(w->victims, w->n_victims, sizeof(w->victims[0]), caches_walk_by_use);
    for (size_t i = 0; i < w->n_victims && r->bytes > r->target && !r->stop(r->owner); i++) {
        const struct victim *v = &w->victims[i];
        if (!remove_victim(r, v))
            continue;
        removed++;
        r->files--;
        r->bytes -= v->bytes;
        r->removed_files++;
        r->removed_bytes += v->bytes;
    }
    return removed;
}

int caches_round(struct caches_round *r)
{
    struct walk *w = calloc(1, sizeof(*w));
    int err = w ? 0 : -ENOMEM;

    if (w)
        w->victims = malloc(VICTIMS * sizeof(w->victims[0]));
    if (w && !w->victims)
        err = -ENOMEM;
    if (!err) {
        w->r = r;
        err = caches_walk_walk(w);
    }
    bool over = !err && r->bytes > r->limit;
    while (over && remove_some(w) > 0 && r->bytes > r->target && !err)
        err = caches_walk_walk(w);
    if (w) {
        free(w->victims);
        free(w->dirs);
    }
    free(w);
    return err;
}
