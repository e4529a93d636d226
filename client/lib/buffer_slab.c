/* SPDX-License-Identifier: BSD-2-Clause */
/* Allocates pieces of shared files: first fit, in pages of the processor. */
#include "client/lib/buffer_slab.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "support/page.h"

#define SLAB_BYTES  ((size_t)8 << 20) /* untouched pages use no memory */
#define PIECE_BYTES ((size_t)128 << 10)
#define PAGES       (SLAB_BYTES / PAGE_BYTES)

struct slab {
    LIST_ENTRY(slab) entry;
    int fd;
    char *addr;
    size_t pieces;     /* allocated and not freed */
    size_t touched;    /* bytes from the beginning; no piece behind them was ever allocated */
    bool taken[PAGES]; /* one for each page of page_bytes(); a slab may have fewer pages */
};

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Returns the pages of a piece, with the free page that follows it. */
static size_t pages_of(size_t len)
{
    return (len + page_bytes() - 1) / page_bytes() + 1;
}

void slabs_init(struct slabs *s)
{
    pthread_mutex_init(&s->lock, NULL);
    LIST_INIT(&s->all);
}

void slabs_destroy(struct slabs *s)
{
    pthread_mutex_destroy(&s->lock);
}

bool slab_takes(size_t len)
{
    struct rlimit size;

    return len <= PIECE_BYTES && getrlimit(RLIMIT_FSIZE, &size) == 0 && size.rlim_cur >= SLAB_BYTES;
}

/* Returns NULL with errno set after a failure. */
static struct slab *slab_create(void)
{
    struct slab *b = calloc(1, sizeof(*b));

    if (!b)
        return NULL;
    b->fd = memfd_create("gpunvme-buffers", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (b->fd < 0 || ftruncate(b->fd, (off_t)SLAB_BYTES) != 0)
        goto failed;
    b->addr = mmap(NULL, SLAB_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0);
    if (b->addr != MAP_FAILED)
        return b;
failed:
    if (b->fd >= 0)
        close(b->fd);
    free(b);
    return NULL;
}

/* The caller holds the lock, when no piece of the slab is in use. */
static void slab_remove(struct slab *b)
{
    LIST_REMOVE(b, entry);
    munmap(b->addr, SLAB_BYTES);
    close(b->fd);
    free(b);
}

/* Returns the first of n consecutive free pages, or -1. */
static ptrdiff_t buffer_slab_find_free(const struct slab *b, size_t n)
{
    size_t pages = SLAB_BYTES / page_bytes(), run = 0;

    for (size_t i = 0; i < pages; i++) {
        run = b->taken[i] ? 0 : run + 1;
        if (run == n)
            return (ptrdiff_t)(i + 1 - n);
    }
    return -1;
}

static bool buffer_slab_take(struct slab *b, size_t len, struct slab_piece *out)
{
    size_t n = pages_of(len);
    ptrdiff_t first = buffer_slab_find_free(b, n);

    if (first < 0)
        return false;
    size_t at = (size_t)first * page_bytes(), end = at + (n - 1) * page_bytes();
    memset(b->taken + first, true, n);
    if (at < b->touched)
        memset(b->addr + at, 0, (end < b->touched ? end : b->touched) - at);
    b->touched = end > b->touched ? end : b->touched;
    b->pieces++;
    *out = (struct slab_piece){.slab = b, .addr = b->addr + at, .fd = b->fd, .offset = at};
    return true;
}

/* Called with the lock held. */
static int alloc_locked(struct slabs *s, size_t len, struct slab_piece *out)
{
    struct slab *b = LIST_FIRST(&s->all);

    while (b && !buffer_slab_take(b, len, out))
        b = LIST_NEXT(b, entry);
    if (b)
        return 0;
    b = slab_create();
    if (!b)
        return -errno;
    LIST_INSERT_HEAD(&s->all, b, entry);
    bool fits = buffer_slab_take(b, len, out);
    assert(fits);
    (void)fits;
    return 0;
}

int slab_alloc(struct slabs *s, size_t len, struct slab_piece *out)
{
    assert(len && len <= PIECE_BYTES);
    pthread_mutex_lock(&s->lock);
    int err = alloc_locked(s, len, out);
    pthread_mutex_unlock(&s->lock);
    return err;
}

void slab_free(struct slabs *s, const struct slab_piece *piece, size_t len, bool dirty)
{
    struct slab *b = piece->slab;
    size_t first = piece->offset / page_bytes();

    pthread_mutex_lock(&s->lock);
    if (!dirty)
        memset(b->taken + first, false, pages_of(len));
    if (--b->pieces == 0)
        slab_remove(b);
    pthread_mutex_unlock(&s->lock);
}
