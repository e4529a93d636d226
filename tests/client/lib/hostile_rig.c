/* SPDX-License-Identifier: BSD-2-Clause */
/* The direct path over a mount that the test plays. */
#include "tests/client/lib/hostile_rig.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/lib/client_internal.h"
#include "client/lib/direct.h"
#include "client/lib/handle.h"
#include "client/lib/regions.h"

static struct hostile_mount *mount; /* one at a time */

struct connection *hostile_open(struct hostile_mount *m, int dev_fd)
{
    struct connection *g = calloc(1, sizeof(*g));
    struct stat st;

    if (!g || fstat(dev_fd, &st) != 0)
        abort();
    mount = m;
    g->fd = dev_fd;
    g->dev = st.st_dev;
    g->info = m->info;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->unused, NULL);
    return g;
}

void hostile_close(struct connection *g)
{
    while (!LIST_EMPTY(&g->directs))
        direct_close(LIST_FIRST(&g->directs));
    while (!LIST_EMPTY(&g->buffers))
        buffer_unregister(LIST_FIRST(&g->buffers));
    pthread_cond_destroy(&g->unused);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

/* In place of client/connect.c's. */
int gpunvme_ioctl(int fd, unsigned long request, void *arg, uint32_t size)
{
    (void)fd;
    switch (request) {
    case GPUNVME_IOC_REGISTER:
        return mount->fail_register;
    case GPUNVME_IOC_UNREGISTER:
        __atomic_fetch_add(&mount->unregistered, 1, __ATOMIC_RELAXED);
        return 0;
    case GPUNVME_IOC_BUFFER_IOVA:
        return mount->fail_iova;
    case GPUNVME_IOC_QUEUE_LEASE:
        *(struct gpunvme_ioc_queue_lease *)arg = mount->queues;
        return mount->fail_queues;
    case GPUNVME_IOC_EXTENT_LEASE:
        *(struct gpunvme_ioc_extent_lease *)arg = mount->extents;
        return mount->fail_extents;
    case GPUNVME_IOC_SHARE_CALLS:
        return -ENOTTY; /* as a mount that does not know it */
    case GPUNVME_IOC_OPEN_FILES:
    case GPUNVME_IOC_QUEUES:
    case GPUNVME_IOC_GPUS:
        memset(arg, 0xff, size); /* more entries than there is room for, and names without an end */
        return 0;
    case GPUNVME_IOC_LEASE_END:
        __atomic_fetch_add(&mount->lease_ends, 1, __ATOMIC_RELAXED);
        return 0;
    default:
        abort();
    }
}

struct release {
    struct regions *rs;
    struct region_use use;
    char other[4096];
    _Atomic bool added;
};

static void *release(void *arg)
{
    struct release *r = arg;

    regions_release(r->rs, &r->use);
    return NULL;
}

static void *add(void *arg)
{
    struct release *r = arg;

    r->added = regions_add(r->rs, NULL, r->other, sizeof(r->other), NULL) == 0;
    return NULL;
}

bool hostile_registers_during_release(struct connection *g)
{
    struct release r = {0};
    char memory[4096];
    pthread_t threads[2];

    if (regions_new(&r.rs) != 0 || regions_use(r.rs, NULL, g, memory, sizeof(memory), &r.use) != 0)
        abort();
    struct gpunvme_buffer *b = r.use.buffer;
    gpunvme_use_begin(b);
    pthread_create(&threads[0], NULL, release, &r);
    while (!(atomic_load(&b->users) & GPUNVME_AWAITED))
        usleep(100);
    pthread_create(&threads[1], NULL, add, &r);
    for (int i = 0; i < 5000 && !r.added; i++)
        usleep(1000);
    bool added = r.added;
    gpunvme_use_end(b);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    regions_free(r.rs);
    return added;
}

int hostile_open_table(struct connection *g)
{
    struct gpunvme handle = {.forks = handle_forks(), .mounts = g};
    struct gpunvme_file f = {.g = &handle, .mount = g, .users = 1, .fd = -1, .cached_fd = -1};
    const struct gpunvme_segment rows = {&f, 0, 10};
    struct gpunvme_table *t;

    return gpunvme_table_open(&rows, 1, 16, 10, NULL, &t);
}
