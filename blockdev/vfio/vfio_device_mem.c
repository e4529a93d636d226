/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Makes device memory visible to a drive: VFIO type 1 maps the address range
 * that a provider made. device_mem.h describes the order in which such memory
 * is released.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "blockdev/nvme/nvme_spec.h"
#include "blockdev/vfio/device_mem.h"
#include "blockdev/vfio/vfio_internal.h"

/*
 * Descriptors of handles have numbers below this one, or below half the limit
 * of descriptors if that is less.
 */
#define DRIVE_DESCRIPTOR 4096

static int drive_descriptor(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur / 2 > DRIVE_DESCRIPTOR)
        return DRIVE_DESCRIPTOR;
    return (int)(limit.rlim_cur / 2);
}

/* Moves a descriptor to the first free number from `first` on. */
static int raise_descriptor(int *fd, int first)
{
    int raised;

    if (*fd < 0)
        return 0;
    raised = fcntl(*fd, F_DUPFD_CLOEXEC, first);
    if (raised < 0)
        return -errno;
    close(*fd);
    *fd = raised;
    return 0;
}

void vfio_device_mem_open(struct vfio *v)
{
    int first = drive_descriptor();
    int rc = raise_descriptor(&v->space, first);

    if (!rc)
        rc = raise_descriptor(&v->group, first);
    if (!rc)
        rc = raise_descriptor(&v->device, first);
    if (!rc)
        rc = vfio_guard_start(&v->guard);
    v->device_memory = !rc;
    v->unguarded = rc;
}

static int lowest_descriptor(const struct vfio *v)
{
    int lowest = v->space < v->device ? v->space : v->device;

    return v->group >= 0 && v->group < lowest ? v->group : lowest;
}

/* Says why the IOMMU refuses the range, which has no pages to pin. */
static int refuse(const struct vfio *v, int rc, struct reason *why)
{
    const char *advice = v->group < 0 ? "iommufd pins pages: the group interface is needed "
                                        "(CONFIG_VFIO_CONTAINER, rights on /dev/vfio)"
                                      : "VFIO type 1 does not map it";
    bool full = rc == -ENOSPC || rc == -ENOMEM;

    return reason_set(why, full ? rc : -EFAULT, "%s: %s", advice, strerror(-rc));
}

static int map_range(struct vfio *v, struct device_mem *m, uint64_t *iova, struct reason *why)
{
    size_t align = m->len >= NVME_LARGE_PAGE ? NVME_LARGE_PAGE : NVME_PAGE_SIZE;
    int rc = nvme_iova_take(&v->iova, m->len, align, m, iova);

    if (rc)
        return rc;
    rc = v->api->map(v, m->addr, m->len, *iova);
    if (!rc)
        return 0;
    nvme_iova_give(&v->iova, *iova);
    return refuse(v, rc, why);
}

static int map_guarded(struct vfio *v, const struct nvme_mem *mem, uint64_t *iova,
                       struct reason *why)
{
    struct device_mem *m;

    if (v->unguarded)
        return reason_set(why, -EFAULT, "no process can guard device memory: %s",
                          strerror(-v->unguarded));
    int rc = device_mem_map(mem, lowest_descriptor(v), &m, why);
    if (rc)
        return rc;
    rc = map_range(v, m, iova, why);
    if (rc)
        device_mem_unmap(m);
    return rc;
}

int vfio_device_mem_map(struct vfio *v, const struct nvme_mem *mem, uint64_t *iova)
{
    struct reason why = {0};

    if (!v->unguarded && !v->device_memory)
        return -EFAULT;
    int rc = map_guarded(v, mem, iova, &why);
    snprintf(v->t.device_memory, sizeof(v->t.device_memory), "%.191s", why.text);
    return rc;
}

void vfio_device_mem_close(struct vfio *v)
{
    for (size_t i = 0; i < v->iova.n_places; i++) {
        struct device_mem *m = v->iova.used[i].owner;

        if (m)
            device_mem_unmap(m);
    }
}
