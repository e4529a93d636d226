#include "client/list.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/socket.h"

#define LEAST_ROOM 4096u

static size_t size_of(const struct list *l)
{
    return l->room * sizeof(*l->pieces);
}

static int share(struct gpunvme *g, struct list *l, int fd)
{
    struct gpunvme_ioc_register reg = {
        .kind = GPUNVME_MEM_FD, .flags = GPUNVME_REGISTER_LIST, .len = size_of(l)};
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

static int map(struct list *l, int fd)
{
    if (ftruncate(fd, (off_t)size_of(l)) != 0)
        return gpunvme_fail(-errno, "a list of %zu pieces: %s", l->room, strerror(errno));
    void *p = mmap(NULL, size_of(l), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return gpunvme_fail(-errno, "a list of %zu pieces: %s", l->room, strerror(errno));
    l->pieces = p;
    return 0;
}

static int list_new(struct gpunvme *g, size_t room, struct list **out)
{
    int fd = memfd_create("gpunvme-list", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct list *l = calloc(1, sizeof(*l));
    int err = 0;
    if (fd < 0 || !l)
        err = gpunvme_fail(-ENOMEM, "a list of %zu pieces: out of memory or descriptors", room);
    if (!err) {
        l->room = room;
        err = map(l, fd);
    }
    if (!err) {
        err = share(g, l, fd);
        if (err)
            munmap(l->pieces, size_of(l));
    }
    if (fd >= 0)
        close(fd);
    if (err)
        free(l);
    else
        *out = l;
    return err;
}

/* The mount lets go of it when g->fd is closed at the latest. */
static void list_free(struct gpunvme *g, struct list *l)
{
    struct gpunvme_ioc_unregister unreg = {.id = l->id, .key = l->key};
    gpunvme_ioctl(g->fd, GPUNVME_IOC_UNREGISTER, &unreg, sizeof(unreg));
    munmap(l->pieces, size_of(l));
    free(l);
}

static struct list *take(struct gpunvme *g)
{
    pthread_mutex_lock(&g->lock);
    struct list *l = g->lists;
    if (l)
        g->lists = l->next;
    pthread_mutex_unlock(&g->lock);
    return l;
}

int list_get(struct gpunvme *g, size_t n, struct list **out)
{
    size_t room = LEAST_ROOM;
    struct list *l = take(g);
    if (l && l->room < n) {
        list_free(g, l);
        l = NULL;
    }
    *out = l;
    while (room < n)
        room *= 2;
    return l ? 0 : list_new(g, room, out);
}

void list_put(struct gpunvme *g, struct list *l)
{
    pthread_mutex_lock(&g->lock);
    l->next = g->lists;
    g->lists = l;
    pthread_mutex_unlock(&g->lock);
}

void lists_free(struct gpunvme *g)
{
    struct list *l;
    while ((l = take(g)))
        list_free(g, l);
}
