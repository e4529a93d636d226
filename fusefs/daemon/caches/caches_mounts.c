/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds the inodes of the file system on which something is mounted. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fusefs/daemon/caches/caches_internal.h"
#include "support/array.h"
#include "support/mount_line.h"

#define TEXT_MAX (16u << 20)

/* Returns the file's text, which the caller frees, or NULL. */
static char *mounts_read(int fd)
{
    size_t len = 0, room = 65536;
    char *text = malloc(room);
    ssize_t n = 1;

    while (text && n > 0 && len < TEXT_MAX) {
        n = pread(fd, text + len, room - len - 1, (off_t)len);
        len += n > 0 ? (size_t)n : 0;
        if (room - len > 4096)
            continue;
        char *grown = realloc(text, room *= 2);
        if (!grown)
            free(text);
        text = grown;
    }
    if (text)
        text[len] = '\0';
    return text;
}

static bool is_own(const struct mount_line *m)
{
    return strcmp(m->type, "fuse.gpunvmefs") == 0 || strcmp(m->type, "fuseblk.gpunvmefs") == 0;
}

/* Returns an inode, or NULL. The caller holds a reference afterwards. */
static struct ffs_inode *mounts_lookup(struct ffs_inode *dir, char *path)
{
    char *rest;

    ffs_iref(dir, 1);
    for (char *name = strtok_r(path, "/", &rest); dir && name; name = strtok_r(NULL, "/", &rest)) {
        struct ffs_inode *found;
        int err = ffs_lookup(dir, name, &found);
        ffs_iput(dir, 1);
        dir = err ? NULL : found;
    }
    return dir;
}

/* Adds the inode at which m is mounted on a mount of this file system. */
static void cache_mounts_add(struct caches *c, const struct mount_line *on,
                             const struct mount_line *m)
{
    size_t prefix = strcmp(on->point, "/") == 0 ? 0 : strlen(on->point);
    size_t root = strlen(on->root), size = root + strlen(m->point) + 1;
    char *path = strncmp(m->point, on->point, prefix) == 0 ? malloc(size) : NULL;

    if (!path)
        return;
    memcpy(path, on->root, root);
    memcpy(path + root, m->point + prefix, size - root - prefix);
    struct ffs_inode *inode = mounts_lookup(c->root, path);
    free(path);
    if (!inode)
        return;
    if (array_grow((void **)&c->mounted, c->n_mounted, sizeof(*c->mounted)) == 0)
        c->mounted[c->n_mounted++] = ffs_ino(inode);
    ffs_iput(inode, 1);
}

/* Stores the lines of text, which they then point into, and returns how many. */
static size_t mounts_split(char *text, struct mount_line **lines)
{
    size_t n = 0;
    char *rest;

    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (array_grow((void **)lines, n, sizeof(**lines)) != 0)
            break;
        n += mount_line_parse(line, &(*lines)[n]);
    }
    return n;
}

bool caches_is_mounted(const struct caches *c, uint64_t ino)
{
    for (size_t i = 0; i < c->n_mounted; i++) {
        if (c->mounted[i] == ino)
            return true;
    }
    return false;
}

void caches_read_mounts(struct caches *c)
{
    struct pollfd p = {.fd = c->mounts, .events = POLLPRI};
    struct mount_line *lines = NULL;

    /* poll(2) reports a change of the mounts once. */
    if (c->mounts < 0 || (c->mounts_read && (poll(&p, 1, 0) <= 0 || !(p.revents & POLLPRI))))
        return;
    c->mounts_read = true;
    c->n_mounted = 0;
    char *text = mounts_read(c->mounts);
    size_t n = text ? mounts_split(text, &lines) : 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t on = 0; on < n; on++) {
            if (is_own(&lines[on]) && lines[on].id == lines[i].parent)
                cache_mounts_add(c, &lines[on], &lines[i]);
        }
    }
    free(lines);
    free(text);
}
