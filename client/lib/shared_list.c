/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Allocates lists: memory for the pieces of READV that is shared with the
 * mount.
 */
#include "client/lib/shared_list.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/lib/direct.h"
#include "client/lib/socket.h"

#define LEAST_ROOM 4096u

static size_t shared_list_size_of(const struct shared_list *l)
{
    return l->room * sizeof(*l->pieces);
}

static int shared_list_share(struct connection *g, struct shared_list *l, int fd, uint32_t flags)
{
    struct gpunvme_ioc_register reg = {.kind = GPUNVME_MEM_FD,
                                       .flags = GPUNVME_REGISTER_LIST | flags,
                                       .len = shared_list_size_of(l)};
    int err = socket_send_memory(g, fd, &reg.token);

    if (err)
        return err;
    err = gpunvme_ioctl(g->fd, GPUNVME_IOC_REGISTER, &reg, sizeof(reg));
    if (err)
        return gpunvme_fail(err, "REGISTER of a list: %s", strerror(-err));
    l->id = reg.id;
    l->key = reg.key;
    return 0;
}

static int shared_list_map(struct shared_list *l, int fd)
{
    if (ftruncate(fd, (off_t)shared_list_size_of(l)) != 0)
        return gpunvme_fail(-errno, "a list of %zu pieces: %s", l->room, strerror(errno));
    void *p = mmap(NULL, shared_list_size_of(l), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return gpunvme_fail(-errno, "a list of %zu pieces: %s", l->room, strerror(errno));
    l->pieces = p;
    return 0;
}

/* l->room is set. */
static int map_and_share(struct connection *g, struct shared_list *l, int fd, uint32_t flags)
{
    int err = shared_list_map(l, fd);

    if (err)
        return err;
    err = shared_list_share(g, l, fd, flags);
    if (err)
        munmap(l->pieces, shared_list_size_of(l));
    return err;
}

int shared_list_new(struct connection *g, size_t room, uint32_t flags, struct shared_list **out)
{
    struct shared_list *l = calloc(1, sizeof(*l));
    int err, fd = memfd_create("gpunvme-list", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (!l || fd < 0) {
        err = gpunvme_fail(-ENOMEM, "a list of %zu pieces: out of memory or descriptors", room);
    } else {
        l->room = room;
        err = map_and_share(g, l, fd, flags);
    }
    if (fd >= 0)
        close(fd);
    if (err)
        free(l);
    *out = err ? NULL : l;
    return err;
}

void shared_list_free(struct connection *g, struct shared_list *l)
{
    struct gpunvme_ioc_unregister unreg = {.id = l->id, .key = l->key};

    gpunvme_ioctl(g->fd, GPUNVME_IOC_UNREGISTER, &unreg, sizeof(unreg));
    if (l->mapped)
        cuda_driver_unpin(g->cuda, l->device, l->pieces);
    munmap(l->pieces, shared_list_size_of(l));
    free(l);
}

static struct shared_list *shared_list_take(struct connection *g)
{
    pthread_mutex_lock(&g->lock);
    struct shared_list *l = LIST_FIRST(&g->lists);
    if (l)
        LIST_REMOVE(l, entry);
    pthread_mutex_unlock(&g->lock);
    return l;
}

int shared_list_get(struct connection *g, size_t n, struct shared_list **out)
{
    size_t room = LEAST_ROOM;

    *out = shared_list_take(g);
    if (*out && (*out)->room >= n)
        return 0;
    if (*out)
        shared_list_free(g, *out);
    while (room < n)
        room *= 2;
    return shared_list_new(g, room, 0, out);
}

void shared_list_put(struct connection *g, struct shared_list *l)
{
    pthread_mutex_lock(&g->lock);
    LIST_INSERT_HEAD(&g->lists, l, entry);
    pthread_mutex_unlock(&g->lock);
}

/* Returns the offset in the list, in bytes; at least size_of(l) for an address outside it. */
static size_t offset_in(const struct shared_list *l, const struct gpunvme_piece *pieces)
{
    return (uintptr_t)pieces - (uintptr_t)l->pieces;
}

/* The caller holds the lock. Returns the list in which the pieces begin. */
static struct shared_list *shared_list_find(const struct connection *g,
                                            const struct gpunvme_piece *pieces)
{
    struct shared_list *l = LIST_FIRST(&g->pieces);

    while (l && offset_in(l, pieces) >= shared_list_size_of(l))
        l = LIST_NEXT(l, entry);
    return l;
}

static bool has(const struct shared_list *l, const struct gpunvme_piece *pieces, size_t n)
{
    return n <= (shared_list_size_of(l) - offset_in(l, pieces)) / sizeof(*pieces);
}

struct shared_list *shared_list_of(struct connection *g, const struct gpunvme_piece *pieces,
                                   size_t n)
{
    pthread_mutex_lock(&g->lock);
    struct shared_list *l = shared_list_find(g, pieces);
    pthread_mutex_unlock(&g->lock);
    return l && offset_in(l, pieces) % sizeof(*pieces) == 0 && has(l, pieces, n) ? l : NULL;
}

int shared_list_locate(struct connection *g, const struct gpunvme_piece *pieces, size_t n,
                       uint64_t *at)
{
    int err = 0;

    *at = (uintptr_t)pieces;
    pthread_mutex_lock(&g->lock);
    const struct shared_list *l = shared_list_find(g, pieces);
    if (l && !has(l, pieces, n))
        err = gpunvme_fail(-EINVAL, "a list of %zu pieces runs past the end of its memory", n);
    else if (l && l->mapped)
        *at = l->mapped + offset_in(l, pieces);
    pthread_mutex_unlock(&g->lock);
    return err;
}

/*
 * The caller holds the lock. Maps the list for the memory space. Kernels
 * of all GPUs reach the pinned memory.
 */
static int map_for(struct shared_list *l, const struct memory_space *p)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE),
           len = (shared_list_size_of(l) + page - 1) / page * page;

    if (l->mapped || !p->cuda)
        return 0;
    l->device = p->device;
    return cuda_driver_map(p->cuda, p->device, l->pieces, len, CUDA_HOST_MEMORY, &l->mapped);
}

int shared_lists_map(struct connection *g, const struct memory_space *p)
{
    int err = 0;

    for (struct shared_list *l = LIST_FIRST(&g->pieces); l && !err; l = LIST_NEXT(l, entry))
        err = map_for(l, p);
    return err;
}

/*
 * Links the list. The later one of two events maps it: this call or the opening of a direct handle.
 */
static int map_and_link(struct connection *g, struct shared_list *l)
{
    pthread_mutex_lock(&g->lock);
    int err = !LIST_EMPTY(&g->directs) ? map_for(l, &LIST_FIRST(&g->directs)->space) : 0;
    if (!err)
        LIST_INSERT_HEAD(&g->pieces, l, entry);
    pthread_mutex_unlock(&g->lock);
    return err;
}

int shared_list_alloc_pieces(struct connection *g, size_t n, struct gpunvme_piece **out)
{
    struct shared_list *l;

    if (n == 0 || n > GPUNVME_PIECES_MAX)
        return gpunvme_fail(-EINVAL, "%zu pieces", n);
    int err = shared_list_new(g, n, 0, &l);
    if (err)
        return err;
    err = map_and_link(g, l);
    if (err) {
        shared_list_free(g, l);
        return err;
    }
    *out = l->pieces;
    return 0;
}

void shared_list_free_pieces(struct connection *g, struct gpunvme_piece *pieces)
{
    pthread_mutex_lock(&g->lock);
    struct shared_list *l = LIST_FIRST(&g->pieces);
    while (l && l->pieces != pieces)
        l = LIST_NEXT(l, entry);
    if (l)
        LIST_REMOVE(l, entry);
    pthread_mutex_unlock(&g->lock);
    if (l)
        shared_list_free(g, l);
}

void shared_lists_free(struct connection *g)
{
    struct shared_list *l;

    while ((l = shared_list_take(g)))
        shared_list_free(g, l);
    while (!LIST_EMPTY(&g->pieces))
        shared_list_free_pieces(g, LIST_FIRST(&g->pieces)->pieces);
}
