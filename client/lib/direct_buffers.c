/* SPDX-License-Identifier: BSD-2-Clause */
/* Maintains the table in which kernels look up the buffer that contains an address. */
#include "client/lib/direct.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_AT 256u

int direct_buffers_open(struct gpunvme_direct *d)
{
    d->max_buffers = d->g->info.max_buffers;
    d->buffers = calloc(d->max_buffers, sizeof(*d->buffers));
    d->buffer_ids = calloc(d->max_buffers, sizeof(*d->buffer_ids));
    if (!d->buffers || !d->buffer_ids)
        return gpunvme_fail(-ENOMEM, "out of memory");
    size_t room = d->max_buffers + GD_GROUP; /* every lane of a group can load an entry */
    return memory_space_alloc(&d->space, TABLE_AT + room * sizeof(*d->buffers), &d->buffers_at);
}

void direct_buffers_close(struct gpunvme_direct *d)
{
    memory_space_free(&d->space, d->buffers_at);
    free(d->buffers);
    free(d->buffer_ids);
}

int direct_locate(struct connection *g, const struct gpunvme_buffer *b, struct gd_buffer *out)
{
    struct gpunvme_ioc_buffer_iova where = {.id = b->id, .key = b->key};
    int err = gpunvme_ioctl(g->fd, GPUNVME_IOC_BUFFER_IOVA, &where, sizeof(where));

    if (err == -EPERM)
        return gpunvme_fail(err, "the mount trusts others with the direct path (-o direct=)");
    if (err == -ENOTSUP) {
        *out = (struct gd_buffer){
            .addr = (uintptr_t)b->addr,
            .len = b->len,
            .target = {.base = (uintptr_t)b->addr, .iova = GD_UNREACHABLE, .len = b->len},
        };
        return 0;
    }
    if (err)
        return gpunvme_fail(err, "BUFFER_IOVA: %s", strerror(-err));
    *out = (struct gd_buffer){
        .addr = (uintptr_t)b->addr,
        .len = b->len,
        .target = {.base = (uintptr_t)b->addr - where.head,
                   .iova = where.iova,
                   .prps_iova = where.prps_iova,
                   .head = where.head,
                   .len = b->len},
    };
    return 0;
}

static uint64_t entry_at(const struct gpunvme_direct *d, uint32_t i)
{
    return d->buffers_at + TABLE_AT + i * sizeof(struct gd_buffer);
}

static int put_len(struct gpunvme_direct *d, uint32_t i, uint64_t len)
{
    return memory_space_put(&d->space, entry_at(d, i) + offsetof(struct gd_buffer, len), &len,
                            sizeof(len));
}

/*
 * Stores to a free entry, which kernels may be loading. The length follows the other members,
 * because an entry of length 0 is unused. The number of entries follows a new entry.
 */
static int put_entry(struct gpunvme_direct *d, uint32_t i, const struct gd_buffer *entry)
{
    struct gd_buffer rest = *entry;

    rest.len = 0;
    int err = memory_space_put(&d->space, entry_at(d, i), &rest, sizeof(rest));
    if (!err)
        err = put_len(d, i, entry->len);
    if (err || i < d->n_buffers)
        return err;
    uint32_t n = i + 1;
    err = memory_space_put(&d->space, d->buffers_at, &n, sizeof(n));
    if (!err)
        d->n_buffers = n;
    return err;
}

static uint32_t find_id(const struct gpunvme_direct *d, uint64_t id)
{
    uint32_t i = 0;

    while (i < d->n_buffers && d->buffer_ids[i] != id)
        i++;
    return i;
}

void direct_buffer_add(struct gpunvme_direct *d, const struct gpunvme_buffer *b)
{
    struct gd_buffer entry = {0};

    /* A kernel does not reach the memory of another GPU. */
    if (b->device != CUDA_NO_DEVICE && b->device != d->space.device)
        return;
    if (!b->shared || direct_locate(d->g, b, &entry))
        return;
    pthread_mutex_lock(&d->lock);
    uint32_t i = find_id(d, 0); /* a free entry, or a new one at the end */
    if (i < d->max_buffers && put_entry(d, i, &entry) == 0) {
        d->buffers[i] = entry;
        d->buffer_ids[i] = b->id;
    }
    pthread_mutex_unlock(&d->lock);
}

void direct_buffer_remove(struct gpunvme_direct *d, const struct gpunvme_buffer *b)
{
    if (!b->shared)
        return;
    (void)direct_service_settle(d->service);
    pthread_mutex_lock(&d->lock);
    uint32_t i = find_id(d, b->id);
    if (i < d->n_buffers) {
        (void)put_len(d, i, 0); /* a GPU that fails here reads nothing any more */
        d->buffers[i] = (struct gd_buffer){0};
        d->buffer_ids[i] = 0;
    }
    pthread_mutex_unlock(&d->lock);
}

int direct_buffer_find(struct gpunvme_direct *d, uint64_t addr, uint64_t len, struct gd_buffer *out)
{
    bool found = false;

    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < d->n_buffers && !found; i++) {
        const struct gd_buffer *b = &d->buffers[i];
        found = addr >= b->addr && addr - b->addr <= b->len && len <= b->len - (addr - b->addr);
        if (found)
            *out = *b;
    }
    pthread_mutex_unlock(&d->lock);
    return found ? 0 : gpunvme_fail(-EFAULT, "not inside a registered buffer");
}
