/* SPDX-License-Identifier: BSD-2-Clause */
/* Opens and closes handles, and finds their mounts, files and memory. */
#include "client/lib/handle.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/lib/direct_service.h"

/* --- Mounts ---------------------------------------------------------------------------------- */

/*
 * Connects by a file that is bound over one of another file system. The file is opened only if the
 * mount serves it, because close(2) drops the POSIX locks of the process on it.
 */
static int connect_by_file(int fd, const char *link, struct connection **out)
{
    struct gpunvme_ioc_info info = {0};
    int err = gpunvme_ioctl(fd, GPUNVME_IOC_INFO, &info, sizeof(info));

    return err ? gpunvme_fail(-ENOTTY, "%s: not on a gpunvmefs mount", link)
               : connection_open(link, out);
}

/*
 * Connects by the directory of the file. The file itself would keep its blocks when it is removed.
 */
static int connect_beside(int fd, const struct stat *st, struct connection **out)
{
    char link[32], path[PATH_MAX];
    struct stat dir;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    if (n > 0) {
        path[n] = '\0';
        const char *parent = dirname(path);
        if (stat(parent, &dir) == 0 && dir.st_dev == st->st_dev)
            return connection_open(parent, out);
    }
    return connect_by_file(fd, link, out);
}

static int mount_new(struct gpunvme *g, int fd, const struct stat *st, struct connection **out)
{
    struct connection *m;
    int err = st ? connect_beside(fd, st, &m) : connection_local(&m);

    if (err)
        return err;
    err = bounce_set_options(m, &g->options);
    if (err)
        connection_close(m);
    else
        *out = m;
    return err;
}

/* The caller holds the lock. Stores the mount in use, or a new one. */
static int handle_find_mount(struct gpunvme *g, int fd, const struct stat *st,
                             struct connection **out)
{
    for (struct connection *m = g->mounts; m; m = m->next) {
        if (m->dev == st->st_dev) {
            *out = m;
            return 0;
        }
    }
    int err = mount_new(g, fd, st, out);
    if (err)
        return err;
    (*out)->next = g->mounts;
    g->mounts = *out;
    return 0;
}

/* --- Open and close -------------------------------------------------------------------------- */

int gpunvme_open(const struct gpunvme_options *options, struct gpunvme **out)
{
    struct gpunvme *g = calloc(1, sizeof(*g));

    if (!g)
        return gpunvme_fail(-ENOMEM, "out of memory");
    g->forks = handle_forks();
    if (options)
        g->options = *options;
    const struct gpunvme_options *o = &g->options;
    int err =
        direct_check_options(&(struct direct_options){o->lease_queues, o->lease_depth, o->flags});
    if (!err)
        err = regions_new(&g->regions);
    if (!err)
        err = submit_new(&g->submitter);
    if (!err)
        err = mount_new(g, -1, NULL, &g->local);
    if (err) {
        if (g->submitter && submit_stop(g->submitter))
            submit_free(g->submitter);
        regions_free(g->regions);
        free(g);
        return err;
    }
    pthread_mutex_init(&g->lock, NULL);
    *out = g;
    return 0;
}

/*
 * Returns true if a kernel of a direct path, of this handle or another one,
 * does not end. The memory of all mounts then stays allocated, because freeing
 * memory on a GPU waits for its kernels.
 */
static bool handle_abandon(struct gpunvme *g)
{
    if (!direct_service_any_stuck())
        return false;
    for (struct connection *m = g->mounts; m; m = m->next)
        connection_abandon(m);
    connection_abandon(g->local);
    return true;
}

void gpunvme_close(struct gpunvme *g)
{
    if (!g || handle_check_process(g))
        return;
    bool idle = submit_stop(g->submitter);
    for (struct gpunvme_file *f = LIST_FIRST(&g->files), *next; f; f = next) {
        next = LIST_NEXT(f, entry);
        file_put(f);
    }
    bool stuck = handle_abandon(g);
    if (idle && !stuck)
        submit_free(g->submitter);
    regions_free(g->regions);
    while (g->mounts) {
        struct connection *m = g->mounts;
        g->mounts = m->next;
        connection_close(m);
    }
    connection_close(g->local);
    if (!stuck)
        cuda_driver_close(g->cuda);
    pthread_mutex_destroy(&g->lock);
    free(g);
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

/* Chooses the mount of a file. Called under the lock. */
static void choose_mount(struct gpunvme_file *f, const struct stat *st)
{
    struct gpunvme *g = f->g;

    if (S_ISREG(st->st_mode) && handle_find_mount(g, f->fd, st, &f->mount) == 0)
        return;
    f->mount = g->local;
    snprintf(f->why, sizeof(f->why), "%s",
             S_ISREG(st->st_mode) ? gpunvme_error() : "a block device");
}

/*
 * Examines a duplicate and not the caller's descriptor, whose number may come to mean another file.
 */
static int handle_file_new(struct gpunvme *g, int fd, struct stat *st, struct gpunvme_file **out)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);

    if (copy < 0)
        return gpunvme_fail(-errno, "file: %s", strerror(errno));
    int err = check_type(copy, st);
    struct gpunvme_file *f = err ? NULL : calloc(1, sizeof(*f));
    if (!f) {
        close(copy);
        return err ? err : gpunvme_fail(-ENOMEM, "out of memory");
    }
    *f = (struct gpunvme_file){.g = g,
                               .users = 1,
                               .fd = copy,
                               .cached_fd = -1,
                               .o_direct = fcntl(copy, F_GETFL) & O_DIRECT,
                               .regular = S_ISREG(st->st_mode)};
    *out = f;
    return 0;
}

static void file_unlink(struct gpunvme_file *f)
{
    pthread_mutex_lock(&f->g->lock);
    LIST_REMOVE(f, entry);
    pthread_mutex_unlock(&f->g->lock);
}

int gpunvme_file_open(struct gpunvme *g, int fd, uint32_t flags, struct gpunvme_file **out)
{
    struct stat st;
    struct gpunvme_file *f = NULL;
    int err = handle_check_process(g);

    if (!err && flags & ~GPUNVME_FILE_DIRECT)
        err = gpunvme_fail(-EINVAL, "unknown flags of a file");
    if (!err)
        err = handle_file_new(g, fd, &st, &f);
    if (!f)
        return err;
    pthread_mutex_lock(&g->lock);
    choose_mount(f, &st);
    LIST_INSERT_HEAD(&f->g->files, f, entry);
    pthread_mutex_unlock(&g->lock);
    if (flags & GPUNVME_FILE_DIRECT)
        err = file_direct_begin(f);
    if (err) {
        file_unlink(f);
        file_put(f);
        return err;
    }
    *out = f;
    return 0;
}

void gpunvme_file_close(struct gpunvme_file *f)
{
    if (!f || handle_check_process(f->g))
        return;
    file_unlink(f);
    file_put(f);
}

int gpunvme_file_fd(const struct gpunvme_file *f)
{
    return f->fd;
}

const char *gpunvme_file_why(const struct gpunvme_file *f)
{
    return f->why[0] ? f->why : NULL;
}

int64_t gpunvme_file_size(const struct gpunvme_file *f)
{
    struct stat st;

    if (f->leased)
        return (int64_t)leased_file_size(f->leased);
    return fstat(f->fd, &st) == 0 ? (int64_t)st.st_size
                                  : gpunvme_fail(-errno, "file: %s", strerror(errno));
}

/* --- Memory ---------------------------------------------------------------------------------- */

/* Registers the caller's memory at mounts whose queues kernels may use at any time. */
static int handle_reach(struct gpunvme *g, struct cuda_driver *cu)
{
    int err = 0;

    pthread_mutex_lock(&g->lock);
    for (struct connection *m = g->mounts; m && !err; m = m->next) {
        if (!LIST_EMPTY(&m->queues))
            err = regions_reach(g->regions, cu, m);
    }
    pthread_mutex_unlock(&g->lock);
    return err;
}

int gpunvme_register(struct gpunvme *g, void *addr, size_t len)
{
    int err = handle_check_process(g);
    struct cuda_driver *cu = err ? NULL : handle_cuda(g);

    if (!err)
        err = regions_add(g->regions, cu, addr, len, NULL);
    if (err)
        return err;
    err = handle_reach(g, cu);
    if (err)
        (void)regions_remove(g->regions, addr);
    return err;
}

int gpunvme_unregister(struct gpunvme *g, void *addr)
{
    int err = handle_check_process(g);

    return err ? err : regions_remove(g->regions, addr);
}

static int handle_alloc(struct gpunvme_file *f, size_t len, bool host, void **out)
{
    struct gpunvme_buffer *b = NULL;
    struct connection *c = f->mount;
    int err = handle_check_process(f->g);

    if (!err)
        err = f->why[0] ? buffer_alloc_staging(c, len, false, &b)
                        : buffer_alloc_on(c, len, host, false, file_direct_device(f), &b);
    if (err)
        return err;
    err = regions_add(f->g->regions, b->device == CUDA_NO_DEVICE ? NULL : handle_cuda(f->g),
                      b->addr, len, b);
    if (err)
        buffer_unregister(b);
    else
        *out = b->addr;
    return err;
}

int gpunvme_alloc(struct gpunvme_file *f, size_t len, void **out)
{
    return handle_alloc(f, len, false, out);
}

int gpunvme_alloc_host(struct gpunvme_file *f, size_t len, void **out)
{
    return handle_alloc(f, len, true, out);
}

int gpunvme_pieces_alloc(struct gpunvme_file *f, size_t n, struct gpunvme_piece **out)
{
    int err = handle_check_process(f->g);

    if (err)
        return err;
    if (f->why[0])
        return gpunvme_fail(-ENOTTY, "%s", f->why);
    return shared_list_alloc_pieces(f->mount, n, out);
}

void gpunvme_pieces_free(struct gpunvme_file *f, struct gpunvme_piece *pieces)
{
    if (pieces && !handle_check_process(f->g))
        shared_list_free_pieces(f->mount, pieces);
}

/* Stores the CUDA device of the memory, or CUDA_NO_DEVICE. */
static int handle_locate(struct gpunvme *g, const void *addr, struct cuda_driver **cu, int *device)
{
    int err = handle_check_process(g);

    *device = CUDA_NO_DEVICE;
    *cu = err ? NULL : handle_cuda(g);
    return *cu ? cuda_driver_locate(*cu, (uintptr_t)addr, device) : err;
}

int gpunvme_copy_out(struct gpunvme *g, const void *addr, void *dst, size_t len)
{
    struct cuda_driver *cu;
    int device, err = handle_locate(g, addr, &cu, &device);

    if (!err && device != CUDA_NO_DEVICE)
        err = cuda_driver_copy_out(cu, device, dst, (uintptr_t)addr, len);
    else if (!err)
        memcpy(dst, addr, len);
    return err;
}

int gpunvme_copy_in(struct gpunvme *g, void *addr, const void *src, size_t len)
{
    struct cuda_driver *cu;
    int device, err = handle_locate(g, addr, &cu, &device);

    if (!err && device != CUDA_NO_DEVICE)
        err = cuda_driver_copy_in(cu, device, (uintptr_t)addr, src, len);
    else if (!err)
        memcpy(addr, src, len);
    return err;
}
