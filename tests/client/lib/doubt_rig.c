/* SPDX-License-Identifier: BSD-2-Clause */
/* The service of copies and the driver are fakes; the rest is the library's. */
#include "tests/client/lib/doubt_rig.h"

#include <stdlib.h>

#include "client/lib/client_internal.h"
#include "client/lib/copy_service.h"

static struct gpunvme handle;
static int of_device;
static unsigned checks_left, frees;

bool __wrap_copy_services_may_write(int device, uint64_t addr, size_t len);
bool __wrap_copy_services_may_write(int device, uint64_t addr, size_t len)
{
    (void)addr, (void)len;
    checks_left -= checks_left != 0;
    return device == of_device && checks_left != 0;
}

int __wrap_cuda_driver_free(struct cuda_driver *cu, int device, uint64_t addr);
int __wrap_cuda_driver_free(struct cuda_driver *cu, int device, uint64_t addr)
{
    (void)cu, (void)device, (void)addr;
    frees++;
    return 0;
}

struct gpunvme_buffer *doubt_rig_buffer(int device)
{
    struct gpunvme_buffer *b = calloc(1, sizeof(*b));

    if (!b)
        abort();
    handle.fd = -1;
    pthread_mutex_init(&handle.lock, NULL);
    pthread_cond_init(&handle.unused, NULL);
    of_device = device;
    frees = 0;
    b->owner = &handle;
    b->link = &handle.buffers;
    handle.buffers = b;
    b->addr = &handle;
    b->len = 4096;
    b->device = 0;
    b->pinned_for = CUDA_NO_DEVICE;
    b->fd = -1;
    b->allocated = true;
    return b;
}

void doubt_rig_share(struct gpunvme_buffer *b)
{
    b->shared = true;
}

void doubt_rig_settle_after(unsigned checks)
{
    checks_left = checks + 1;
}

int doubt_rig_read(struct gpunvme_buffer *b, int fd)
{
    const struct range r = {.fd = fd, .len = 1};
    struct gpunvme_result result = {0};
    int err;

    gpunvme_transfer_bounced(b, &r, &result, &err);
    return err;
}

unsigned doubt_rig_frees(void)
{
    return frees;
}
