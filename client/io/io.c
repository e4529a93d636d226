/* SPDX-License-Identifier: BSD-2-Clause */
#include "client/io/io.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <link.h>
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
    return gpunvme_connect(link, out);
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
static int find_mount(struct gpunvme_io *io, int fd, const struct stat *st, struct io_mount **out)
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

static void file_free(struct gpunvme_io_file *f)
{
    if (f->buffered >= 0)
        close(f->buffered);
    free(f);
}

void gpunvme_io_close(struct gpunvme_io *io)
{
    if (!io)
        return;
    io_async_free(io->async);
    for (struct gpunvme_io_file *f = io->files, *next; f; f = next) {
        next = f->next;
        file_free(f);
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

static int count_loads(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    *(unsigned long long *)arg = info->dlpi_adds;
    return 1; /* the first library tells */
}

/*
 * Under the lock. A process that has not loaded the driver has no addresses of it. The loader is
 * asked for the driver, which takes it a search of all folders, only after it has loaded something.
 */
static bool is_cuda_loaded(struct gpunvme_io *io)
{
    unsigned long long loads = 0;

    dl_iterate_phdr(count_loads, &loads);
    if (loads == io->loads)
        return false;
    io->loads = loads;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library)
        dlclose(library);
    return library != NULL;
}

struct cuda_driver *io_cuda(struct gpunvme_io *io)
{
    pthread_mutex_lock(&io->lock);
    if (!io->cuda && is_cuda_loaded(io))
        (void)cuda_driver_open(&io->cuda);
    struct cuda_driver *cu = io->cuda;
    pthread_mutex_unlock(&io->lock);
    return cu;
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

/* Another open of the file, which needs no alignment; -1 where the system refuses that. */
static int open_buffered(int fd)
{
    char link[32];
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || !(flags & O_DIRECT))
        return -1;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    return open(link, (flags & O_ACCMODE) | O_CLOEXEC);
}

/* Under the lock. */
static void choose_mount(struct gpunvme_io_file *f, const struct stat *st)
{
    struct gpunvme_io *io = f->io;

    if (S_ISREG(st->st_mode) && find_mount(io, f->fd, st, &f->mount) == 0)
        return;
    f->mount = io->local;
    snprintf(f->why, sizeof(f->why), "%s",
             S_ISREG(st->st_mode) ? gpunvme_error() : "a block device");
    f->buffered = open_buffered(f->fd);
}

int gpunvme_io_file_open(struct gpunvme_io *io, int fd, struct gpunvme_io_file **out)
{
    struct stat st;
    int err = check_type(fd, &st);

    if (err)
        return err;
    struct gpunvme_io_file *f = calloc(1, sizeof(*f));
    if (!f)
        return gpunvme_fail(-ENOMEM, "out of memory");
    *f = (struct gpunvme_io_file){.io = io, .fd = fd, .buffered = -1};
    f->regular = S_ISREG(st.st_mode);
    pthread_mutex_lock(&io->lock);
    choose_mount(f, &st);
    f->next = io->files;
    f->link = &io->files;
    if (f->next)
        f->next->link = &f->next;
    io->files = f;
    pthread_mutex_unlock(&io->lock);
    *out = f;
    return 0;
}

void gpunvme_io_file_close(struct gpunvme_io_file *f)
{
    if (!f)
        return;
    pthread_mutex_lock(&f->io->lock);
    *f->link = f->next;
    if (f->next)
        f->next->link = f->link;
    pthread_mutex_unlock(&f->io->lock);
    file_free(f);
}

const char *gpunvme_io_file_why(const struct gpunvme_io_file *f)
{
    return f->why[0] ? f->why : NULL;
}

/* --- Memory ---------------------------------------------------------------------------------- */

int gpunvme_io_register(struct gpunvme_io *io, void *addr, size_t len)
{
    return regions_add(io->regions, io_cuda(io), addr, len, NULL);
}

int gpunvme_io_unregister(struct gpunvme_io *io, void *addr)
{
    return regions_remove(io->regions, addr);
}

int gpunvme_io_alloc_host(struct gpunvme_io_file *f, size_t len, void **out)
{
    struct gpunvme *g = f->mount->g;
    struct gpunvme_buffer *b;
    int err = f->why[0] ? gpunvme_alloc_staging(g, len, &b) : gpunvme_alloc_host(g, len, &b);

    if (err)
        return err;
    err = regions_add(f->io->regions, NULL, b->addr, len, b);
    if (err)
        gpunvme_unregister(b);
    else
        *out = b->addr;
    return err;
}

/* --- Transfers ------------------------------------------------------------------------------- */

static _Thread_local char last_why[160];

/* Buffers may end before their words are read. */
static void keep_why(struct gpunvme_result *result)
{
    snprintf(last_why, sizeof(last_why), "%s", result->why);
    result->why = last_why;
}

int io_use(struct gpunvme_io_file *f, void *addr, size_t len, struct region_use *out)
{
    struct gpunvme_io *io = f->io;
    struct cuda_driver *cu = io_cuda(io);
    int err = regions_use(io->regions, cu, f->mount->g, addr, len, out);

    if (err && f->mount != io->local && io->options.path != GPUNVME_PATH_GPU)
        err = regions_use(io->regions, cu, io->local->g, addr, len, out);
    return err;
}

static ssize_t move(struct gpunvme_io_file *f, const struct region_use *u, struct range *r,
                    struct gpunvme_result *result)
{
    int err;

    if (u->buffer->owner == f->mount->g && !f->why[0])
        return r->write ? gpunvme_write(u->buffer, r->fd, r->buffer_offset, r->file_offset, r->len,
                                        result)
                        : gpunvme_read(u->buffer, r->fd, r->buffer_offset, r->file_offset, r->len,
                                       result);
    if (f->io->options.path == GPUNVME_PATH_GPU)
        return gpunvme_fail(-EREMOTEIO, "%s", f->why);
    size_t done = io_move_local(f, u->buffer, r, result, &err);
    result->why = f->why[0] ? f->why : "the mount does not take the memory";
    return done || !err ? (ssize_t)done : err;
}

static ssize_t transfer(struct gpunvme_io_file *f, struct range *r, void *addr,
                        struct gpunvme_result *result)
{
    struct gpunvme_result sum = {.why = ""};
    struct region_use u;
    ssize_t n = r->len ? io_use(f, addr, r->len, &u) : 0;

    if (r->len && n == 0) {
        r->buffer_offset = u.offset;
        n = move(f, &u, r, &sum);
        keep_why(&sum);
        regions_release(f->io->regions, &u);
    }
    if (result)
        *result = sum;
    return n;
}

ssize_t gpunvme_io_read(struct gpunvme_io_file *f, void *addr, size_t len, uint64_t file_offset,
                        struct gpunvme_result *result)
{
    struct range r = {.fd = f->fd, .file_offset = file_offset, .len = len};

    return transfer(f, &r, addr, result);
}

ssize_t gpunvme_io_write(struct gpunvme_io_file *f, const void *addr, size_t len,
                         uint64_t file_offset, struct gpunvme_result *result)
{
    struct range r = {.write = true, .fd = f->fd, .file_offset = file_offset, .len = len};

    return transfer(f, &r, (void *)(uintptr_t)addr, result);
}

/* --- Batches --------------------------------------------------------------------------------- */

static int read_pieces(struct gpunvme_io_file *f, const struct region_use *u, size_t len,
                       struct gpunvme_piece *pieces, size_t n, struct gpunvme_result *sum)
{
    for (size_t i = 0; i < n; i++) {
        struct gpunvme_piece *p = &pieces[i];
        struct range r = {.fd = f->fd,
                          .buffer_offset = u->offset + p->buffer_offset,
                          .file_offset = p->file_offset,
                          .len = p->len};
        struct gpunvme_result one = {.why = sum->why};
        bool inside = p->buffer_offset <= len && p->len <= len - p->buffer_offset;
        ssize_t done = p->len > INT32_MAX ? -EINVAL : inside ? move(f, u, &r, &one) : -ERANGE;
        gpunvme_add_result(sum, one.path, one.commands, one.nvme_status);
        sum->why = one.why;
        p->result = (int32_t)done;
    }
    return 0;
}

static void shift(struct gpunvme_piece *pieces, size_t n, uint64_t by)
{
    for (size_t i = 0; by && i < n; i++)
        pieces[i].buffer_offset += by;
}

static bool all_inside(const struct gpunvme_piece *pieces, size_t n, size_t len)
{
    for (size_t i = 0; i < n; i++) {
        if (pieces[i].buffer_offset > len || pieces[i].len > len - pieces[i].buffer_offset)
            return false;
    }
    return true;
}

int gpunvme_io_readv(struct gpunvme_io_file *f, void *addr, size_t len,
                     struct gpunvme_piece *pieces, size_t n, struct gpunvme_result *result)
{
    struct gpunvme_result sum = {.why = ""};
    struct region_use u;
    int err = n ? io_use(f, addr, len, &u) : 0;

    if (n && !err) {
        if (u.buffer->owner == f->mount->g && !f->why[0] && all_inside(pieces, n, len)) {
            shift(pieces, n, u.offset);
            err = gpunvme_readv(u.buffer, f->fd, pieces, n, &sum);
            shift(pieces, n, -(uint64_t)u.offset);
        } else {
            err = read_pieces(f, &u, len, pieces, n, &sum);
        }
        keep_why(&sum);
        regions_release(f->io->regions, &u);
    }
    if (result)
        *result = sum;
    return err;
}
