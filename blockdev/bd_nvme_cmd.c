/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Cuts transfers into commands of at most MDTS bytes, with PRPs to the caller's
 * buffer or the bounce buffer.
 */
#include <assert.h>
#include <nvme/types.h>
#include <stdlib.h>
#include <string.h>

#include "blockdev/bd_nvme.h"
#include "blockdev/nvme/nvme_prp.h"

/* Returns the IOVA of the buffer, or 0 if it cannot be reached. */
static uint64_t bd_region_iova(struct nvme_bdev *d, const void *buf, size_t len)
{
    uintptr_t start = (uintptr_t)buf;
    uint64_t iova = 0;

    pthread_rwlock_rdlock(&d->regions_lock);
    for (const struct bd_region *r = LIST_FIRST(&d->regions); r && !iova; r = LIST_NEXT(r, entry)) {
        uintptr_t base = (uintptr_t)r->dma.addr;

        if (start >= base && start - base < r->dma.len && len <= r->dma.len - (start - base))
            iova = r->dma.iova + (start - base);
    }
    pthread_rwlock_unlock(&d->regions_lock);
    return iova;
}

void *bd_region_alloc(struct bd_dev *dev, size_t len)
{
    struct nvme_bdev *d = (struct nvme_bdev *)dev;
    struct bd_region *r = malloc(sizeof(*r));

    if (!r)
        return NULL;
    if (nvme_dma_alloc(d->c, len, &r->dma)) {
        free(r);
        return NULL;
    }
    pthread_rwlock_wrlock(&d->regions_lock);
    LIST_INSERT_HEAD(&d->regions, r, entry);
    pthread_rwlock_unlock(&d->regions_lock);
    return r->dma.addr;
}

void bd_region_free(struct bd_dev *dev, void *buf, size_t len)
{
    struct nvme_bdev *d = (struct nvme_bdev *)dev;
    struct bd_region *r;

    (void)len;
    pthread_rwlock_wrlock(&d->regions_lock);
    r = LIST_FIRST(&d->regions);
    while (r && r->dma.addr != buf)
        r = LIST_NEXT(r, entry);
    assert(r && "not from bd_dma_alloc of this device");
    LIST_REMOVE(r, entry);
    pthread_rwlock_unlock(&d->regions_lock);
    nvme_dma_free(d->c, &r->dma);
    free(r);
}

#define DWORD_MASK   3u
#define DSM_MAX_LBAS (1ull << 31)

void bd_io_fail(struct bd_io *io, int error, uint16_t status)
{
    if (io->error)
        return;
    io->error = error;
    io->nvme_status = status;
}

void bd_io_lose(struct nvme_bdev *d, struct bd_io *io, int error)
{
    if (!io->error)
        nvme_count(&d->c->counters.errors);
    bd_io_fail(io, error, 0);
}

static char *tracker_bounce(const struct bd_queue *q, uint16_t index)
{
    return (char *)q->bounce.addr + index * q->bounce_len;
}

static uint64_t *tracker_list(const struct bd_queue *q, uint16_t index)
{
    return (uint64_t *)((char *)q->lists.addr + index * NVME_PAGE_SIZE);
}

static uint64_t tracker_list_iova(const struct bd_queue *q, uint16_t index)
{
    return q->lists.iova + (uint64_t)index * NVME_PAGE_SIZE;
}

static void set_prps(struct bd_queue *q, uint16_t index, uint64_t iova, size_t len)
{
    nvme_prp_fill(&q->trackers[index].sqe, iova, len, tracker_list(q, index),
                  tracker_list_iova(q, index));
}

/* Sets the LBA range of READ, WRITE or WRITE ZEROES. */
static void set_range(const struct nvme_bdev *d, struct nvme_sqe *sqe, uint64_t offset,
                      uint64_t len)
{
    uint64_t slba = offset / d->lba_size;

    sqe->cdw10 = (uint32_t)slba;
    sqe->cdw11 = (uint32_t)(slba >> 32);
    sqe->cdw12 |= (uint32_t)(len / d->lba_size - 1);
}

static uint64_t at_most(uint64_t len, uint64_t limit)
{
    return len < limit ? len : limit;
}

/* Cuts a data command: in place, or through the bounce buffer. */
static uint64_t cut_data(struct bd_queue *q, struct bd_batch *b, uint16_t index, uint64_t left)
{
    const struct bd_io *io = &b->ios[b->at];
    struct bd_tracker *tracker = &q->trackers[index];
    char *buf = (char *)io->buf + b->done;
    uint64_t len;

    if (b->done == 0)
        b->iova = bd_region_iova(q->d, io->buf, io->len);
    tracker->sqe.opcode = io->op == BD_READ ? NVME_IO_READ : NVME_IO_WRITE;
    tracker->sqe.cdw12 = io->flags & BD_FUA ? NVME_RW_FUA : 0;
    if (b->iova && !(b->iova & DWORD_MASK)) {
        len = at_most(left, q->d->c->info.max_transfer);
        set_prps(q, index, b->iova + b->done, len);
    } else {
        len = at_most(left, q->bounce_len);
        if (io->op == BD_READ)
            tracker->copy_to = buf;
        else
            memcpy(tracker_bounce(q, index), buf, len);
        set_prps(q, index, q->bounce.iova + index * q->bounce_len, len);
    }
    set_range(q->d, &tracker->sqe, io->offset + b->done, len);
    return len;
}

/*
 * Returns the maximum bytes of one WRITE ZEROES. It is whole LBAs, because both
 * LBA sizes divide every limit of the controller.
 */
static uint64_t max_zeroes(const struct nvme_bdev *d)
{
    uint64_t field = (uint64_t)NVME_RW_MAX_LBAS * d->lba_size;

    return d->c->info.max_zeroes ? at_most(field, d->c->info.max_zeroes) : field;
}

static uint64_t max_dsm(const struct nvme_bdev *d)
{
    uint64_t limit = d->c->info.max_dsm_lbas;

    return (limit ? at_most(DSM_MAX_LBAS, limit) : DSM_MAX_LBAS) * d->lba_size;
}

static uint64_t cut_zeroes(struct bd_queue *q, struct bd_batch *b, uint16_t index, uint64_t left)
{
    struct nvme_sqe *sqe = &q->trackers[index].sqe;
    uint64_t len;

    if (__atomic_load_n(&q->d->no_write_zeroes, __ATOMIC_RELAXED)) {
        sqe->opcode = NVME_IO_WRITE;
        len = at_most(left, q->bounce_len);
        memset(tracker_bounce(q, index), 0, len);
        set_prps(q, index, q->bounce.iova + index * q->bounce_len, len);
    } else {
        sqe->opcode = NVME_IO_WRITE_ZEROES;
        len = at_most(left, max_zeroes(q->d));
    }
    set_range(q->d, sqe, b->ios[b->at].offset + b->done, len);
    return len;
}

static uint64_t cut_discard(struct bd_queue *q, struct bd_batch *b, uint16_t index, uint64_t left)
{
    struct nvme_sqe *sqe = &q->trackers[index].sqe;
    struct nvme_dsm_range *range = (struct nvme_dsm_range *)tracker_list(q, index);
    uint64_t len = at_most(left, max_dsm(q->d));

    range->cattr = 0;
    range->nlb = (uint32_t)(len / q->d->lba_size);
    range->slba = (b->ios[b->at].offset + b->done) / q->d->lba_size;
    sqe->opcode = NVME_IO_DSM;
    sqe->prp1 = tracker_list_iova(q, index);
    sqe->cdw10 = 0; /* one range, 0-based */
    sqe->cdw11 = NVME_DSM_DEALLOCATE;
    return len;
}

/* Without a cache nothing is flushed, without DSM a hint is ignored. */
static bool needs_no_command(const struct nvme_bdev *d, const struct bd_io *io)
{
    if (io->op == BD_FLUSH)
        return !d->dev.info.volatile_cache;
    return io->len == 0 || (io->op == BD_DISCARD && !d->c->info.dsm);
}

static void next_io(struct bd_batch *b)
{
    b->at++;
    b->done = 0;
}

/* Cuts a command of the current io, of which `left` bytes are left. */
static uint64_t cut_one(struct bd_queue *q, struct bd_batch *b, uint16_t index, uint64_t left)
{
    switch (b->ios[b->at].op) {
    case BD_READ:
    case BD_WRITE:
        return cut_data(q, b, index, left);
    case BD_WRITE_ZEROES:
        return cut_zeroes(q, b, index, left);
    case BD_DISCARD:
        return cut_discard(q, b, index, left);
    case BD_FLUSH:
        q->trackers[index].sqe.opcode = NVME_IO_FLUSH;
        break;
    }
    return left;
}

bool bd_cut(struct bd_queue *q, struct bd_batch *b, uint16_t index)
{
    struct bd_tracker *tracker = &q->trackers[index];
    struct bd_io *io;
    uint64_t left;

    /* Skip transfers that have failed or need no command. */
    while (b->at < b->n && (b->ios[b->at].error || needs_no_command(q->d, &b->ios[b->at])))
        next_io(b);
    if (b->at == b->n)
        return false;
    io = &b->ios[b->at];
    left = io->op == BD_FLUSH ? 0 : io->len - b->done;
    *tracker = (struct bd_tracker){.io = io, .sqe = {.cid = tracker->sqe.cid, .nsid = q->d->nsid}};
    tracker->len = (size_t)cut_one(q, b, index, left);
    b->done += tracker->len;
    if (tracker->len == left)
        next_io(b);
    return true;
}
