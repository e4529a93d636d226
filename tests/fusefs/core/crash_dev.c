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

#include "tests/dma_memory.h"
#include "tests/keep_heap.h"

struct op {
    enum bd_op op;
    bool fua;
    uint64_t offset, len;
    uint8_t *data; /* BD_WRITE */
};

/* What a discarded byte holds: neither the old one nor zero. */
#define DISCARDED 0xdd

#define PAGE 4096ul

/* Zeros, but for pages that are marked; for all pages when a test has a pointer to them. */
struct image {
    uint8_t *mem;
    uint64_t bytes;
    uint8_t *marks; /* one byte for each page */
    bool all_marked;
};

struct crash_dev {
    struct bd_dev bd; /* first: the device is found through it */
    pthread_mutex_t lock;
    struct image now;  /* as a reader sees it */
    struct image base; /* as it was when recording began; no memory: not recording */
    struct op *ops;
    size_t n, cap;
    bool ignore_flush;
    long fail_after;
    uint64_t fail_offset, fail_len;
    uint32_t *reads; /* for each 4096 bytes */
    unsigned slow_us;
};

/*
 * Images that are not in use, empty again: tests make thousands, and each page of a new mapping
 * costs a page fault, even where it is only read.
 */
#define SPARES          4
#define SPARE_MAX_BYTES (512ul << 20)
static struct image spares[SPARES];
static pthread_mutex_t spares_lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t pages(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE;
}

static bool take_spare(uint64_t bytes, struct image *image)
{
    bool found = false;

    pthread_mutex_lock(&spares_lock);
    for (size_t i = 0; i < SPARES && !found; i++) {
        found = spares[i].mem && spares[i].bytes == bytes;
        if (found) {
            *image = spares[i];
            spares[i].mem = NULL;
        }
    }
    pthread_mutex_unlock(&spares_lock);
    return found;
}

static bool keep_spare(const struct image *image)
{
    bool kept = false;

    pthread_mutex_lock(&spares_lock);
    for (size_t i = 0; i < SPARES && !kept; i++) {
        kept = !spares[i].mem;
        if (kept)
            spares[i] = *image;
    }
    pthread_mutex_unlock(&spares_lock);
    return kept;
}

static struct image image_new(uint64_t bytes)
{
    struct image image = {.bytes = bytes};

    if (take_spare(bytes, &image))
        return image;
    image.mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    image.marks = calloc(pages(bytes), 1);
    if (image.mem == MAP_FAILED || !image.marks)
        abort();
    return image;
}

static bool has_bytes(const struct image *image, uint64_t page)
{
    static const uint8_t zeros[PAGE];

    if (!image->all_marked)
        return image->marks[page];
    return memcmp(image->mem + page * PAGE, zeros, PAGE) != 0;
}

static void image_clear(struct image *image)
{
    for (uint64_t page = 0; page < pages(image->bytes); page++) {
        if (has_bytes(image, page))
            memset(image->mem + page * PAGE, 0, PAGE);
    }
    memset(image->marks, 0, pages(image->bytes));
    image->all_marked = false;
}

static void image_free(struct image *image)
{
    bool kept = false;

    if (!image->mem)
        return;
    if (image->bytes <= SPARE_MAX_BYTES) {
        image_clear(image);
        kept = keep_spare(image);
    }
    if (!kept) {
        munmap(image->mem, image->bytes);
        free(image->marks);
    }
    image->mem = NULL;
}

static void image_mark(struct image *image, uint64_t offset, uint64_t len)
{
    if (len)
        memset(image->marks + offset / PAGE, 1, (offset + len - 1) / PAGE - offset / PAGE + 1);
}

static void image_copy(struct image *to, const struct image *from)
{
    for (uint64_t page = 0; page < pages(from->bytes); page++) {
        if (has_bytes(from, page)) {
            memcpy(to->mem + page * PAGE, from->mem + page * PAGE, PAGE);
            to->marks[page] = 1;
        }
    }
}

static void image_write(struct image *image, uint64_t offset, const void *data, uint64_t len)
{
    image_mark(image, offset, len);
    memcpy(image->mem + offset, data, len);
}

static void image_discard(struct image *image, uint64_t offset, uint64_t len)
{
    image_mark(image, offset, len);
    memset(image->mem + offset, DISCARDED, len);
}

static void image_zero(struct image *image, uint64_t offset, uint64_t len)
{
    uint64_t n;

    for (uint64_t at = offset; at < offset + len; at += n) {
        uint8_t *mark = &image->marks[at / PAGE];
        n = PAGE - at % PAGE;
        if (n > offset + len - at)
            n = offset + len - at;
        if (image->all_marked || *mark)
            memset(image->mem + at, 0, n);
        if (n == PAGE)
            *mark = 0;
    }
}

static void remember(struct crash_dev *d, const struct bd_io *io)
{
    if (!d->base.mem)
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
    for (uint64_t b = io->offset / PAGE; b <= (io->offset + io->len - 1) / PAGE; b++)
        d->reads[b]++;
    if (d->fail_len && io->offset < d->fail_offset + d->fail_len &&
        d->fail_offset < io->offset + io->len)
        return -EIO;
    memcpy(io->buf, d->now.mem + io->offset, io->len);
    return 0;
}

static int do_change(struct crash_dev *d, const struct bd_io *io)
{
    if (d->fail_after == 0)
        return -EIO;
    if (d->fail_after > 0)
        d->fail_after--;
    if (io->op == BD_WRITE)
        image_write(&d->now, io->offset, io->buf, io->len);
    if (io->op == BD_WRITE_ZEROES)
        image_zero(&d->now, io->offset, io->len);
    /* mkfs discards the whole device, which may be larger than memory. */
    if (io->op == BD_DISCARD && d->base.mem)
        image_discard(&d->now, io->offset, io->len);
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
    return dma_memory_new(len);
}

static void dma_free(struct bd_dev *dev, void *buf, size_t len)
{
    (void)dev;
    (void)len;
    dma_memory_free(buf);
}

static void close_dev(struct bd_dev *dev)
{
    crash_dev_free((struct crash_dev *)dev);
}

struct crash_dev *crash_dev_new(uint64_t bytes, uint32_t lba_size)
{
    static const struct bd_ops ops = {submit, dma_alloc, dma_free, close_dev, NULL, NULL};
    struct crash_dev *d = calloc(1, sizeof(*d));

    if (!d)
        abort();
    keep_heap();
    d->bd.ops = &ops;
    d->bd.info = (struct bd_info){.bytes = bytes,
                                  .lba_size = lba_size,
                                  .volatile_cache = true,
                                  .discards = true,
                                  .name = "memory"};
    d->now = image_new(bytes);
    d->reads = calloc(bytes / PAGE + 1, sizeof(*d->reads));
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
    image_free(&d->base);
}

void crash_dev_free(struct crash_dev *d)
{
    if (!d)
        return;
    forget(d);
    image_free(&d->now);
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
    d->now.all_marked = true;
    return d->now.mem;
}

const uint8_t *crash_dev_peek(const struct crash_dev *d)
{
    return d->now.mem;
}

uint8_t *crash_dev_range(struct crash_dev *d, uint64_t offset, uint64_t len)
{
    image_mark(&d->now, offset, len);
    return d->now.mem + offset;
}

void crash_dev_record(struct crash_dev *d)
{
    pthread_mutex_lock(&d->lock);
    forget(d);
    d->base = image_new(d->now.bytes);
    image_copy(&d->base, &d->now);
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

static void apply(struct image *image, const struct op *op, uint64_t from, uint64_t len)
{
    if (op->op == BD_WRITE)
        image_write(image, op->offset + from, op->data + from, len);
    else if (op->op == BD_DISCARD)
        image_discard(image, op->offset + from, len);
    else
        image_zero(image, op->offset + from, len);
}

static void apply_torn(struct image *image, const struct op *op, uint32_t lba, uint64_t *random)
{
    for (uint64_t at = 0; at < op->len; at += lba) {
        if (next_random(random) & 1)
            apply(image, op, at, lba);
    }
}

static void apply_fate(struct image *image, const struct op *op, uint32_t lba, enum crash_fate fate,
                       uint64_t *random)
{
    uint64_t choice = fate == CRASH_RANDOM ? next_random(random) % 3 : fate == CRASH_KEEP;

    if (choice == 1)
        apply(image, op, 0, op->len);
    else if (choice == 2)
        apply_torn(image, op, lba, random);
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
    image_copy(&cut->now, &d->base);
    for (size_t i = 0; i < ops; i++) {
        const struct op *op = &d->ops[i];
        if (op->op == BD_FLUSH)
            continue;
        if (i < durable || (op->fua && !d->ignore_flush))
            apply(&cut->now, op, 0, op->len);
        else
            apply_fate(&cut->now, op, d->bd.info.lba_size, fate, &random);
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
    uint64_t reads = d->reads[offset / PAGE];
    pthread_mutex_unlock(&d->lock);
    return reads;
}

void crash_dev_slow(struct crash_dev *d, unsigned us)
{
    pthread_mutex_lock(&d->lock);
    d->slow_us = us;
    pthread_mutex_unlock(&d->lock);
}
