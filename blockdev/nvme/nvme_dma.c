/* SPDX-License-Identifier: BSD-2-Clause */
/* Allocates memory that is shared with the controller. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <linux/memfd.h>

#include "blockdev/nvme/nvme_internal.h"
#include "support/page.h"

/*
 * Returns the bytes to map. Where addresses are physical, each allocation has a
 * large page of its own, because only that is contiguous.
 */
static size_t mapped_len(const struct nvme_ctrlr *c, size_t len)
{
    return c->t->physical ? NVME_LARGE_PAGE : len;
}

/*
 * Allocates the pages. Large pages are allocated here and now, so that a
 * missing one is an error and not a signal at the first access.
 */
static int memory_fill(const struct nvme_ctrlr *c, int fd, size_t len)
{
    if (!c->t->physical)
        return ftruncate(fd, (off_t)len) ? -errno : 0;
    if (fallocate(fd, 0, 0, (off_t)len) == 0)
        return 0;
    return errno == ENOSPC ? -ENOMEM : -errno;
}

/*
 * Creates a memfd and maps it MAP_SHARED, so that it keeps its pages across
 * fork and another process can map it by its fd. The seals forbid resizing,
 * since access to a missing page would raise a signal.
 */
static int memory_create(const struct nvme_ctrlr *c, size_t len, struct nvme_dma *out)
{
    bool large = c->t->physical;
    int rc;

    *out = (struct nvme_dma){.len = len};
    out->fd = memfd_create("nvme-dma", MFD_CLOEXEC | MFD_ALLOW_SEALING |
                                           (large ? MFD_HUGETLB | MFD_HUGE_2MB : 0u));
    if (out->fd < 0)
        return -errno;
    rc = memory_fill(c, out->fd, mapped_len(c, len));
    if (!rc && fcntl(out->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        rc = -errno;
    if (rc)
        goto close_fd;
    out->addr = mmap(NULL, mapped_len(c, len), PROT_READ | PROT_WRITE,
                     MAP_SHARED | (large ? MAP_POPULATE : 0), out->fd, 0);
    if (out->addr == MAP_FAILED) {
        rc = -errno;
        goto close_fd;
    }
    return 0;

close_fd:
    close(out->fd);
    return rc;
}

static void memory_destroy(const struct nvme_ctrlr *c, struct nvme_dma *dma)
{
    munmap(dma->addr, mapped_len(c, dma->len));
    close(dma->fd);
}

static struct nvme_mem memory_of(const struct nvme_dma *dma)
{
    return (struct nvme_mem){.addr = dma->addr, .len = dma->len, .fd = dma->fd};
}

static int alloc_own(struct nvme_ctrlr *c, size_t len, struct nvme_dma *out)
{
    struct nvme_mem mem;
    int rc;

    if (len > NVME_LARGE_PAGE)
        return -E2BIG;
    rc = memory_create(c, len, out);
    if (rc)
        return rc;
    mem = memory_of(out);
    pthread_mutex_lock(&c->dma_lock);
    rc = nvme_region_map(c, &mem, 0, &out->iova);
    pthread_mutex_unlock(&c->dma_lock);
    if (rc)
        memory_destroy(c, out);
    return rc;
}

/* The caller holds dma_lock. */
static void dma_unmap(struct nvme_ctrlr *c, struct nvme_dma *dma)
{
    if (dma->iova)
        nvme_region_unmap(c, dma->iova);
    dma->iova = 0;
}

/* --- Arenas ---------------------------------------------------------------------------------- */

/* A region of many allocations, with a free page between two. */
struct nvme_arena {
    uint64_t share;      /* nvme_share.id; 0 for the driver's own */
    struct nvme_dma dma; /* iova is 0 after the region was unmapped for good */
    struct nvme_iova ranges;
    uint64_t start;   /* iova of the region, kept after unmapping */
    uint64_t touched; /* from here on nothing has been allocated yet, so it is still zero */
    LIST_ENTRY(nvme_arena) entry;
};

/*
 * Returns the size of a new arena. One for a share has room for its pairs. The
 * driver's first arena is small, for tools with few queues; each further one is
 * half as large as all before.
 */
static size_t next_arena(const struct nvme_ctrlr *c, struct nvme_share share, size_t len)
{
    size_t all = 0;

    if (share.id)
        return share.pairs * (len + NVME_PAGE_SIZE);
    for (const struct nvme_arena *a = LIST_FIRST(&c->arenas); a; a = LIST_NEXT(a, entry))
        all += a->share ? 0 : a->dma.len;
    all = page_whole(all / 2);
    if (all < NVME_ARENA_MIN)
        all = NVME_ARENA_MIN;
    return all < len ? len : all;
}

static void arena_destroy(struct nvme_ctrlr *c, struct nvme_arena *a)
{
    dma_unmap(c, &a->dma);
    memory_destroy(c, &a->dma);
    nvme_iova_destroy(&a->ranges);
    free(a);
}

static int arena_create(struct nvme_ctrlr *c, uint64_t share, size_t len, struct nvme_arena **out)
{
    struct nvme_arena *a = calloc(1, sizeof(*a));
    struct nvme_mem mem;
    int rc = a ? memory_create(c, len, &a->dma) : -ENOMEM;

    if (rc)
        goto free_arena;
    mem = memory_of(&a->dma);
    rc = nvme_region_map(c, &mem, 0, &a->dma.iova);
    if (rc)
        goto destroy_memory;
    a->share = share;
    a->start = a->dma.iova;
    a->touched = share ? a->start + len : a->start; /* the process of a share may write all of it */
    nvme_iova_init(&a->ranges);
    rc = nvme_iova_allow(&a->ranges, a->start, a->start + (len - 1));
    if (rc) {
        arena_destroy(c, a);
        return rc;
    }
    *out = a;
    return 0;

destroy_memory:
    memory_destroy(c, &a->dma);
free_arena:
    free(a);
    return rc;
}

/* Allocates zeroed memory; untouched memory takes no pages yet. */
static int arena_take(struct nvme_arena *a, size_t len, struct nvme_dma *out)
{
    uint64_t iova;
    int rc = a->dma.iova ? nvme_iova_take(&a->ranges, len, NVME_PAGE_SIZE, NULL, &iova) : -ENOSPC;

    if (rc)
        return rc;
    *out = (struct nvme_dma){.addr = (char *)a->dma.addr + (iova - a->start),
                             .len = len,
                             .iova = iova,
                             .fd = a->dma.fd,
                             .fd_offset = iova - a->start};
    if (iova < a->touched)
        memset(out->addr, 0, len < a->touched - iova ? len : a->touched - iova);
    if (iova + len > a->touched)
        a->touched = iova + len;
    return 0;
}

/* The caller holds dma_lock. */
static int take_piece(struct nvme_ctrlr *c, struct nvme_share share, size_t len,
                      struct nvme_dma *out)
{
    struct nvme_arena *a;
    int rc;

    for (a = LIST_FIRST(&c->arenas); a; a = LIST_NEXT(a, entry))
        if (a->share == share.id && arena_take(a, len, out) == 0)
            return 0;
    rc = arena_create(c, share.id, next_arena(c, share, len), &a);
    if (rc)
        return rc;
    LIST_INSERT_HEAD(&c->arenas, a, entry);
    return arena_take(a, len, out);
}

struct nvme_share nvme_share_new(struct nvme_ctrlr *c, unsigned pairs)
{
    return (struct nvme_share){.id = __atomic_add_fetch(&c->shares, 1, __ATOMIC_RELAXED),
                               .pairs = pairs};
}

int nvme_dma_alloc_shared(struct nvme_ctrlr *c, struct nvme_share share, size_t len,
                          struct nvme_dma *out)
{
    int rc;

    if (len == 0 || len > SIZE_MAX / 4)
        return -EINVAL;
    if (c->t->physical)
        return alloc_own(c, page_whole(len), out);
    pthread_mutex_lock(&c->dma_lock);
    rc = take_piece(c, share, page_whole(len), out);
    pthread_mutex_unlock(&c->dma_lock);
    return rc;
}

int nvme_dma_alloc(struct nvme_ctrlr *c, size_t len, struct nvme_dma *out)
{
    return nvme_dma_alloc_shared(c, (struct nvme_share){0}, len, out);
}

/* The caller holds dma_lock. Returns the arena that contains the memory, or NULL. */
static struct nvme_arena *find_arena(const struct nvme_ctrlr *c, const struct nvme_dma *dma)
{
    struct nvme_arena *a = LIST_FIRST(&c->arenas);

    while (a && (uintptr_t)dma->addr - (uintptr_t)a->dma.addr >= a->dma.len)
        a = LIST_NEXT(a, entry);
    return a;
}

/* Unmaps a failed controller's whole arena, which nothing uses. */
void nvme_dma_revoke(struct nvme_ctrlr *c, struct nvme_dma *dma)
{
    struct nvme_arena *a;

    pthread_mutex_lock(&c->dma_lock);
    a = find_arena(c, dma);
    dma_unmap(c, a ? &a->dma : dma);
    pthread_mutex_unlock(&c->dma_lock);
}

/* The caller holds dma_lock. */
static void give_piece(struct nvme_ctrlr *c, struct nvme_arena *a, const struct nvme_dma *dma)
{
    if (!nvme_ctrlr_settled(c))
        dma_unmap(c, &a->dma);
    nvme_iova_give(&a->ranges, a->start + (uint64_t)((char *)dma->addr - (char *)a->dma.addr));
    if (a->ranges.n_used)
        return;
    LIST_REMOVE(a, entry);
    arena_destroy(c, a);
}

void nvme_dma_free(struct nvme_ctrlr *c, struct nvme_dma *dma)
{
    struct nvme_arena *a;

    pthread_mutex_lock(&c->dma_lock);
    a = find_arena(c, dma);
    if (a)
        give_piece(c, a, dma);
    else
        dma_unmap(c, dma);
    pthread_mutex_unlock(&c->dma_lock);
    /* If the controller was not stopped, it may still access the memory, which stays allocated. */
    if (!a && (!c->t->physical || nvme_ctrlr_settled(c)))
        memory_destroy(c, dma);
}

void nvme_dma_free_arenas(struct nvme_ctrlr *c)
{
    while (!LIST_EMPTY(&c->arenas)) {
        struct nvme_arena *a = LIST_FIRST(&c->arenas);

        LIST_REMOVE(a, entry);
        munmap(a->dma.addr, a->dma.len);
        close(a->dma.fd);
        nvme_iova_destroy(&a->ranges);
        free(a);
    }
}

void nvme_dma_orphan(struct nvme_ctrlr *c, const struct nvme_dma *dma)
{
    struct nvme_orphan *o = malloc(sizeof(*o));

    /* Without a record the mapping leaks, but is never reused under DMA. */
    if (!o)
        return;
    o->dma = *dma;
    pthread_mutex_lock(&c->lock);
    LIST_INSERT_HEAD(&c->orphans, o, entry);
    pthread_mutex_unlock(&c->lock);
}

void nvme_dma_free_orphans(struct nvme_ctrlr *c)
{
    struct nvme_orphan *o;

    pthread_mutex_lock(&c->lock);
    while ((o = LIST_FIRST(&c->orphans))) {
        LIST_REMOVE(o, entry);
        pthread_mutex_unlock(&c->lock);
        nvme_dma_free(c, &o->dma);
        free(o);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
}
