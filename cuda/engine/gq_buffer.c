/* SPDX-License-Identifier: BSD-2-Clause */
/* Registers and releases buffers, and copies in and out of them. */
#include <errno.h>
#include <search.h>
#include <stdlib.h>

#include "blockdev/vfio/device_mem.h"
#include "cuda/engine/gq_internal.h"
#include "cuda/gq_host.h"

/* Compares addresses only, because a stale pointer must not be dereferenced. */
static int buffer_by_address(const void *a, const void *b)
{
    return a < b ? -1 : a > b;
}

/*
 * Returns true if the memory belonged to a device that has left the machine.
 * The descriptor that comes with GQ_MEM_CUDA_IPC does not show that, and the
 * client has chosen it.
 */
static bool buffer_is_gone(const struct gq_buffer *b)
{
    const struct nvme_mem *mem = &b->import.mem;
    bool gone = false;

    if (!b->may_go)
        return false;
    for (size_t i = 0; i < mem->n_parts && !gone; i++)
        gone = device_mem_is_gone(mem->parts[i].fd);
    return gone || (!mem->parts && device_mem_is_gone(mem->fd));
}

int gq_buffer_enter(struct gq_engine *e, struct gq_buffer *b)
{
    bool found;

    pthread_mutex_lock(&e->lock);
    found = b && tfind(b, &e->buffers, buffer_by_address) && !buffer_is_gone(b);
    if (found)
        b->users++;
    pthread_mutex_unlock(&e->lock);
    return found ? 0 : -ESTALE;
}

int gq_buffer_leave(struct gq_buffer *b, int err)
{
    struct gq_engine *e = b->engine;

    if (buffer_is_gone(b))
        err = -ESTALE;
    pthread_mutex_lock(&e->lock);
    b->users--;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    return err;
}

static int add_to_table(struct gq_engine *e, struct gq_buffer *b)
{
    int err = 0;

    pthread_mutex_lock(&e->lock);
    if (e->n_buffers == e->opts.max_buffers)
        err = -EMFILE;
    else if (!tsearch(b, &e->buffers, buffer_by_address))
        err = -ENOMEM;
    else
        e->n_buffers++;
    pthread_mutex_unlock(&e->lock);
    return err;
}

static bool table_is_full(struct gq_engine *e)
{
    bool full;

    pthread_mutex_lock(&e->lock);
    full = e->n_buffers == e->opts.max_buffers;
    pthread_mutex_unlock(&e->lock);
    return full;
}

/*
 * Does the part of an import that can run alongside transfers. Untouched pages,
 * perhaps half of the machine's memory, are allocated here and not when they
 * are pinned.
 */
static int buffer_map_file(struct gq_engine *e, const struct gq_mem *mem, struct gq_import *out)
{
    int err = gq_host_import(mem, out);

    if (err || e->exec->kind != GQ_EXECUTOR_CUDA)
        return err;
    err = gq_host_populate(out);
    if (err)
        gq_host_release(out);
    return err;
}

/*
 * Returns the memory as it is offered to the controller: host memory may act as
 * device memory.
 */
static struct gq_import buffer_offered(const struct gq_buffer *b)
{
    struct gq_import import = b->import;

    if (b->engine->exec->kind == GQ_EXECUTOR_CPU && b->engine->opts.cpu_device_memory &&
        !b->is_host)
        import.mem = (struct nvme_mem){.device = import.base, .len = import.mem.len, .fd = -1};
    return import;
}

static int map_for_controller(struct gq_buffer *b)
{
    struct gq_import import = buffer_offered(b);
    int err;

    b->region.base = b->import.base;
    if (b->is_list)
        return b->import.mem.addr && b->import.head % sizeof(uint64_t) == 0 ? 0 : -EINVAL;
    if (b->engine->stages && !import.mem.addr) {
        b->staged = true;
        return 0;
    }
    err = gq_region_map(b->engine->ctrlr, &import, b->for_lease ? NVME_MAP_LEASE : NVME_MAP_BUFFER,
                        &b->region);
    if (!import.mem.addr && b->engine->opts.p2p == GQ_P2P_REQUIRE)
        return err == -EFAULT ? -ENOTSUP : err;
    b->staged = err == -EFAULT || err == -ENOSPC;
    return b->staged ? 0 : err;
}

/*
 * Imports the memory. No run of the executor may be in flight while memory is
 * mapped or unmapped.
 */
static int import_memory(struct gq_engine *e, const struct gq_mem *mem, struct gq_buffer *b)
{
    const struct gq_exec_ops *ops = e->exec->ops;
    bool is_file = mem->kind == GQ_MEM_FD;
    int err = is_file ? buffer_map_file(e, mem, &b->import) : 0;

    if (err)
        return err;
    ops->quiesce(e->exec);
    err = ops->import(e->exec, mem, &b->import);
    if (err && is_file)
        gq_host_release(&b->import);
    if (!err) {
        err = map_for_controller(b);
        if (err)
            ops->release(e->exec, &b->import);
    }
    ops->resume(e->exec);
    return err;
}

/* Keeps memory that the controller may still reach, until it is unmapped. */
static void buffer_keep(struct gq_buffer *b)
{
    struct gq_engine *e = b->engine;

    pthread_mutex_lock(&e->lock);
    b->next_late = e->late;
    e->late = b;
    pthread_mutex_unlock(&e->lock);
}

static void release_memory(struct gq_buffer *b)
{
    struct gq_engine *e = b->engine;
    bool late;

    e->exec->ops->quiesce(e->exec);
    late = gq_buffer_is_reachable(b) && gq_region_unmap(e->ctrlr, &b->region);
    if (!late)
        e->exec->ops->release(e->exec, &b->import);
    e->exec->ops->resume(e->exec);
    if (late)
        buffer_keep(b);
    else
        free(b);
}

/*
 * Returns the late buffers if the controller no longer reaches any. Each was
 * added after its unmap had been counted as late.
 */
static struct gq_buffer *take_late(struct gq_engine *e)
{
    struct gq_buffer *late = NULL;

    pthread_mutex_lock(&e->lock);
    if (e->late && !nvme_dma_is_late(e->ctrlr)) {
        late = e->late;
        e->late = NULL;
    }
    pthread_mutex_unlock(&e->lock);
    return late;
}

void gq_engine_free_late(struct gq_engine *e)
{
    struct gq_buffer *late = take_late(e);

    if (!late)
        return;
    e->exec->ops->quiesce(e->exec);
    while (late) {
        struct gq_buffer *b = late;

        late = b->next_late;
        e->exec->ops->release(e->exec, &b->import);
        nvme_dma_free(e->ctrlr, &b->region.prps);
        free(b);
    }
    e->exec->ops->resume(e->exec);
}

struct revocation {
    struct gq_engine *engine;
    unsigned revoked;
};

static void revoke_if_gone(const void *node, VISIT visit, void *revocation)
{
    struct gq_buffer *b = *(struct gq_buffer *const *)node;
    struct revocation *r = revocation;

    if (visit != postorder && visit != leaf)
        return;
    if (b->region.revoked || !gq_buffer_is_reachable(b) || !buffer_is_gone(b))
        return;
    gq_region_revoke(r->engine->ctrlr, &b->region);
    r->revoked++;
}

unsigned gq_engine_revoke_gone(struct gq_engine *e)
{
    struct revocation r = {.engine = e};

    pthread_mutex_lock(&e->lock);
    twalk_r(e->buffers, revoke_if_gone, &r);
    pthread_mutex_unlock(&e->lock);
    return r.revoked;
}

void gq_buffer_close_late(struct gq_engine *e)
{
    gq_engine_free_late(e);
    while (e->late) {
        struct gq_buffer *b = e->late;

        e->late = b->next_late;
        e->exec->in_reach = true;
        free(b);
    }
}

int gq_buffer_register(struct gq_engine *e, const struct gq_mem *mem, struct gq_buffer **out)
{
    struct gq_buffer *b;
    int err;

    if (mem->len == 0)
        return -EINVAL;
    if (table_is_full(e))
        return -EMFILE;
    b = calloc(1, sizeof(*b));
    if (!b)
        return -ENOMEM;
    b->engine = e;
    b->len = mem->len;
    b->is_list = mem->is_list;
    b->is_host = mem->is_host;
    b->for_lease = mem->for_lease;
    b->may_go = mem->kind == GQ_MEM_DEVICE ||
                (mem->kind == GQ_MEM_SEGMENTS && e->exec->kind == GQ_EXECUTOR_CPU);
    err = import_memory(e, mem, b);
    if (err) {
        free(b);
        return err;
    }
    err = add_to_table(e, b);
    if (err) {
        release_memory(b);
        return err;
    }
    *out = b;
    return 0;
}

/*
 * Makes queues that could not be recovered drop their reference to the buffer.
 * Their late commands cannot reach the memory afterwards, because it is
 * unmapped for the controller.
 */
static void buffer_forget(struct gq_engine *e, const struct gq_buffer *b)
{
    for (unsigned i = 0; i < e->n_queues; i++) {
        if (e->queues[i].held_buffer == b)
            e->queues[i].held_buffer = NULL;
    }
}

/*
 * Removes the buffer from the table, so that it gets no new users, then waits
 * for its current users.
 */
static void withdraw(struct gq_buffer *b)
{
    struct gq_engine *e = b->engine;
    bool found;

    pthread_mutex_lock(&e->lock);
    found = tdelete(b, &e->buffers, buffer_by_address) != NULL;
    assert(found);
    e->n_buffers -= found;
    while (b->users)
        pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

void gq_buffer_unregister(struct gq_buffer *b)
{
    struct gq_engine *e = b->engine;
    bool held;

    withdraw(b);
    pthread_mutex_lock(&e->lock);
    held = b->holds != 0;
    pthread_mutex_unlock(&e->lock);
    if (held)
        gq_engine_recover(e);
    pthread_mutex_lock(&e->lock);
    buffer_forget(e, b);
    pthread_mutex_unlock(&e->lock);
    release_memory(b);
}

void gq_buffer_close(struct gq_buffer *b)
{
    withdraw(b);
    release_memory(b);
}

void *gq_buffer_list(const struct gq_buffer *b)
{
    assert(b->is_list);
    return (char *)b->import.mem.addr + b->import.head;
}

bool gq_buffer_is_reachable(const struct gq_buffer *b)
{
    return !b->staged && !b->is_list;
}

int gq_buffer_iova(const struct gq_buffer *b, struct gq_buffer_iova *out)
{
    bool copied =
        !b->import.mem.addr && nvme_ctrlr_transport(b->engine->ctrlr)->copies_device_memory;

    if (!gq_buffer_is_reachable(b) || copied)
        return -ENOTSUP;
    *out = (struct gq_buffer_iova){.iova = b->region.iova,
                                   .prps = b->region.prps.iova,
                                   .pages = b->region.pages,
                                   .head = b->import.head};
    return 0;
}

static int buffer_check_range(const struct gq_buffer *b, uint64_t offset, size_t len)
{
    if (offset > b->len || len > b->len - offset)
        return -EINVAL;
    return buffer_is_gone(b) ? -ESTALE : 0;
}

static uint64_t address(const struct gq_buffer *b, uint64_t offset)
{
    return b->region.base + b->import.head + offset;
}

int gq_buffer_put(struct gq_buffer *b, uint64_t offset, const void *src, size_t len)
{
    struct gq_exec *x = b->engine->exec;
    int err = buffer_check_range(b, offset, len);

    return err ? err : x->ops->put(x, address(b, offset), src, len);
}

int gq_buffer_get(struct gq_buffer *b, uint64_t offset, void *dst, size_t len)
{
    struct gq_exec *x = b->engine->exec;
    int err = buffer_check_range(b, offset, len);

    return err ? err : x->ops->get(x, dst, address(b, offset), len);
}

int gq_buffer_sums(struct gq_buffer *b, const uint64_t *at, size_t n, uint32_t *sums)
{
    struct gq_exec *x = b->engine->exec;

    for (size_t i = 0; i < n; i++) {
        int err = buffer_check_range(b, at[i], GQ_SUM_BYTES);

        if (err)
            return err;
    }
    return x->ops->sums(x, address(b, 0), at, n, sums);
}

int gq_buffer_range_sums(struct gq_buffer *b, uint64_t offset, size_t n, uint32_t *sums)
{
    struct gq_exec *x = b->engine->exec;

    int err = n > b->len / GQ_SUM_BYTES ? -EINVAL : buffer_check_range(b, offset, n * GQ_SUM_BYTES);

    return err ? err : x->ops->sums(x, address(b, offset), NULL, n, sums);
}
