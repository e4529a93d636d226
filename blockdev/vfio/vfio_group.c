/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Uses VFIO's older interface. An IOMMU group joins a container, and the
 * container has the address space.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "blockdev/vfio/vfio_internal.h"

bool vfio_group_usable(const char *root, int group)
{
    char container[PATH_MAX], node[PATH_MAX];

    snprintf(container, sizeof(container), "%s/dev/vfio/vfio", root);
    snprintf(node, sizeof(node), "%s/dev/vfio/%d", root, group);
    return access(container, R_OK | W_OK) == 0 && access(node, R_OK | W_OK) == 0;
}

static int open_container(struct vfio *v, const char *root, int type, struct reason *why)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/dev/vfio/vfio", root);
    v->space = vfio_open_node(path, why);
    if (v->space < 0)
        return v->space;
    if (ioctl(v->space, VFIO_GET_API_VERSION) != VFIO_API_VERSION)
        return reason_set(why, -ENOTSUP, "%s speaks no VFIO that is known here", path);
    if (ioctl(v->space, VFIO_CHECK_EXTENSION, type) != 1)
        return reason_set(why, -ENOTSUP,
                          type == VFIO_NOIOMMU_IOMMU
                              ? "VFIO's noiommu mode is off (enable_unsafe_noiommu_mode)"
                              : "VFIO has no driver for this IOMMU: run modprobe vfio_iommu_type1");
    return 0;
}

static int open_group(struct vfio *v, const char *root, const char *node, struct reason *why)
{
    struct vfio_group_status status = {.argsz = sizeof(status)};
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/dev/vfio/%s", root, node);
    v->group = vfio_open_node(path, why);
    if (v->group < 0)
        return v->group;
    if (ioctl(v->group, VFIO_GROUP_GET_STATUS, &status))
        return reason_set(why, -ENOTSUP, "%s is no VFIO group: %s", path, strerror(errno));
    if (!(status.flags & VFIO_GROUP_FLAGS_VIABLE))
        return reason_set(why, -EXDEV,
                          "others in its IOMMU group %s have drivers: bind them to vfio-pci too",
                          node);
    return 0;
}

static int group_open_device(struct vfio *v, int type, const char *bdf, struct reason *why)
{
    if (ioctl(v->group, VFIO_GROUP_SET_CONTAINER, &v->space))
        return reason_set(why, -errno, "its group does not join a container: %s", strerror(errno));
    if (ioctl(v->space, VFIO_SET_IOMMU, type))
        return errno == EPERM
                   ? reason_set(why, -ENOTSUP,
                                "the IOMMU does not remap interrupts: VFIO wants that (the option "
                                "allow_unsafe_interrupts of vfio_iommu_type1 does without)")
                   : reason_set(why, -errno, "the IOMMU does not take it: %s", strerror(errno));
    v->device = ioctl(v->group, VFIO_GROUP_GET_DEVICE_FD, bdf);
    if (v->device < 0)
        return reason_set(why, -errno, "VFIO does not open it: %s", strerror(errno));
    return 0;
}

int vfio_group_join(struct vfio *v, const char *root, const char *node, int type, const char *bdf,
                    struct reason *why)
{
    int rc = open_container(v, root, type, why);

    if (!rc)
        rc = open_group(v, root, node, why);
    return rc ? rc : group_open_device(v, type, bdf, why);
}

int vfio_group_windows(struct nvme_iova *iova, const void *answer, size_t len)
{
    const struct vfio_iommu_type1_info *info = answer;
    const struct vfio_iommu_type1_info_cap_iova_range *cap = NULL;
    size_t room;

    if (info->flags & VFIO_IOMMU_INFO_CAPS)
        cap = vfio_find_cap(answer, len, info->cap_offset, VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE,
                            sizeof(*cap));
    if (!cap)
        return -EPROTO;
    room = (len - (size_t)((const char *)cap - (const char *)answer) - sizeof(*cap)) /
           sizeof(cap->iova_ranges[0]);
    for (size_t i = 0; i < cap->nr_iovas && i < room; i++) {
        int rc = nvme_iova_allow(iova, cap->iova_ranges[i].start, cap->iova_ranges[i].end);

        if (rc == -ENOMEM)
            return rc;
    }
    return iova->n_windows ? 0 : -EPROTO;
}

int vfio_group_regions(const void *answer, size_t len, unsigned *n)
{
    const struct vfio_iommu_type1_info *info = answer;
    const struct vfio_iommu_type1_info_dma_avail *cap = NULL;

    if (info->flags & VFIO_IOMMU_INFO_CAPS)
        cap = vfio_find_cap(answer, len, info->cap_offset, VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL,
                            sizeof(*cap));
    *n = cap ? cap->avail : 0;
    return cap && !*n ? -ENOSPC : 0;
}

static int group_read_windows(struct vfio *v, struct reason *why)
{
    _Alignas(8) char answer[VFIO_ANSWER] = {0};
    const struct vfio_iommu_type1_info *info = (const void *)answer;
    int rc = vfio_query(v->space, VFIO_IOMMU_GET_INFO, sizeof(*info), answer);

    if (!rc)
        rc = vfio_group_windows(&v->iova, answer, info->argsz);
    if (!rc && vfio_group_regions(answer, info->argsz, &v->t.max_regions))
        return reason_set(why, -ENOSPC,
                          "no DMA region is left: raise dma_entry_limit of vfio_iommu_type1");
    return rc ? reason_set(why, rc, "the IOMMU does not tell its addresses: %s", strerror(-rc)) : 0;
}

static int group_open(struct vfio *v, const char *root, const struct pci_device *p,
                      struct reason *why)
{
    char node[16];
    int rc;

    snprintf(node, sizeof(node), "%d", p->iommu_group);
    rc = vfio_group_join(v, root, node, VFIO_TYPE1v2_IOMMU, p->bdf, why);
    return rc ? rc : group_read_windows(v, why);
}

/*
 * Returns -ENOMEM perhaps because of RLIMIT_MEMLOCK, and -ENOSPC after 65,535
 * mappings.
 */
static int group_map(struct vfio *v, void *addr, size_t len, uint64_t iova)
{
    struct vfio_iommu_type1_dma_map map = {
        .argsz = sizeof(map),
        .flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
        .vaddr = (uintptr_t)addr,
        .iova = iova,
        .size = len,
    };

    return ioctl(v->space, VFIO_IOMMU_MAP_DMA, &map) ? -errno : 0;
}

static int group_unmap(struct vfio *v, uint64_t iova, size_t len)
{
    struct vfio_iommu_type1_dma_unmap unmap = {
        .argsz = sizeof(unmap),
        .iova = iova,
        .size = len,
    };

    if (ioctl(v->space, VFIO_IOMMU_UNMAP_DMA, &unmap))
        return -errno;
    return unmap.size == len ? 0 : -EIO;
}

const struct vfio_api vfio_group_api = {
    .open = group_open,
    .map = group_map,
    .unmap = group_unmap,
};
