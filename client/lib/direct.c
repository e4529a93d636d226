/* SPDX-License-Identifier: BSD-2-Clause */
/* Opens, renews and closes the handle of the direct path. */
#include "client/lib/direct.h"

#include <errno.h>
#include <stdlib.h>

#include "client/device/device_image.h"
#include "client/lib/mount_gpu.h"
#include "client/lib/shared_list.h"

#define DEFAULT_QUEUES 16u
#define DEFAULT_DEPTH  64u

int direct_check_options(const struct direct_options *o)
{
    uint32_t queues = o->queues ? o->queues : DEFAULT_QUEUES;
    uint32_t depth = o->depth ? o->depth : DEFAULT_DEPTH;

    if (o->flags & ~GPUNVME_UNVERIFIED)
        return gpunvme_fail(-EINVAL, "unknown flags 0x%x", o->flags);
    if (queues > GPUNVME_LEASE_MAX || depth < 2)
        return gpunvme_fail(-EINVAL, "%u queues of %u entries cannot be leased", queues, depth);
    return 0;
}

static int set_wants(struct gpunvme_direct *d, const struct direct_options *o)
{
    d->want_queues = o && o->queues ? o->queues : DEFAULT_QUEUES;
    d->want_depth = o && o->depth ? o->depth : DEFAULT_DEPTH;
    d->unverified = o && o->flags & GPUNVME_UNVERIFIED;
    return o ? direct_check_options(o) : 0;
}

/* Loads one of the kernels, unless there is no GPU or the library has no device code. */
static int direct_load(struct gpunvme_direct *d, const void *image, const char *name,
                       struct cuda_kernel *kernel)
{
    return d->space.cuda && image
               ? cuda_driver_load(d->space.cuda, d->space.device, image, name, kernel)
               : 0;
}

static int direct_load_all(struct gpunvme_direct *d)
{
    int err = direct_load(d, direct_image(), "gpunvme_direct_read", &d->kernel);

    if (!err)
        err = direct_load(d, list_image(), "gpunvme_direct_list", &d->list_kernel);
    if (!err)
        err = direct_load(d, compare_image(), "gpunvme_direct_compare", &d->compare_kernel);
    if (!err && d->list_kernel.function)
        err = memory_space_alloc(&d->space, sizeof(struct gd_parts_table), &d->parts_at);
    return err;
}

/* Opens the memory space of the GPU that the application has chosen, or of the host. */
static int open_memory_space(struct gpunvme_direct *d)
{
    struct connection *g = d->g;
    struct mount_gpu gpu;
    int err = mount_gpu_choose(g, &gpu), device = gpu.device;
    struct cuda_driver *cu = device == CUDA_NO_DEVICE ? NULL : g->cuda;

    d->lease_tier = gpu.lease_tier;
    if (!err)
        err = memory_space_open(&d->space, cu, device);
    if (!err)
        err = direct_load_all(d);
    if (!err && cu)
        err = direct_service_open(&d->space, &d->service);
    return err;
}

/*
 * Allocates the staging. Each queue has room for the lanes of a group, followed by one spare such
 * part so that the parts begin at multiples of their size; behind them each queue has room for its
 * CIDs. A lane and a CID have one page. If the controller does not reach the GPU's memory, all
 * bytes are staged in host memory, with two pages for a CID and four for a lane.
 */
static int direct_alloc_staging(struct gpunvme_direct *d)
{
    bool stages_all = d->lease_tier < 2;
    size_t len;

    d->staged_bytes = stages_all ? GD_STAGED_ALL : GD_STAGED_ENDS;
    len = (d->want_queues + 1) * (size_t)GD_QUEUE_STAGING(d->staged_bytes) +
          (size_t)d->want_queues * GD_STAGED_CIDS * d->staged_bytes;
    return buffer_alloc_on(d->g, len, stages_all, true, d->space.device, &d->staging);
}

static int link_direct(struct gpunvme_direct *d)
{
    struct connection *g = d->g;

    pthread_mutex_lock(&g->lock);
    int err = shared_lists_map(g, &d->space);
    if (!err) {
        LIST_INSERT_HEAD(&g->directs, d, entry);
        for (struct gpunvme_buffer *b = LIST_FIRST(&g->buffers); b; b = LIST_NEXT(b, entry))
            direct_buffer_add(d, b);
    }
    pthread_mutex_unlock(&g->lock);
    return err;
}

static void unlink_direct(struct gpunvme_direct *d)
{
    pthread_mutex_lock(&d->g->lock);
    if (d->entry.le_prev)
        LIST_REMOVE(d, entry);
    pthread_mutex_unlock(&d->g->lock);
}

static int direct_check_mount(const struct connection *g)
{
    if (!g->info.direct)
        return gpunvme_fail(-EPERM, "the mount does not trust this user with the direct path "
                                    "(mount option direct=)");
    if (g->info.executor == GPUNVME_EXECUTOR_NONE)
        return gpunvme_fail(-ENOTSUP, "the mount has no executor, and so no direct path: %s",
                            g->info.fallback);
    return 0;
}

int direct_open(struct connection *g, const struct direct_options *options,
                struct gpunvme_direct **out)
{
    int err = direct_check_mount(g);

    if (err)
        return err;
    struct gpunvme_direct *d = calloc(1, sizeof(*d));
    if (!d)
        return gpunvme_fail(-ENOMEM, "out of memory");
    d->g = g;
    pthread_mutex_init(&d->lock, NULL);
    pthread_mutex_init(&d->lease_lock, NULL);
    err = set_wants(d, options);
    if (!err)
        err = open_memory_space(d);
    if (!err)
        err = direct_alloc_staging(d);
    if (!err)
        err = direct_buffers_open(d);
    if (!err)
        err = direct_queues_lease(d);
    if (!err)
        err = link_direct(d);
    if (err) {
        (void)direct_close(d); /* has launched nothing */
        return err;
    }
    *out = d;
    return 0;
}

/*
 * Abandons a direct path whose kernel does not end. Its memory and the connection's stay, because
 * the kernel may still access them, and because freeing memory on a GPU waits for kernels.
 */
static void direct_abandon(struct gpunvme_direct *d)
{
    direct_lease_end(d->g->fd, d->lease.id, d->lease.key);
    unlink_direct(d);
    connection_abandon(d->g);
}

/*
 * Ends the queues first, because a lost command may still access blocks and staging. Until the
 * commands have ended, direct_queues_lost() reports them to the unregistration of a buffer.
 */
bool direct_close(struct gpunvme_direct *d)
{
    if (!d)
        return true;
    /*
     * If another service is stuck, the calls below would wait for its
     * kernel.
     */
    if (direct_service_any_stuck() || !direct_service_close(d->service)) {
        direct_abandon(d);
        return false;
    }
    d->service = NULL;
    direct_queues_end(d);
    unlink_direct(d);
    while (!LIST_EMPTY(&d->files))
        leased_file_close(LIST_FIRST(&d->files));
    if (d->staging)
        buffer_unregister(d->staging);
    direct_sums_close(d);
    memory_space_free(&d->space, d->parts_at);
    direct_buffers_close(d);
    if (d->space.cuda) {
        cuda_driver_unload(d->space.cuda, d->space.device, &d->kernel);
        cuda_driver_unload(d->space.cuda, d->space.device, &d->list_kernel);
        cuda_driver_unload(d->space.cuda, d->space.device, &d->compare_kernel);
    }
    memory_space_close(&d->space);
    pthread_mutex_destroy(&d->lock);
    pthread_mutex_destroy(&d->lease_lock);
    free(d);
    return true;
}

/*
 * Renews the leases of all files. A file that cannot be renewed stays disabled, and renewing
 * continues with the next one. Returns the first error.
 */
static int renew_files(struct gpunvme_direct *d)
{
    int first = 0;

    for (struct leased_file *f = LIST_FIRST(&d->files); f; f = LIST_NEXT(f, entry)) {
        int err = leased_file_renew(f);
        first = first ? first : err;
    }
    return first;
}

int direct_renew(struct gpunvme_direct *d)
{
    int err = 0;

    pthread_mutex_lock(&d->lease_lock);
    for (struct leased_file *f = LIST_FIRST(&d->files); f && !err; f = LIST_NEXT(f, entry))
        err = leased_file_disable(f);
    if (!err) {
        direct_queues_end(d);
        err = direct_queues_lease(d);
    }
    if (!err)
        err = renew_files(d);
    pthread_mutex_unlock(&d->lease_lock);
    return err;
}
