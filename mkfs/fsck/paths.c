/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds the paths of inodes, for reports. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mkfs/fsck/fsck.h"

/* A path that is shown is limited, since directories may form a loop. */
#define PATH_DEPTH 512u
#define PATH_BYTES (64u * 1024u)

struct paths {
    struct fsck *f;
    struct fsck_list names; /* struct fsck_name, of the inodes that are sought */
    uint8_t *sought;        /* by inode: it needs a name */
    uint64_t dir;           /* directory that is being walked */
    bool failed;            /* without memory */
};

/* Marks an inode and the directories above it. */
static void paths_seek(struct paths *p, uint64_t ino)
{
    while (ino > LAY_INO_ROOT && ino < fsck_inode_limit(p->f) && !p->sought[ino]) {
        p->sought[ino] = 1;
        if (p->f->inodes[ino].type != DT_DIR)
            return;
        ino = p->f->inodes[ino].parent;
    }
}

static void paths_take_name(void *arg, const struct lay_dirent *d)
{
    struct paths *p = arg;
    struct fsck_name name = fsck_name_of(p->dir, d);

    if (name.ino >= fsck_inode_limit(p->f) || p->sought[name.ino] != 1)
        return;
    p->sought[name.ino] = 2;
    p->failed |= fsck_append(&p->names, &name, sizeof(name)) != 0;
    /* The directory was marked with a child of its own only if that is a directory. */
    paths_seek(p, p->dir);
}

static int paths_walk_directory(void *arg, uint64_t ino, const struct lay_inode *inode)
{
    static const struct walk_ops ops = {.name = paths_take_name};
    struct paths *p = arg;

    p->dir = ino;
    int err = walk_names(&p->f->img, ino, inode, &ops, p, NULL);
    /* After -EUCLEAN the entries that a damaged directory still holds have been walked. */
    return err == -EUCLEAN ? 0 : err;
}

/* Walks all directories until no directory above a name is without one. */
static int paths_walk(struct paths *p)
{
    size_t before;
    int err;

    do {
        before = p->names.count;
        err = fsck_each_inode(p->f, NULL, DT_DIR, 0, paths_walk_directory, p);
    } while (!err && p->names.count > before);
    return err;
}

/* Finds the name of an inode among those that were found, then among the others. */
static const struct fsck_name *paths_name(const struct paths *p, const struct fsck_list *more,
                                          uint64_t ino)
{
    const struct fsck_name *name = fsck_find(&p->names, ino, sizeof(*name));

    return name || !more ? name : fsck_find(more, ino, sizeof(*name));
}

/* Puts the path of an inode at the end of the buffer. Returns its start, or NULL. */
static const char *paths_format(const struct paths *p, const struct fsck_list *more, uint64_t ino,
                                char buf[PATH_BYTES])
{
    char text[4 * LAY_NAME_MAX + 1], *at = buf + PATH_BYTES - 1;

    *at = 0;
    if (ino == LAY_INO_ROOT)
        *--at = '/';
    for (unsigned depth = 0; ino != LAY_INO_ROOT; depth++) {
        const struct fsck_name *name = paths_name(p, more, ino);
        if (!name || depth == PATH_DEPTH)
            return NULL;
        size_t len = strlen(fsck_printable(name->bytes, name->len, text));
        if (len + 1 > (size_t)(at - buf))
            return NULL;
        at -= len;
        memcpy(at, text, len);
        *--at = '/';
        ino = name->dir;
    }
    return at;
}

int fsck_paths(struct fsck *f, const struct fsck_list *inos, struct fsck_list *more,
               void (*say)(void *arg, uint64_t ino, const char *path), void *arg)
{
    const uint64_t *ino = inos->items;
    const struct fsck_name *names = more ? more->items : NULL;
    struct paths p = {.f = f};
    char *buf = malloc(PATH_BYTES);

    p.sought = calloc(fsck_inode_limit(f) + 1, 1);
    int err = buf && p.sought ? 0 : -ENOMEM;
    for (size_t i = 0; i < inos->count && !err; i++)
        paths_seek(&p, ino[i]);
    for (size_t i = 0; more && i < more->count && !err; i++)
        paths_seek(&p, names[i].dir);
    if (!err)
        err = paths_walk(&p);
    if (!err && p.failed)
        err = -ENOMEM;
    fsck_sort(&p.names, sizeof(struct fsck_name));
    if (more)
        fsck_sort(more, sizeof(struct fsck_name));
    for (size_t i = 0; i < inos->count && !err; i++)
        say(arg, ino[i], paths_format(&p, more, ino[i], buf));
    free(p.names.items);
    free(p.sought);
    free(buf);
    return err;
}
