/* SPDX-License-Identifier: BSD-2-Clause */
/* Mounts, files and memory of gpunvme_io.h: opened, found, closed. */
#include "client/lib/io.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- Mounts ---------------------------------------------------------------------------------- */

static void mount_free(struct io_mount *m)
{
    if (m)
        gpunvme_disconnect(m->g);
    free(m);
}

/*
 * A file bound over one of another file system. It is opened only where that is the mount, for
 * close(2) drops the process's POSIX locks on it.
 */
static int connect_by_file(int fd, const char *link, struct gpunvme **out)
{
    struct gpunvme_ioc_info info = {0};
    int err = gpunvme_ioctl(fd, GPUNVME_IOC_INFO, &info, sizeof(info));

    return err ? gpunvme_fail(-ENOTTY, "%s: not on a gpunvmefs mount", link)
               : gpunvme_connect(link, out);
}

/* A directory rather than the file itself, which would keep its blocks when it is removed. */
static int connect_beside(int fd, const struct stat *st, struct gpunvme **out)
{
    char link[32], path[PATH_MAX];
    struct stat dir;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    if (n > 0) {
        path[n] = '\0';
        const char *parent = dirname(path);
        if (stat(parent, &dir) == 0 && dir.st_dev == st->st_dev)
            return gpunvme_connect(parent, out);
    }
    return connect_by_file(fd, link, out);
}

static int mount_new(struct gpunvme_io *io, int fd, const struct stat *st, struct io_mount **out)
{
    struct io_mount *m = calloc(1, sizeof(*m));

    if (!m) {
        gpunvme_fail(-ENOMEM, "out of memory");
        return -ENOMEM;
    }
    int err = st ? connect_beside(fd, st, &m->g) : gpunvme_local(&m->g);
    if (!err)
        err = gpunvme_set_options(m->g, &io->options);
    if (err) {
        mount_free(m);
        return err;
    }
    m->dev = st ? st->st_dev : 0;
    *out = m;
    return 0;
}

/* Under the lock. The one in use, or a new one. */
static int io_find_mount(struct gpunvme_io *io, int fd, const struct stat *st,
                         struct io_mount **out)
{
    for (struct io_mount *m = io->mounts; m; m = m->next) {
        if (m->dev == st->st_dev) {
            *out = m;
            return 0;
        }
    }
    int err = mount_new(io, fd, st, out);
    if (err)
        return err;
    (*out)->next = io->mounts;
    io->mounts = *out;
    return 0;
}

/* --- Open and close -------------------------------------------------------------------------- */

int gpunvme_io_open(const struct gpunvme_options *options, struct gpunvme_io **out)
{
    struct gpunvme_io *io = calloc(1, sizeof(*io));

    if (!io)
        return gpunvme_fail(-ENOMEM, "out of memory");
    io->forks = io_forks();
    if (options)
        io->options = *options;
    int err = regions_new(&io->regions);
    if (!err)
        err = io_async_new(&io->async);
    if (!err)
        err = mount_new(io, -1, NULL, &io->local);
    if (err) {
        io_async_free(io->async);
        regions_free(io->regions);
        free(io);
        return err;
    }
    pthread_mutex_init(&io->lock, NULL);
    *out = io;
    return 0;
}

void gpunvme_io_close(struct gpunvme_io *io)
{
    if (!io || io_check_process(io))
        return;
    io_async_free(io->async);
    for (struct gpunvme_io_file *f = io->files, *next; f; f = next) {
        next = f->next;
        io_file_put(f);
    }
    regions_free(io->regions);
    while (io->mounts) {
        struct io_mount *m = io->mounts;
        io->mounts = m->next;
        mount_free(m);
    }
    mount_free(io->local);
    cuda_driver_close(io->cuda);
    pthread_mutex_destroy(&io->lock);
    free(io);
}

/* --- Files ----------------------------------------------------------------------------------- */

static int check_type(int fd, struct stat *st)
{
    if (fstat(fd, st) != 0)
        return gpunvme_fail(-errno, "file: %s", strerror(errno));
    if (!S_ISREG(st->st_mode) && !S_ISBLK(st->st_mode))
        return gpunvme_fail(-EINVAL, "neither a regular file nor a block device");
    return 0;
}

/* Under the lock. */
static void choose_mount(struct gpunvme_io_file *f, const struct stat *st)
{
    struct gpunvme_io *io = f->io;

    if (S_ISREG(st->st_mode) && io_find_mount(io, f->fd, st, &f->mount) == 0)
        return;
    f->mount = io->local;
    snprintf(f->why, sizeof(f->why), "%s",
             S_ISREG(st->st_mode) ? gpunvme_error() : "a block device");
}

/* Under the lock. */
static void io_file_link(struct gpunvme_io_file *f)
{
    f->next = f->io->files;
    f->link = &f->io->files;
    if (f->next)
        f->next->link = &f->next;
    f->io->files = f;
}

/* The duplicate is examined, and not the caller's number, which may become another file's. */
static int io_file_new(struct gpunvme_io *io, int fd, struct stat *st, struct gpunvme_io_file **out)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);

    if (copy < 0)
        return gpunvme_fail(-errno, "file: %s", strerror(errno));
    int err = check_type(copy, st);
    struct gpunvme_io_file *f = err ? NULL : calloc(1, sizeof(*f));
    if (!f) {
        close(copy);
        return err ? err : gpunvme_fail(-ENOMEM, "out of memory");
    }
    *f = (struct gpunvme_io_file){.io = io,
                                  .users = 1,
                                  .fd = copy,
                                  .cached_fd = -1,
                                  .direct = fcntl(copy, F_GETFL) & O_DIRECT,
                                  .regular = S_ISREG(st->st_mode)};
    *out = f;
    return 0;
}

int gpunvme_io_file_open(struct gpunvme_io *io, int fd, struct gpunvme_io_file **out)
{
    struct stat st;
    struct gpunvme_io_file *f = NULL;
    int err = io_check_process(io);

    if (!err)
        err = io_file_new(io, fd, &st, &f);
    if (!f)
        return err;
    pthread_mutex_lock(&io->lock);
    choose_mount(f, &st);
    io_file_link(f);
    pthread_mutex_unlock(&io->lock);
    *out = f;
    return 0;
}

void gpunvme_io_file_close(struct gpunvme_io_file *f)
{
    if (!f || io_check_process(f->io))
        return;
    pthread_mutex_lock(&f->io->lock);
    *f->link = f->next;
    if (f->next)
        f->next->link = f->link;
    pthread_mutex_unlock(&f->io->lock);
    io_file_put(f);
}

int gpunvme_io_file_fd(const struct gpunvme_io_file *f)
{
    return f->fd;
}

const char *gpunvme_io_file_why(const struct gpunvme_io_file *f)
{
    return f->why[0] ? f->why : NULL;
}

/* --- Memory ---------------------------------------------------------------------------------- */

int gpunvme_io_register(struct gpunvme_io *io, void *addr, size_t len)
{
    int err = io_check_process(io);

    return err ? err : regions_add(io->regions, io_cuda(io), addr, len, NULL);
}

int gpunvme_io_unregister(struct gpunvme_io *io, void *addr)
{
    int err = io_check_process(io);

    return err ? err : regions_remove(io->regions, addr);
}

int gpunvme_io_alloc_host(struct gpunvme_io_file *f, size_t len, void **out)
{
    struct gpunvme *g = f->mount->g;
    struct gpunvme_buffer *b;
    int err = io_check_process(f->io);

    if (!err)
        err = f->why[0] ? gpunvme_alloc_staging(g, len, &b) : gpunvme_alloc_host(g, len, &b);
    if (err)
        return err;
    err = regions_add(f->io->regions, NULL, b->addr, len, b);
    if (err)
        gpunvme_unregister(b);
    else
        *out = b->addr;
    return err;
}
