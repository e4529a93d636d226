/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory of bd_dma_alloc(), which the controller reaches in place. */
#include <assert.h>
#include <stdlib.h>

#include "blockdev/bd_nvme.h"

static struct nvme_bdev *nvme_region_bdev_of(struct bd_dev *dev)
{
    return (struct nvme_bdev *)dev;
}

uint64_t bd_region_iova(struct nvme_bdev *d, const void *buf, size_t len)
{
    uintptr_t start = (uintptr_t)buf;
    uint64_t iova = 0;

    pthread_rwlock_rdlock(&d->regions_lock);
    for (const struct bd_region *r = d->regions; r && !iova; r = r->next) {
        uintptr_t base = (uintptr_t)r->dma.addr;

        if (start >= base && start - base < r->dma.len && len <= r->dma.len - (start - base))
            iova = r->dma.iova + (start - base);
    }
    pthread_rwlock_unlock(&d->regions_lock);
    return iova;
}

void *bd_region_alloc(struct bd_dev *dev, size_t len)
{
    struct nvme_bdev *d = nvme_region_bdev_of(dev);
    struct bd_region *r = malloc(sizeof(*r));

    if (!r)
        return NULL;
    if (nvme_dma_alloc(d->c, len, &r->dma)) {
        free(r);
        return NULL;
    }
    pthread_rwlock_wrlock(&d->regions_lock);
    r->next = d->regions;
    d->regions = r;
    pthread_rwlock_unlock(&d->regions_lock);
    return r->dma.addr;
}

void bd_region_free(struct bd_dev *dev, void *buf, size_t len)
{
    struct nvme_bdev *d = nvme_region_bdev_of(dev);
    struct bd_region **at = &d->regions;
    struct bd_region *r;

    (void)len;
    pthread_rwlock_wrlock(&d->regions_lock);
    while (*at && (*at)->dma.addr != buf)
        at = &(*at)->next;
    r = *at;
    assert(r && "not from bd_dma_alloc of this device");
    *at = r->next;
    pthread_rwlock_unlock(&d->regions_lock);
    nvme_dma_free(d->c, &r->dma);
    free(r);
}
