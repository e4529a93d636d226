/* SPDX-License-Identifier: BSD-2-Clause */
/* Lists of READV with a driver and a mount that are fakes. */
#include "tests/client/lib/shared_list_rig.h"

#include <errno.h>
#include <stdlib.h>

#include "client/lib/direct.h"
#include "client/lib/shared_list.h"
#include "client/lib/socket.h"

struct list_rig {
    struct connection g;
    struct gpunvme_direct d;
};

static struct list_rig_counts counts;
static bool failing;

struct list_rig *list_rig_open(void)
{
    struct list_rig *r = calloc(1, sizeof(*r));

    counts = (struct list_rig_counts){0};
    failing = false;
    if (r)
        pthread_mutex_init(&r->g.lock, NULL);
    return r;
}

void list_rig_close(struct list_rig *r)
{
    shared_lists_free(&r->g);
    pthread_mutex_destroy(&r->g.lock);
    free(r);
}

struct connection *list_rig_handle(struct list_rig *r)
{
    return &r->g;
}

int list_rig_direct(struct list_rig *r, bool gpu)
{
    r->d.space.cuda = gpu ? (struct cuda_driver *)r : NULL;
    int err = shared_lists_map(&r->g, &r->d.space);
    if (!err)
        LIST_INSERT_HEAD(&r->g.directs, &r->d, entry);
    return err;
}

int list_rig_locate(struct list_rig *r, const struct gpunvme_piece *pieces, size_t n, uint64_t *at)
{
    return shared_list_locate(&r->g, pieces, n, at);
}

void list_rig_fail(bool fail)
{
    failing = fail;
}

struct list_rig_counts list_rig_counts(void)
{
    return counts;
}

/* --- The driver and the mount ---------------------------------------------------------------- */

int cuda_driver_map(struct cuda_driver *cu, int device, void *addr, size_t len,
                    enum cuda_host_kind kind, uint64_t *mapped)
{
    (void)cu, (void)device, (void)kind;
    if (failing || len % 4096 != 0)
        return -ENOMEM;
    *mapped = (uintptr_t)addr + LIST_RIG_GPU;
    counts.calls++;
    counts.mapped++;
    return 0;
}

void cuda_driver_unpin(struct cuda_driver *cu, int device, void *addr)
{
    (void)cu, (void)device, (void)addr;
    counts.mapped--;
}

int socket_send_memory(struct connection *g, int fd, uint64_t *token)
{
    (void)g, (void)fd;
    *token = 1;
    return 0;
}

int gpunvme_ioctl(int fd, unsigned long request, void *arg, uint32_t size)
{
    (void)fd, (void)arg, (void)size;
    counts.registered += request == GPUNVME_IOC_REGISTER;
    counts.registered -= request == GPUNVME_IOC_UNREGISTER;
    return 0;
}
