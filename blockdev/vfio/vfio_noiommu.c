/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Uses VFIO's noiommu mode. The drive uses physical addresses, and no IOMMU
 * checks them.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <linux/magic.h>

#include "blockdev/nvme/nvme_spec.h"
#include "blockdev/vfio/vfio_internal.h"

#define POOL "%s/sys/kernel/mm/hugepages/hugepages-2048kB/"
/* Large pages for queues, lists, bounce memory and a tool's buffers. */
#define LEAST 8

/* Bits of /proc/PID/pagemap (the kernel's mm/pagemap.rst). */
#define ENTRY_PRESENT (1ull << 63)
#define ENTRY_FRAME   ((1ull << 55) - 1)

#define PAGES_OF_LARGE (NVME_LARGE_PAGE / NVME_PAGE_SIZE)

/* --- Memory ---------------------------------------------------------------------------------- */

int vfio_physical_address(const uint64_t *entries, size_t n, uint64_t *address)
{
    uint64_t first = entries[0] & ENTRY_FRAME;

    for (size_t i = 0; i < n; i++) {
        if (!(entries[i] & ENTRY_PRESENT))
            return -EFAULT;
        if (!(entries[i] & ENTRY_FRAME))
            return -EPERM; /* the kernel's value for readers without CAP_SYS_ADMIN */
        if ((entries[i] & ENTRY_FRAME) != first + i)
            return -EFAULT;
    }
    *address = first * NVME_PAGE_SIZE;
    return 0;
}

static bool on_one_large_page(const struct nvme_mem *mem)
{
    struct statfs fs;

    return mem->fd >= 0 && fstatfs(mem->fd, &fs) == 0 && fs.f_type == HUGETLBFS_MAGIC &&
           fs.f_bsize == NVME_LARGE_PAGE &&
           mem->fd_offset % NVME_LARGE_PAGE + mem->len <= NVME_LARGE_PAGE;
}

int vfio_noiommu_map(const struct nvme_mem *mem, uint64_t *iova)
{
    uint64_t entries[PAGES_OF_LARGE];
    size_t n = mem->len / NVME_PAGE_SIZE, len = n * sizeof(entries[0]);
    off_t at = (off_t)((uintptr_t)mem->addr / NVME_PAGE_SIZE * sizeof(entries[0]));
    ssize_t got;
    int fd;

    if (!on_one_large_page(mem))
        return -EFAULT;
    fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    got = pread(fd, entries, len, at);
    close(fd);
    return got == (ssize_t)len ? vfio_physical_address(entries, n, iova) : -EFAULT;
}

/* --- Opening --------------------------------------------------------------------------------- */

static int check_memory(const char *root, struct reason *why)
{
    int64_t available, promised;

    if (sysconf(_SC_PAGESIZE) != NVME_PAGE_SIZE)
        return reason_set(why, -ENOTSUP, "noiommu mode needs pages of 4 KiB");
    if (pci_sysfs_number(&available, 10, POOL "free_hugepages", root) ||
        pci_sysfs_number(&promised, 10, POOL "resv_hugepages", root))
        return reason_set(why, -ENOTSUP,
                          "this kernel has no large pages of 2 MiB (CONFIG_HUGETLBFS), which a "
                          "drive without an IOMMU needs");
    return available - promised >= LEAST ? 0 : vfio_no_large_page(why);
}

int vfio_no_large_page(struct reason *why)
{
    return reason_set(
        why, -ENOMEM,
        "too few large pages of 2 MiB are free, and a drive without an IOMMU reaches no "
        "other memory: echo 64 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
}

static int noiommu_open(struct vfio *v, const char *root, const struct pci_device *p,
                        struct reason *why)
{
    char group[SYSFS_NAME], node[SYSFS_NAME + sizeof("noiommu-")];
    int rc = check_memory(root, why);

    if (rc)
        return rc;
    if (pci_sysfs_link(group, sizeof(group), "%s/sys/bus/pci/devices/%s/iommu_group", root, p->bdf))
        return reason_set(why, -ENOTSUP,
                          "VFIO has no group for it: type gpunvme unbind and bind again");
    rc = vfio_guard_start(&v->guard);
    if (rc)
        return reason_set(why, rc, "its memory cannot be guarded: %s", strerror(-rc));
    snprintf(node, sizeof(node), "noiommu-%s", group);
    v->t.physical = true;
    return vfio_group_join(v, root, node, VFIO_NOIOMMU_IOMMU, p->bdf, why);
}

const struct vfio_api vfio_noiommu_api = {.open = noiommu_open};
