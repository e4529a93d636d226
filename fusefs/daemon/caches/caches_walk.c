/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Gives evict.h the tree of a cache directory: counts and tags its files, and
 * removes those that the owner of the cache might unlink.
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fusefs/daemon/caches/caches_internal.h"

#define TARGET(limit) ((limit) - (limit) / 10) /* the removal of files ends at this size */

static struct timespec last_use(const struct ffs_attr *a)
{
    return evict_later(a->atime, a->mtime) ? a->atime : a->mtime;
}

/* --- Rights ---------------------------------------------------------------------------------- */

#define WRITE_AND_SEARCH 03u
#define READ_AND_SEARCH  05u

/*
 * Returns true if the owner of the cache has the rights on a directory. The
 * groups of the owner are unknown, and an ACL may name the owner. A right on the
 * directory of another user therefore counts only if all groups and all others
 * have it, and if there is no ACL.
 */
static bool owner_has(const struct caches_round *r, struct ffs_inode *dir, const struct ffs_attr *a,
                      unsigned rights)
{
    unsigned mode = a->uid == r->user ? a->mode >> 6 : a->mode >> 3 & a->mode;

    if (r->user == 0)
        return true;
    return (mode & rights) == rights &&
           (a->uid == r->user || ffs_getxattr(dir, FFS_ACL_ACCESS, NULL, 0) <= 0);
}

/* Returns true if the owner of the cache might unlink a file of the directory entered. */
static bool owner_may_unlink(const struct caches_round *r, const struct ffs_attr *file)
{
    return r->may_write && (!r->sticky || file->uid == r->user);
}

/*
 * Returns true if a directory is walked: its owner may read it, and it is found
 * where its parent is. A crafted directory may name itself or one above it.
 */
static bool is_walked(const struct caches_round *r, struct ffs_inode *dir, const struct ffs_attr *a)
{
    struct ffs_inode *parent;

    if (!owner_has(r, dir, a, READ_AND_SEARCH) || ffs_parent(dir, &parent) != 0)
        return false;
    bool is_parent = ffs_ino(parent) == ffs_ino(r->dir);
    ffs_iput(parent, 1);
    return is_parent;
}

/* --- evict_ops ------------------------------------------------------------------------------- */

static int caches_walk_enter(void *arg, const struct evict_dir *dir)
{
    struct caches_round *r = arg;
    struct ffs_attr a;

    if (r->dir)
        ffs_iput(r->dir, 1);
    r->dir = NULL;
    r->after = 0;
    r->n_entries = r->next_entry = 0;
    int err = dir ? ffs_iget(r->owner->fs, dir->ino, &r->dir) : 0;
    if (err || !dir)
        return err == -ESTALE ? 1 : err;
    ffs_getattr(r->dir, &a);
    if (!dir->in) {
        r->user = a.uid;
        caches_read_mounts(r->owner);
    }
    r->may_write = owner_has(r, r->dir, &a, WRITE_AND_SEARCH);
    r->sticky = r->user && a.uid != r->user && a.mode & S_ISVTX;
    return 0;
}

static int note_entry(void *arg, const char *name, size_t len, uint64_t ino, uint8_t type,
                      uint64_t cookie)
{
    struct caches_round *r = arg;

    if (r->n_entries == CACHES_ENTRIES)
        return 1;
    struct caches_entry *e = &r->entries[r->n_entries++];
    *e = (struct caches_entry){.ino = ino, .cookie = cookie, .type = type};
    memcpy(e->name, name, len);
    return 0;
}

static bool caches_walk_is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Links are neither followed nor counted, nor are entries that have disappeared. */
static int caches_walk_visit(struct caches_round *r, const struct caches_entry *e,
                             struct evict_file *f)
{
    struct ffs_inode *inode;
    struct ffs_attr a;
    int kind = EVICT_OTHER;

    if (caches_walk_is_dots(e->name) || (e->type != DT_DIR && e->type != DT_REG) ||
        ffs_iget(r->owner->fs, e->ino, &inode) != 0)
        return EVICT_OTHER;
    caches_adopt(r->owner, r->dir, inode);
    ffs_getattr(inode, &a);
    *f = (struct evict_file){
        .name = e->name, .ino = a.ino, .bytes = a.blocks * 512, .used = last_use(&a)};
    bool mounted = caches_is_mounted(r->owner, a.ino);
    bool stays = mounted || caches_word_get(inode) & WORD_OPENS || !owner_may_unlink(r, &a);
    if (S_ISDIR(a.mode) && caches_word_cache(inode) == r->cache && !mounted &&
        is_walked(r, inode, &a))
        kind = EVICT_DIRECTORY;
    else if (S_ISREG(a.mode) && a.nlink)
        kind = stays ? EVICT_FIXED : EVICT_FILE;
    ffs_iput(inode, 1);
    return kind;
}

/* Cookies grow, so that a damaged directory has an end. */
static int caches_walk_next(void *arg, struct evict_file *f)
{
    struct caches_round *r = arg;

    if (r->next_entry == r->n_entries) {
        r->n_entries = r->next_entry = 0;
        int err = ffs_readdir(r->dir, r->after, note_entry, r);
        if (err)
            return err;
    }
    const struct caches_entry *e = &r->entries[r->next_entry++];
    if (r->n_entries == 0 || e->cookie <= r->after)
        return EVICT_END;
    r->after = e->cookie;
    return caches_walk_visit(r, e, f);
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

static bool caches_walk_remove(void *arg, const struct evict_file *f)
{
    struct caches_round *r = arg;
    struct ffs_inode *inode;
    struct ffs_attr a;

    if (ffs_lookup(r->dir, f->name, &inode) != 0)
        return false;
    ffs_getattr(inode, &a);
    caches_read_mounts(r->owner);
    bool changed =
        a.ino != f->ino || evict_later(last_use(&a), f->used) || caches_is_mounted(r->owner, a.ino);
    bool gone = !changed && owner_may_unlink(r, &a) && remove_inode(r->dir, f->name, inode) == 0;
    ffs_iput(inode, 1);
    if (gone)
        r->owner->removed(r->owner->arg, ffs_ino(r->dir), f->ino, f->name);
    return gone;
}

/*
 * Sets the sizes at which the removal starts and stops, so that waiting writers
 * get room. Room that files which cannot be removed leave no place for costs no
 * other file.
 */
static void caches_walk_aim(void *arg, struct evict *e)
{
    struct caches_round *r = arg;
    const struct cache *k = &r->owner->at[r->cache];

    pthread_mutex_lock(&r->owner->lock);
    uint64_t limit = k->limit; /* 0 if it was removed meanwhile */
    r->refused = r->need && e->fixed + r->need > limit ? r->need : 0;
    uint64_t coming = (r->refused ? 0 : r->need) + k->holding;
    uint64_t room = coming < limit ? limit - coming : 0;
    e->begin = CACHES_BEGIN(limit) < room ? CACHES_BEGIN(limit) : room;
    e->end = TARGET(limit) < room ? TARGET(limit) : room;
    if (!k->dir)
        e->begin = e->bytes;
    pthread_mutex_unlock(&r->owner->lock);
}

struct caches_round *caches_round_new(struct caches *c, int i)
{
    static const struct evict_ops ops = {.enter = caches_walk_enter,
                                         .next = caches_walk_next,
                                         .remove = caches_walk_remove,
                                         .aim = caches_walk_aim};
    struct caches_round *r = calloc(1, sizeof(*r));

    if (!r)
        return NULL;
    r->owner = c;
    r->cache = i;
    r->evict = (struct evict){
        .ops = &ops, .arg = r, .root = ffs_ino(c->at[i].dir), .most = CACHES_VICTIMS};
    return r;
}
