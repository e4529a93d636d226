/* Memory shared with the controller. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "blockdev/nvme_internal.h"

static size_t whole_pages(size_t len)
{
    return (len + NVME_PAGE_SIZE - 1) & ~(size_t)(NVME_PAGE_SIZE - 1);
}

/* A memfd mapped MAP_SHARED: it keeps its pages across fork, and others can map it by its fd. */
static int memory_create(size_t len, struct nvme_dma *out)
{
    int rc;

    out->len = len;
    out->fd = memfd_create("nvme-dma", MFD_CLOEXEC);
    if (out->fd < 0)
        return -errno;
    if (ftruncate(out->fd, (off_t)len)) {
        rc = -errno;
        goto close_fd;
    }
    out->addr = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, out->fd, 0);
    if (out->addr == MAP_FAILED) {
        rc = -errno;
        goto close_fd;
    }
    return 0;

close_fd:
    close(out->fd);
    return rc;
}

static void memory_destroy(struct nvme_dma *dma)
{
    munmap(dma->addr, dma->len);
    close(dma->fd);
}

int nvme_dma_alloc(struct nvme_ctrlr *c, size_t len, struct nvme_dma *out)
{
    struct nvme_mem mem = {.fd = -1};
    int rc;

    if (len == 0 || len > SIZE_MAX / 4)
        return -EINVAL;
    rc = memory_create(whole_pages(len), out);
    if (rc)
        return rc;
    mem.addr = out->addr;
    mem.len = out->len;
    mem.fd = out->fd;
    rc = c->t->ops->map(c->t, &mem, &out->iova);
    if (rc)
        memory_destroy(out);
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
    memory_destroy(dma);
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
