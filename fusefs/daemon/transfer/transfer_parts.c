/* SPDX-License-Identifier: BSD-2-Clause */
/* Computes and compares checksums of the parts of a transfer. */
#include "fusefs/daemon/transfer/transfer_parts.h"

#include <stdlib.h>

#include "layout/format.h"
#include "support/minmax.h"

/* Number of blocks that are processed together. */
#define TOGETHER 16384u

static uint64_t block_up(uint64_t byte)
{
    return (byte + LAY_BLOCK_SIZE - 1) / LAY_BLOCK_SIZE;
}

/*
 * Computes the checksums of n blocks of the buffer, from the given block of the
 * file on.
 */
static int sums_of_buffer(const struct transfer_parts *p, uint64_t block, size_t n, uint32_t *sums)
{
    int err = gq_buffer_range_sums(buffer_gq(p->t->use.buffer),
                                   p->at + (block * LAY_BLOCK_SIZE - p->file), n, sums);

    for (size_t i = 0; i < n && !err; i++)
        sums[i] = ffs_sum_of(sums[i]);
    return err;
}

/* --- READ ------------------------------------------------------------------------------------ */

/*
 * Looks up checksums until all are known, one is unavailable, or the transfer
 * is cancelled or has failed.
 */
static void *look_up(void *arg)
{
    struct transfer_parts *p = arg;

    for (uint64_t n = 0, part; n < p->blocks && !transfer_is_cancelled(p->t) && !p->ends;
         n += part) {
        part = min_u64(p->blocks - n, TOGETHER);
        if (ffs_file_sums_now(p->t->inode, (p->first + n) * LAY_BLOCK_SIZE, part, p->sums + n))
            break;
        atomic_store_explicit(&p->known, n + part, memory_order_release);
    }
    return NULL;
}

/*
 * If no thread can be started, nothing is compared before the transfer has
 * ended.
 */
static void start_look_up(struct transfer_parts *p, uint64_t len)
{
    uint64_t end = (p->file + len) / LAY_BLOCK_SIZE;

    p->blocks = end > p->first ? end - p->first : 0;
    if (p->blocks <= TOGETHER)
        look_up(p);
    else
        p->has_thread = pthread_create(&p->thread, NULL, look_up, p) == 0;
}

static void join(struct transfer_parts *p)
{
    if (p->has_thread)
        pthread_join(p->thread, NULL);
    p->has_thread = false;
}

static bool transfer_parts_matches(struct transfer_parts *p, uint64_t block, size_t n)
{
    const uint32_t *sums = p->sums + (block - p->first);
    int err = sums_of_buffer(p, block, n, p->have);

    for (size_t i = 0; i < n && !err; i++) {
        if (sums[i] != FFS_NO_SUM && sums[i] != p->have[i])
            return false;
    }
    return !err;
}

static void has_read(struct gq_listener *l, uint64_t from, uint64_t to)
{
    struct transfer_parts *p = (struct transfer_parts *)l;
    uint64_t known = atomic_load_explicit(&p->known, memory_order_acquire);
    uint64_t end = min_u64((p->file + to) / LAY_BLOCK_SIZE, p->first + known);

    (void)from;
    while (!p->stopped && p->next < end) {
        size_t n = min_u64(end - p->next, TOGETHER);
        p->stopped = !transfer_parts_matches(p, p->next, n);
        if (!p->stopped)
            p->next += n;
    }
}

void transfer_parts_read(struct transfer_parts *p, uint64_t bytes)
{
    join(p);
    has_read(&p->listener, 0, bytes);
}

/* --- WRITE ----------------------------------------------------------------------------------- */

/*
 * A block that is announced again keeps its first checksum, which was computed
 * before both transfers.
 */
static void will_write(struct gq_listener *l, uint64_t from, uint64_t to)
{
    struct transfer_parts *p = (struct transfer_parts *)l;
    uint64_t end = block_up(to);

    (void)from;
    if (p->stopped || end <= p->begun)
        return;
    p->stopped = sums_of_buffer(p, p->first + p->begun, end - p->begun, p->sums + p->begun) != 0;
    p->begun = end;
}

static void transfer_parts_compare(struct transfer_parts *p, uint64_t block, size_t n)
{
    uint32_t *before = p->sums + (block - p->first);

    p->stopped = sums_of_buffer(p, block, n, p->have) != 0;
    for (size_t i = 0; i < n && !p->stopped; i++) {
        if (before[i] != p->have[i])
            before[i] = FFS_NO_SUM;
    }
}

static void has_written(struct gq_listener *l, uint64_t from, uint64_t to)
{
    struct transfer_parts *p = (struct transfer_parts *)l;
    uint64_t end = p->first + to / LAY_BLOCK_SIZE;

    (void)from;
    while (!p->stopped && p->next < end) {
        size_t n = min_u64(end - p->next, TOGETHER);
        transfer_parts_compare(p, p->next, n);
        p->next += n;
    }
}

const uint32_t *transfer_parts_written(struct transfer_parts *p, uint64_t bytes)
{
    has_written(&p->listener, 0, bytes);
    return p->stopped ? NULL : p->sums;
}

/* --------------------------------------------------------------------------------------------- */

static struct transfer_parts *transfer_parts_start(struct transfer_parts *p, struct transfer *t,
                                                   uint64_t len)
{
    p->t = t;
    p->file = t->rw.file_offset + t->done;
    p->at = t->rw.buffer_offset + t->done;
    p->first = p->next = block_up(p->file);
    p->listener.begins = t->write ? will_write : NULL;
    p->listener.ended = t->write ? has_written : has_read;
    if (!t->write)
        start_look_up(p, len);
    return p;
}

struct transfer_parts *transfer_parts_new(struct transfer *t, uint64_t len)
{
    uint64_t blocks = block_up(len), together = min_u64(blocks, TOGETHER);
    struct transfer_parts *p;

    if (t->write && (len % LAY_BLOCK_SIZE || (t->rw.file_offset + t->done) % LAY_BLOCK_SIZE))
        return NULL;
    p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->sums = malloc(blocks * sizeof(*p->sums));
    p->have = malloc(together * sizeof(*p->have));
    if (p->sums && p->have)
        return transfer_parts_start(p, t, len);
    transfer_parts_free(p);
    return NULL;
}

void transfer_parts_free(struct transfer_parts *p)
{
    if (!p)
        return;
    p->ends = true;
    join(p);
    free(p->sums);
    free(p->have);
    free(p);
}
