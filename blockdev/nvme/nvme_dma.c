/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory shared with the controller. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <linux/memfd.h>

#include "blockdev/nvme/nvme_internal.h"

static size_t whole_pages(size_t len)
{
    return (len + NVME_PAGE_SIZE - 1) & ~(size_t)(NVME_PAGE_SIZE - 1);
}

/* Where addresses are physical, a large page of its own: only that is in one piece. */
static size_t mapped_len(const struct nvme_ctrlr *c, size_t len)
{
    return c->t->physical ? NVME_LARGE_PAGE : len;
}

/*
 * Large pages are taken here and now: a missing one is an error, not a signal at the first touch.
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
 * A memfd mapped MAP_SHARED: it keeps its pages across fork, and another process can map it by its
 * fd. The seals forbid resizing: a page missing under this mapping would be a signal.
 */
static int memory_create(const struct nvme_ctrlr *c, size_t len, struct nvme_dma *out)
{
    bool large = c->t->physical;
    int rc;

    out->len = len;
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

int nvme_dma_alloc(struct nvme_ctrlr *c, size_t len, struct nvme_dma *out)
{
    struct nvme_mem mem = {.fd = -1};
    int rc;

    if (len == 0 || len > SIZE_MAX / 4)
        return -EINVAL;
    if (c->t->physical && len > NVME_LARGE_PAGE)
        return -E2BIG;
    rc = memory_create(c, whole_pages(len), out);
    if (rc)
        return rc;
    mem.addr = out->addr;
    mem.len = out->len;
    mem.fd = out->fd;
    rc = c->t->ops->map(c->t, &mem, &out->iova);
    if (rc)
        memory_destroy(c, out);
    return rc;
}

void nvme_dma_revoke(struct nvme_ctrlr *c, struct nvme_dma *dma)
{
    if (dma->iova)
        c->t->ops->unmap(c->t, dma->iova);
    dma->iova = 0;
}

void nvme_dma_free(struct nvme_ctrlr *c, struct nvme_dma *dma)
{
    nvme_dma_revoke(c, dma);
    /* Without an IOMMU a controller that could not be stopped still reaches it: kept for good. */
    if (c->t->physical && !nvme_ctrlr_settled(c))
        return;
    memory_destroy(c, dma);
}

void nvme_dma_orphan(struct nvme_ctrlr *c, const struct nvme_dma *dma)
{
    struct nvme_orphan *o = malloc(sizeof(*o));

    /* Without memory for the note the mapping stays for good: lost, but never reused under DMA. */
    if (!o)
        return;
    o->dma = *dma;
    pthread_mutex_lock(&c->lock);
    o->next = c->orphans;
    c->orphans = o;
    pthread_mutex_unlock(&c->lock);
}

void nvme_dma_free_orphans(struct nvme_ctrlr *c)
{
    struct nvme_orphan *first;

    pthread_mutex_lock(&c->lock);
    first = c->orphans;
    c->orphans = NULL;
    pthread_mutex_unlock(&c->lock);
    while (first) {
        struct nvme_orphan *o = first;

        first = o->next;
        nvme_dma_free(c, &o->dma);
        free(o);
    }
}
