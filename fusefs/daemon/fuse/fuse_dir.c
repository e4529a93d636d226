/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the directory operations OPENDIR, READDIR, READDIRPLUS and
 * RELEASE.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/daemon/base/dir_cookies.h"
#include "fusefs/daemon/caches/caches.h"
#include "fusefs/daemon/fuse/fuse_ops.h"
#include "fusefs/daemon/state/daemon.h"

/*
 * With cache_readdir and keep_cache the kernel caches the listing until a name
 * in the directory changes. Positions of dir32 belong to one open directory, so
 * the kernel must not use those of another.
 */
void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct daemon *d = op_daemon(req);
    struct ffs_inode *inode;
    int err = op_node(req, ino, &inode);

    if (err) {
        op_reply(req, err);
        return;
    }
    struct open_file *file;
    err = file_new(d, inode, fi->flags, true, &file);
    if (err) {
        op_reply(req, err);
        return;
    }
    if (d->opts->dir32 && !(file->cookies = dir_cookies_new())) {
        file_free(d, file);
        op_reply(req, -ENOMEM);
        return;
    }
    fi->fh = (uintptr_t)file;
    fi->cache_readdir = !file->cookies;
    fi->keep_cache = 1;
    if (fuse_reply_open(req, fi) != 0)
        file_free(d, file);
}

void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    file_free(op_daemon(req), op_file(fi));
    op_reply(req, 0);
}

/*
 * Holds a name for READDIRPLUS. Names are collected first, since emit must not
 * call into the file system.
 */
struct name {
    uint64_t ino, cookie;
    struct ffs_inode *inode; /* with the reference given to the kernel, or NULL */
    uint8_t type;
    char text[256];
};

struct listing {
    fuse_req_t req;
    struct dir_cookies *cookies; /* NULL: positions are keys */
    char *data;
    size_t used, size;
    struct name *names; /* readdirplus only */
    size_t count, room;
};

static bool dir_is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

static uint64_t dir_position(const struct listing *l, uint64_t key)
{
    return l->cookies ? dir_cookies_next(l->cookies, key) : key;
}

static int emit(void *arg, const char *name, size_t len, uint64_t ino, uint8_t type, uint64_t key)
{
    struct listing *l = arg;
    char text[256];
    struct stat st = {.st_ino = ino, .st_mode = (mode_t)type << 12};
    uint64_t cookie = dir_position(l, key);

    if (!cookie)
        return 1;
    memcpy(text, name, len);
    text[len] = '\0';
    size_t need =
        fuse_add_direntry(l->req, l->data + l->used, l->size - l->used, text, &st, (off_t)cookie);
    if (need > l->size - l->used)
        return 1;
    l->used += need;
    if (l->cookies)
        dir_cookies_add(l->cookies, key, cookie);
    return 0;
}

static int dir_list(const struct open_file *dir, off_t after, ffs_emit_fn take, struct listing *l)
{
    uint64_t key = (uint64_t)after;

    l->cookies = dir->cookies;
    if (l->cookies)
        key = dir_cookies_begin(l->cookies, key);
    int err = ffs_readdir(dir->inode, key, take, l);
    if (l->cookies)
        dir_cookies_end(l->cookies);
    if (!err)
        file_accessed(dir->inode, dir->flags);
    return err;
}

void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t after, struct fuse_file_info *fi)
{
    struct listing l = {.req = req, .data = malloc(size), .size = size};

    (void)ino;
    int err = l.data ? dir_list(op_file(fi), after, emit, &l) : -ENOMEM;
    if (err < 0)
        op_reply(req, err);
    else
        fuse_reply_buf(req, l.data, l.used);
    free(l.data);
}

static int emit_plus(void *arg, const char *name, size_t len, uint64_t ino, uint8_t type,
                     uint64_t key)
{
    struct listing *l = arg;
    char text[256];
    uint64_t cookie = dir_position(l, key);

    memcpy(text, name, len);
    text[len] = '\0';
    size_t need = fuse_add_direntry_plus(l->req, NULL, 0, text, NULL, 0);
    if (!cookie || l->count == l->room || need > l->size - l->used)
        return 1;
    l->used += need;
    if (l->cookies)
        dir_cookies_add(l->cookies, key, cookie);
    struct name *n = &l->names[l->count++];
    *n = (struct name){.ino = ino, .cookie = cookie, .type = type};
    memcpy(n->text, text, len + 1);
    return 0;
}

/*
 * The kernel holds the directory's lock until the reply, so a listed name still
 * belongs to the inode listed with it. An exception is a file that was removed
 * from a cache directory; opening it fails. "." and ".." count no lookup.
 */
static void add_plus(struct listing *l, struct ffs_inode *dir, struct name *n)
{
    struct fuse_entry_param e = {.attr = {.st_ino = n->ino, .st_mode = (mode_t)n->type << 12}};

    if (!dir_is_dots(n->text) && op_node(l->req, n->ino, &n->inode) == 0) {
        caches_adopt(op_daemon(l->req)->caches, dir, n->inode);
        op_entry(op_daemon(l->req), n->inode, &e);
    } else {
        n->inode = NULL;
    }
    l->used += fuse_add_direntry_plus(l->req, l->data + l->used, l->size - l->used, n->text, &e,
                                      (off_t)n->cookie);
}

static void reply_plus(struct listing *l, struct ffs_inode *dir)
{
    l->used = 0;
    for (size_t i = 0; i < l->count; i++)
        add_plus(l, dir, &l->names[i]);
    if (fuse_reply_buf(l->req, l->data, l->used) == 0)
        return;
    /* The kernel has not received the reply, so its lookups do not count. */
    for (size_t i = 0; i < l->count; i++) {
        if (l->names[i].inode)
            ffs_iput(l->names[i].inode, 1);
    }
}

void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t after,
                    struct fuse_file_info *fi)
{
    size_t room = size / fuse_add_direntry_plus(req, NULL, 0, "a", NULL, 0) + 1;
    struct listing l = {.req = req,
                        .data = malloc(size),
                        .size = size,
                        .names = malloc(room * sizeof(struct name)),
                        .room = room};

    (void)ino;
    int err = l.data && l.names ? dir_list(op_file(fi), after, emit_plus, &l) : -ENOMEM;
    if (err < 0)
        op_reply(req, err);
    else
        reply_plus(&l, op_file(fi)->inode);
    free(l.data);
    free(l.names);
}
