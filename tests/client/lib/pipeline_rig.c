/* SPDX-License-Identifier: BSD-2-Clause */
/* The bounce pipeline without a mount. */
#include "tests/client/lib/pipeline_rig.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/lib/client_internal.h"
#include "client/lib/pipeline.h"

struct rig {
    struct connection
        handle; /* of a mount that takes no host memory, so staging is not registered */
    struct gpunvme_buffer buffer;
    struct pipeline *pipeline;
};

static _Atomic unsigned interrupts, meeting, inside;

static bool is_interrupted(void)
{
    unsigned left = interrupts;

    while (left && !atomic_compare_exchange_weak(&interrupts, &left, left - 1))
        ;
    errno = EINTR;
    return left;
}

/* Waits until as many reads are in progress as meet, at most five seconds. */
static void meet(void)
{
    unsigned wanted = atomic_load(&meeting), n = atomic_fetch_add(&inside, 1) + 1;

    for (int i = 0; i < 5000 && n < wanted; i++) {
        usleep(1000);
        n = atomic_load(&inside);
    }
}

ssize_t __real_pread64(int fd, void *buf, size_t len, off_t offset);
ssize_t __wrap_pread64(int fd, void *buf, size_t len, off_t offset);
ssize_t __wrap_pread64(int fd, void *buf, size_t len, off_t offset)
{
    meet();
    return is_interrupted() ? -1 : __real_pread64(fd, buf, len, offset);
}

ssize_t __real_pwrite64(int fd, const void *buf, size_t len, off_t offset);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t len, off_t offset);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t len, off_t offset)
{
    return is_interrupted() ? -1 : __real_pwrite64(fd, buf, len, offset);
}

void rig_interrupt(unsigned calls)
{
    interrupts = calls;
}

void rig_meet(unsigned reads)
{
    inside = 0;
    meeting = reads;
}

struct rig *rig_new(unsigned threads, size_t chunk, void *addr, size_t len)
{
    struct rig *r = calloc(1, sizeof(*r));

    if (!r)
        return NULL;
    r->handle.fd = -1;
    r->handle.info.executor = GPUNVME_EXECUTOR_CUDA;
    pthread_mutex_init(&r->handle.lock, NULL);
    pthread_cond_init(&r->handle.unused, NULL);
    r->buffer.owner = &r->handle;
    r->buffer.addr = addr;
    r->buffer.len = len;
    r->buffer.device = CUDA_NO_DEVICE;
    if (pipeline_new(&r->handle, threads, chunk, &r->pipeline) == 0)
        return r;
    free(r);
    return NULL;
}

void rig_free(struct rig *r)
{
    pipeline_free(r->pipeline);
    pthread_cond_destroy(&r->handle.unused);
    pthread_mutex_destroy(&r->handle.lock);
    free(r);
}

static size_t run(struct rig *r, const struct range *range, int *err)
{
    struct gpunvme_result result = {0};

    return pipeline_run(r->pipeline, &r->buffer, range, &result, err);
}

size_t rig_read(struct rig *r, int fd, size_t buffer_offset, uint64_t offset, size_t len, int *err)
{
    struct range range = {
        .fd = fd, .buffer_offset = buffer_offset, .file_offset = offset, .len = len};

    return run(r, &range, err);
}

size_t rig_write(struct rig *r, int fd, size_t buffer_offset, uint64_t offset, size_t len, int *err)
{
    struct range range = {
        .write = true, .fd = fd, .buffer_offset = buffer_offset, .file_offset = offset, .len = len};

    return run(r, &range, err);
}

int rig_readv(struct rig *r, int fd, struct gpunvme_piece *pieces, size_t n, uint64_t *bytes)
{
    struct staging_list list = {.b = &r->buffer, .fd = fd, .pieces = pieces, .n = n};
    struct gpunvme_result result = {0};
    uint64_t sum;
    int err = pipeline_readv(r->pipeline, &list, &sum, &result);

    if (bytes)
        *bytes = sum;
    return err;
}

void rig_end_buffer(struct rig *r, bool ending)
{
    atomic_store(&r->buffer.ending, ending);
}

unsigned rig_staging(struct rig *r)
{
    unsigned n = 0;

    pthread_mutex_lock(&r->handle.lock);
    for (struct gpunvme_buffer *b = LIST_FIRST(&r->handle.buffers); b; b = LIST_NEXT(b, entry))
        n++;
    pthread_mutex_unlock(&r->handle.lock);
    return n;
}
