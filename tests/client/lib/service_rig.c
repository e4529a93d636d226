/* SPDX-License-Identifier: BSD-2-Clause */
/* The persistent kernel of the direct path as a thread, with a driver that is a fake. */
#define GQ_LANES 32u

/* The block's clock can be stopped. */
#define gq_clock_ns clock_of_the_machine
#include "cuda/queue/gq_fence.h"
#undef gq_clock_ns
static uint64_t gq_clock_ns(void);
/* A read without a file has made-up results. */
#include "client/device/gd_lone.h"
static int64_t read_through_queues(const struct gpunvme_device_file *file, uint64_t dst, uint64_t n,
                                   uint64_t offset)
{
    return gd_shared_pread_warp(file, dst, n, offset);
}
#define gd_shared_pread_warp read_made_up
static int64_t read_made_up(const struct gpunvme_device_file *file, uint64_t dst, uint64_t n,
                            uint64_t offset);
#include "client/device/gd_serve.h"

#include "tests/client/lib/service_rig.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "client/device/device_image.h"
#include "client/lib/direct.h"
#include "client/lib/error.h"

/* What the rig has beside the fields that tests use. */
static struct {
    struct direct_service *service;
    struct gpunvme_device_file file;
    struct gq_service_launch launch;
    struct gq_service_stay stay;
    struct gd_launch part; /* the last kernel for a long read */
    pthread_t threads[GQ_SERVICE_SLOTS];
    unsigned running; /* threads, until they are joined */
} own;

static struct service_rig *rig; /* one at a time: fakes find it here */

static uint64_t gq_clock_ns(void)
{
    rig->clock_polls++;
    return rig->stopped_ns ? rig->stopped_ns : clock_of_the_machine();
}

int service_rig_open(uint64_t command_ns, struct service_rig **out)
{
    struct service_rig *r = calloc(1, sizeof(*r));
    const struct memory_space place = {.cuda = (struct cuda_driver *)r};

    if (!r)
        return -ENOMEM;
    rig = r;
    memset(&own, 0, sizeof(own));
    own.file.set.command_ns = command_ns;
    r->fail_from = UINT64_MAX;
    int err = direct_service_open(&place, &own.service);
    if (err)
        free(r);
    else
        *out = r;
    return err;
}

bool service_rig_close(struct service_rig *r)
{
    if (!direct_service_close(own.service))
        return false;
    free(r);
    return true;
}

int64_t service_rig_read(uint64_t len, uint64_t offset)
{
    const struct direct_service_read read = {
        .file = &own.file, .addr = offset + 1, .len = len, .offset = offset};

    return direct_service_read(own.service, &read);
}

bool service_rig_let_launched(struct service_rig *r)
{
    const struct gd_launch *l = &own.part;
    bool right = l->addr == l->offset + 1,
         is_wanted = !__atomic_load_n(l->cancel, __ATOMIC_ACQUIRE);
    int64_t result = l->offset >= r->fail_from ? r->fail : right ? (int64_t)l->len : -EFAULT;

    if (result > 0 && is_wanted)
        r->part_bytes += l->len;
    __atomic_store_n(l->bytes, is_wanted ? result : -ECANCELED, __ATOMIC_RELEASE);
    return is_wanted;
}

static int launch_part(struct gpunvme_direct *d, struct gd_launch *part, void *stream)
{
    struct service_rig *r = (struct service_rig *)d;

    (void)stream;
    if (r->launch_says != 1)
        return r->launch_says;
    own.part = *part;
    r->parts++;
    if (!r->holds_part)
        (void)service_rig_let_launched(r);
    return 1;
}

void service_rig_set_launch(struct service_rig *r, int says, bool held)
{
    r->launch_says = says;
    r->holds_part = held;
}

int64_t service_rig_long_read(struct service_rig *r, uint64_t len, uint64_t offset)
{
    const struct gd_launch whole = {.addr = offset + 1, .len = len, .offset = offset};
    const struct direct_service_read read = {.file = &own.file,
                                             .addr = offset + 1,
                                             .len = len,
                                             .offset = offset,
                                             .launch = launch_part,
                                             .direct = (struct gpunvme_direct *)r,
                                             .whole = &whole};

    return direct_service_read(own.service, &read);
}

int64_t service_rig_read_file(const struct gpunvme_device_file *f, uint64_t addr, uint64_t len,
                              uint64_t offset)
{
    const struct direct_service_read read = {
        .file = f, .file_at = (uintptr_t)f, .addr = addr, .len = len, .offset = offset};

    return direct_service_read(own.service, &read);
}

bool service_rig_has_left(void)
{
    return direct_service_has_left(own.service);
}

bool service_rig_settle(void)
{
    return direct_service_settle(own.service);
}

bool service_rig_any_stuck(void)
{
    return direct_service_any_stuck();
}

void service_rig_fail_from(struct service_rig *r, uint64_t offset, int err)
{
    r->fail = err;
    r->fail_from = offset;
}

void service_rig_stop_clock(struct service_rig *r, uint64_t later_ns)
{
    r->stopped_ns = gq_clock_ns() + later_ns;
}

/* --- The block ------------------------------------------------------------------------------- */

/* The address tells the offset, so that parts that go to the wrong place are found out. */
static int64_t read_made_up(const struct gpunvme_device_file *file, uint64_t dst, uint64_t n,
                            uint64_t offset)
{
    rig->reads++;
    while (rig->stick)
        sched_yield();
    if (offset >= rig->fail_from)
        return rig->fail;
    rig->bytes += n;
    if (file)
        return read_through_queues(file, dst, n, offset);
    return dst == offset + 1 ? (int64_t)n : -EFAULT;
}

/* Serves a slot like a block of the kernel. */
static void *serve(void *arg)
{
    const struct gq_service_launch *l = &own.launch;
    uint32_t slot = (uint32_t)(uintptr_t)arg;

    while (rig->hold)
        sched_yield();
    uint64_t began_ns = gq_clock_ns();
    uint32_t number = gq_service_begin(l, &own.stay, slot, began_ns);
    number = gd_serve(l, &own.stay, slot, began_ns, number);
    gq_service_leave(l, &own.stay, slot, number);
    return NULL;
}

/* --- The driver ------------------------------------------------------------------------------ */

const void *service_image(void)
{
    return "code";
}

int cuda_driver_load(struct cuda_driver *cu, int device, const void *image, const char *name,
                     struct cuda_kernel *out)
{
    (void)cu, (void)device, (void)image, (void)name;
    out->module = rig;
    rig->held++;
    return 0;
}

void cuda_driver_unload(struct cuda_driver *cu, int device, struct cuda_kernel *kernel)
{
    (void)cu, (void)device;
    if (kernel->module)
        rig->held--;
}

int cuda_driver_stream_new(struct cuda_driver *cu, int device, bool urgent, void **stream)
{
    (void)cu, (void)device, (void)urgent;
    *stream = rig;
    rig->held++;
    return 0;
}

void cuda_driver_stream_free(struct cuda_driver *cu, int device, void *stream)
{
    (void)cu, (void)device, (void)stream;
    rig->held--;
}

int cuda_driver_copy_wait(struct cuda_driver *cu, int device, void *stream)
{
    (void)cu, (void)device, (void)stream;
    while (own.running)
        pthread_join(own.threads[--own.running], NULL);
    return 0;
}

bool cuda_driver_stream_drain(struct cuda_driver *cu, int device, void *stream,
                              uint64_t patience_ns)
{
    if (!patience_ns)
        return rig->is_idle;
    if (rig->hold || rig->stick)
        return false;
    cuda_driver_copy_wait(cu, device, stream);
    return true;
}

int cuda_driver_stream_check(struct cuda_driver *cu, int device, void *stream)
{
    (void)cu, (void)device, (void)stream;
    rig->checks++;
    return rig->fail_stream ? gpunvme_fail(-EIO, "what CUDA says") : 0;
}

int cuda_driver_map(struct cuda_driver *cu, int device, void *addr, size_t len,
                    enum cuda_host_kind kind, uint64_t *mapped)
{
    (void)cu, (void)device, (void)len, (void)kind;
    *mapped = (uintptr_t)addr;
    rig->page = addr;
    rig->held++;
    return 0;
}

void cuda_driver_unpin(struct cuda_driver *cu, int device, void *addr)
{
    (void)cu, (void)device, (void)addr;
    rig->held--;
}

/* The service makes no copies, and takes no memory of the GPU. */
int cuda_driver_copy_start(struct cuda_driver *cu, int device, void *stream, uint64_t dst,
                           uint64_t src, size_t len)
{
    (void)cu, (void)device, (void)stream, (void)dst, (void)src, (void)len;
    return -ENOTSUP;
}

int cuda_driver_alloc(struct cuda_driver *cu, int device, size_t len, uint64_t *addr)
{
    (void)cu, (void)device, (void)len, (void)addr;
    return -ENOTSUP;
}

int cuda_driver_free(struct cuda_driver *cu, int device, uint64_t addr)
{
    (void)cu, (void)device, (void)addr;
    return -ENOTSUP;
}

/* Launches of one stream run one after the other: the one before has said that it ends. */
int cuda_driver_launch(struct cuda_driver *cu, int device, const struct cuda_kernel *kernel,
                       unsigned blocks, unsigned threads, void *stream, void **args)
{
    (void)kernel, (void)threads;
    if (rig->fail_launches && !rig->serves_first)
        return rig->fail_launches;
    cuda_driver_copy_wait(cu, device, stream);
    memcpy(&own.launch, args[0], sizeof(own.launch));
    for (; own.running < blocks; own.running++) {
        void *slot = (void *)(uintptr_t)own.running;
        if (pthread_create(&own.threads[own.running], NULL, serve, slot) != 0)
            abort();
    }
    rig->launches++;
    if (rig->fail_launches)
        cuda_driver_copy_wait(cu, device, stream);
    return rig->fail_launches;
}
