/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The VFIO transport opens a drive through one of the kernel's interfaces and
 * maps memory.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "blockdev/bdev.h"
#include "blockdev/nvme/nvme_spec.h"
#include "blockdev/vfio/device_mem.h"
#include "blockdev/vfio/vfio_internal.h"

static struct vfio *vfio_of(struct nvme_transport *t)
{
    return (struct vfio *)t;
}

/* --- Memory ---------------------------------------------------------------------------------- */

static bool vfio_whole_pages(const struct nvme_mem *mem)
{
    return mem->len && ((uintptr_t)mem->addr | mem->len) % NVME_PAGE_SIZE == 0;
}

static int vfio_map_device(struct vfio *v, const struct nvme_mem *mem, uint64_t *iova)
{
    int rc;

    pthread_mutex_lock(&v->lock);
    rc = vfio_device_mem_map(v, mem, iova);
    pthread_mutex_unlock(&v->lock);
    return rc;
}

static int vfio_map(struct nvme_transport *t, const struct nvme_mem *mem, uint64_t *iova)
{
    /* Large memory on a large page needs few entries of the IOMMU. */
    size_t align = mem->len >= NVME_LARGE_PAGE ? NVME_LARGE_PAGE : NVME_PAGE_SIZE;
    struct vfio *v = vfio_of(t);
    int rc;

    if (!mem->addr)
        return vfio_map_device(v, mem, iova);
    if (!vfio_whole_pages(mem))
        return -EINVAL;
    if (v->t.physical)
        return vfio_noiommu_map(mem, iova);
    pthread_mutex_lock(&v->lock);
    rc = nvme_iova_take(&v->iova, mem->len, align, NULL, iova);
    if (!rc) {
        rc = v->api->map(v, mem->addr, mem->len, *iova);
        if (rc)
            nvme_iova_give(&v->iova, *iova);
    }
    pthread_mutex_unlock(&v->lock);
    return rc;
}

static int vfio_unmap(struct nvme_transport *t, uint64_t iova)
{
    struct vfio *v = vfio_of(t);
    const struct nvme_iova_range *r;
    struct device_mem *device = NULL;
    int rc = -ENOENT;

    if (v->t.physical)
        return 0; /* without an IOMMU the drive keeps its access */
    pthread_mutex_lock(&v->lock);
    r = nvme_iova_find(&v->iova, iova);
    if (r) {
        device = r->owner;
        rc = v->api->unmap(v, iova, r->len);
    }
    if (!rc)
        nvme_iova_give(&v->iova, iova);
    pthread_mutex_unlock(&v->lock);
    if (!rc && device)
        device_mem_unmap(device);
    return rc;
}

bool vfio_memlock_low(struct reason *why)
{
    struct rlimit limit;

    if (geteuid() == 0 || getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_cur == RLIM_INFINITY)
        return false;
    reason_set(why, 0,
               "memory for DMA is locked, and the limit is %llu KiB: raise it with ulimit -l, in "
               "/etc/security/limits.conf or with LimitMEMLOCK= of systemd",
               (unsigned long long)limit.rlim_cur / 1024);
    return true;
}

/* --- Opening and closing --------------------------------------------------------------------- */

static int vfio_reset(struct nvme_transport *t)
{
    return vfio_pci_reset(vfio_of(t));
}

/*
 * Closes the device first: the kernel resets it while the IOMMU guards, or detaches it. The kernel
 * removes mappings.
 */
static void close_files(struct vfio *v)
{
    if (v->device >= 0)
        close(v->device);
    if (v->group >= 0)
        close(v->group);
    if (v->space >= 0)
        close(v->space);
}

/* The drive stops reaching memory first. Without an IOMMU it is reset before the guard ends. */
static void vfio_destroy(struct vfio *v)
{
    vfio_pci_close(v);
    close_files(v);
    vfio_device_mem_close(v);
    vfio_guard_end(&v->guard);
    nvme_iova_destroy(&v->iova);
    pthread_rwlock_destroy(&v->access);
    pthread_mutex_destroy(&v->lock);
    free(v);
}

static void vfio_close(struct nvme_transport *t)
{
    vfio_destroy(vfio_of(t));
}

static const struct nvme_transport_ops vfio_ops = {
    .name = "vfio",
    .read = vfio_read,
    .write = vfio_write,
    .map = vfio_map,
    .unmap = vfio_unmap,
    .reset = vfio_reset,
    .close = vfio_close,
};

static struct vfio *vfio_create(const struct vfio_api *api)
{
    struct vfio *v = calloc(1, sizeof(*v));

    if (!v)
        return NULL;
    v->t.ops = &vfio_ops;
    v->t.doorbells_are_mmio = true;
    v->t.removal_fd = -1;
    v->t.doorbells_fd = -1;
    v->api = api;
    v->space = -1;
    v->group = -1;
    v->device = -1;
    pthread_mutex_init(&v->lock, NULL);
    pthread_rwlock_init(&v->access, NULL);
    nvme_iova_init(&v->iova);
    return v;
}

static const struct vfio_api *choose_api(const char *root, const struct pci_device *p,
                                         const struct bd_open_opts *opts)
{
    if (opts->noiommu)
        return &vfio_noiommu_api;
    if (opts->device_memory && vfio_group_usable(root, p->iommu_group))
        return &vfio_group_api;
    return vfio_iommufd_usable(root, p->bdf) ? &vfio_iommufd_api : &vfio_group_api;
}

/* A PCI function has one user of VFIO at a time. */
static uint64_t vfio_lock_id(const char *bdf)
{
    uint64_t name[2] = {0}; /* the address in its long form has 12 characters */

    memcpy(name, bdf, strnlen(bdf, sizeof(name)));
    return bd_lock_id(BD_LOCK_PCI, name[0], name[1]);
}

int vfio_open_at(const char *root, const char *bdf, const struct bd_open_opts *opts,
                 struct nvme_transport **out, struct reason *why)
{
    struct pci_device p;
    struct vfio *v;
    int rc = pci_find(root, bdf, &p, why);

    if (!rc)
        rc = opts->noiommu ? pci_check_noiommu(root, &p, why) : pci_check_vfio(root, &p, why);
    if (rc)
        return rc;
    v = vfio_create(choose_api(root, &p, opts));
    if (!v)
        return reason_set(why, -ENOMEM, "out of memory");
    rc = v->api->open(v, root, &p, why);
    if (!rc)
        rc = vfio_pci_open(v, why);
    if (!rc && opts->device_memory && !opts->noiommu)
        vfio_device_mem_open(v);
    v->t.lock = vfio_lock_id(p.bdf);
    if (!rc)
        rc = bd_call_opened(opts, why);
    if (rc) {
        vfio_destroy(v);
        return rc;
    }
    *out = &v->t;
    return 0;
}

int vfio_open(const char *bdf, const struct bd_open_opts *opts, struct nvme_transport **out,
              struct reason *why)
{
    return vfio_open_at("", bdf, opts, out, why);
}
