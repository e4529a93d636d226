/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The device in memory that power cuts are tried on.
 */
#include "tests/fusefs/core/crash_dev.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct op {
    enum bd_op op;
    bool fua;
    uint64_t offset, len;
    uint8_t *data; /* BD_WRITE */
};

/* What a discarded byte holds: neither the old one nor zero. */
#define DISCARDED 0xdd

struct crash_dev {
    struct bd_dev bd; /* first: the device is found through it */
    pthread_mutex_t lock;
    uint8_t *mem;  /* as a reader sees it */
    uint8_t *base; /* as it was when recording began; NULL: not recording */
    struct op *ops;
    size_t n, cap;
    bool ignore_flush;
    long fail_after;
    uint64_t fail_offset, fail_len;
    uint32_t *reads; /* for each 4096 bytes */
    unsigned slow_us;
};

static void *map(uint64_t bytes)
{
    void *mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (mem == MAP_FAILED)
        abort();
    return mem;
}

static void remember(struct crash_dev *d, const struct bd_io *io)
{
    if (!d->base)
        return;
    if (d->n == d->cap) {
        d->cap = d->cap ? d->cap * 2 : 256;
        d->ops = realloc(d->ops, d->cap * sizeof(*d->ops));
        if (!d->ops)
            abort();
    }
    struct op *op = &d->ops[d->n++];
    *op =
        (struct op){.op = io->op, .fua = io->flags & BD_FUA, .offset = io->offset, .len = io->len};
    if (io->op != BD_WRITE)
        return;
    op->data = malloc(io->len);
    if (!op->data)
        abort();
    memcpy(op->data, io->buf, io->len);
}

static int do_read(struct crash_dev *d, const struct bd_io *io)
{
    for (uint64_t b = io->offset / 4096; b <= (io->offset + io->len - 1) / 4096; b++)
        d->reads[b]++;
    if (d->fail_len && io->offset < d->fail_offset + d->fail_len &&
        d->fail_offset < io->offset + io->len)
        return -EIO;
    memcpy(io->buf, d->mem + io->offset, io->len);
    return 0;
}

static int do_change(struct crash_dev *d, const struct bd_io *io)
{
    if (d->fail_after == 0)
        return -EIO;
    if (d->fail_after > 0)
        d->fail_after--;
    if (io->op == BD_WRITE)
        memcpy(d->mem + io->offset, io->buf, io->len);
    if (io->op == BD_WRITE_ZEROES)
        memset(d->mem + io->offset, 0, io->len);
    /* mkfs discards the whole device, which may be larger than memory. */
    if (io->op == BD_DISCARD && d->base)
        memset(d->mem + io->offset, DISCARDED, io->len);
    remember(d, io);
    return 0;
}

static int submit(struct bd_dev *dev, struct bd_io *ios, size_t n)
{
    struct crash_dev *d = (struct crash_dev *)dev;
    int first = 0;

    for (size_t i = 0; i < n; i++) {
        pthread_mutex_lock(&d->lock);
        ios[i].error = ios[i].op == BD_READ ? do_read(d, &ios[i]) : do_change(d, &ios[i]);
        unsigned us = d->slow_us;
        pthread_mutex_unlock(&d->lock);
        if (us)
            usleep(us);
        if (!first)
            first = ios[i].error;
    }
    return first;
}

static void *dma_alloc(struct bd_dev *dev, size_t len)
{
    (void)dev;
    size_t whole = (len + 4095) & ~(size_t)4095;
    void *buf = aligned_alloc(4096, whole);
    return buf ? memset(buf, 0, whole) : NULL;
}

static void dma_free(struct bd_dev *dev, void *buf, size_t len)
{
    (void)dev;
    (void)len;
    free(buf);
}

static void close_dev(struct bd_dev *dev)
{
    crash_dev_free((struct crash_dev *)dev);
}

struct crash_dev *crash_dev_new(uint64_t bytes, uint32_t lba_size)
{
    static const struct bd_ops ops = {submit, dma_alloc, dma_free, close_dev, NULL};
    struct crash_dev *d = calloc(1, sizeof(*d));

    if (!d)
        abort();
    d->bd.ops = &ops;
    d->bd.info = (struct bd_info){.bytes = bytes,
                                  .lba_size = lba_size,
                                  .volatile_cache = true,
                                  .discards = true,
                                  .name = "memory"};
    d->mem = map(bytes);
    d->reads = calloc(bytes / 4096 + 1, sizeof(*d->reads));
    d->fail_after = -1;
    pthread_mutex_init(&d->lock, NULL);
    return d;
}

static void forget(struct crash_dev *d)
{
    for (size_t i = 0; i < d->n; i++)
        free(d->ops[i].data);
    free(d->ops);
    d->ops = NULL;
    d->n = d->cap = 0;
    if (d->base)
        munmap(d->base, d->bd.info.bytes);
    d->base = NULL;
}

void crash_dev_free(struct crash_dev *d)
{
    if (!d)
        return;
    forget(d);
    munmap(d->mem, d->bd.info.bytes);
    free(d->reads);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

struct bd_dev *crash_dev_bd(struct crash_dev *d)
{
    return &d->bd;
}

uint8_t *crash_dev_bytes(struct crash_dev *d)
{
    return d->mem;
}

/* Copies a page only where there is something: images are mostly empty. */
static void copy_sparse(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    static const uint8_t zeros[4096];

    for (uint64_t at = 0; at < bytes; at += 4096) {
        if (memcmp(from + at, zeros, 4096) != 0)
            memcpy(to + at, from + at, 4096);
    }
}

void crash_dev_record(struct crash_dev *d)
{
    pthread_mutex_lock(&d->lock);
    forget(d);
    d->base = map(d->bd.info.bytes);
    copy_sparse(d->base, d->mem, d->bd.info.bytes);
    pthread_mutex_unlock(&d->lock);
}

size_t crash_dev_ops(struct crash_dev *d)
{
    pthread_mutex_lock(&d->lock);
    size_t n = d->n;
    pthread_mutex_unlock(&d->lock);
    return n;
}

void crash_dev_ignore_flush(struct crash_dev *d, bool ignore)
{
    d->ignore_flush = ignore;
}

static uint64_t next_random(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15ull;
    uint64_t z = *state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static void apply(uint8_t *mem, const struct op *op, uint64_t from, uint64_t len)
{
    if (op->op == BD_WRITE)
        memcpy(mem + op->offset + from, op->data + from, len);
    else
        memset(mem + op->offset + from, op->op == BD_DISCARD ? DISCARDED : 0, len);
}

static void apply_torn(uint8_t *mem, const struct op *op, uint32_t lba, uint64_t *random)
{
    for (uint64_t at = 0; at < op->len; at += lba) {
        if (next_random(random) & 1)
            apply(mem, op, at, lba);
    }
}

static void apply_fate(uint8_t *mem, const struct op *op, uint32_t lba, enum crash_fate fate,
                       uint64_t *random)
{
    uint64_t choice = fate == CRASH_RANDOM ? next_random(random) % 3 : fate == CRASH_KEEP;

    if (choice == 1)
        apply(mem, op, 0, op->len);
    else if (choice == 2)
        apply_torn(mem, op, lba, random);
}

/* Operations before the last flush below `ops` are durable. */
static size_t durable_until(const struct crash_dev *d, size_t ops)
{
    for (size_t i = ops; i > 0 && !d->ignore_flush; i--) {
        if (d->ops[i - 1].op == BD_FLUSH)
            return i;
    }
    return 0;
}

struct crash_dev *crash_dev_cut(struct crash_dev *d, size_t ops, enum crash_fate fate,
                                uint64_t seed)
{
    struct crash_dev *cut = crash_dev_new(d->bd.info.bytes, d->bd.info.lba_size);
    uint64_t random = seed * 1000003 + ops;

    pthread_mutex_lock(&d->lock);
    size_t durable = durable_until(d, ops);
    copy_sparse(cut->mem, d->base, d->bd.info.bytes);
    for (size_t i = 0; i < ops; i++) {
        const struct op *op = &d->ops[i];
        if (op->op == BD_FLUSH)
            continue;
        if (i < durable || (op->fua && !d->ignore_flush))
            apply(cut->mem, op, 0, op->len);
        else
            apply_fate(cut->mem, op, d->bd.info.lba_size, fate, &random);
    }
    pthread_mutex_unlock(&d->lock);
    return cut;
}

void crash_dev_fail_writes(struct crash_dev *d, long after)
{
    pthread_mutex_lock(&d->lock);
    d->fail_after = after;
    pthread_mutex_unlock(&d->lock);
}

void crash_dev_fail_reads(struct crash_dev *d, uint64_t offset, uint64_t len)
{
    pthread_mutex_lock(&d->lock);
    d->fail_offset = offset;
    d->fail_len = len;
    pthread_mutex_unlock(&d->lock);
}

uint64_t crash_dev_reads(struct crash_dev *d, uint64_t offset)
{
    pthread_mutex_lock(&d->lock);
    uint64_t reads = d->reads[offset / 4096];
    pthread_mutex_unlock(&d->lock);
    return reads;
}

void crash_dev_slow(struct crash_dev *d, unsigned us)
{
    pthread_mutex_lock(&d->lock);
    d->slow_us = us;
    pthread_mutex_unlock(&d->lock);
}
