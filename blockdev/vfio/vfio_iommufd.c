/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Uses VFIO's newer interface. Each device has its own file, and iommufd has
 * the address spaces.
 */
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <linux/ioctl.h>
#include <linux/vfio.h>

#include "blockdev/vfio/vfio_internal.h"
#include "support/clock.h"

/* --- The kernel's interface ------------------------------------------------------------------- */

/*
 * This file uses these parts of iommufd (Linux 6.6). They are defined here, because the headers of
 * Debian 12 lack them. Each struct starts with its size. The next two are for the device's file.
 */
struct vfio_bind_iommufd {
    uint32_t argsz;
    uint32_t flags;
    int32_t iommufd;
    uint32_t out_devid;
};
static_assert(sizeof(struct vfio_bind_iommufd) == 16, "ABI");
#define VFIO_BIND_IOMMUFD _IO(VFIO_TYPE, VFIO_BASE + 18)

struct vfio_attach_iommufd {
    uint32_t argsz;
    uint32_t flags;
    uint32_t pt_id; /* ID of an address space */
};
static_assert(sizeof(struct vfio_attach_iommufd) == 12, "ABI");
#define VFIO_ATTACH_IOMMUFD _IO(VFIO_TYPE, VFIO_BASE + 19)

/* The rest is for /dev/iommu. */
#define IOMMUFD_IOCTL(n) _IO(';', 0x80 + (n))

struct iommufd_ioas_alloc {
    uint32_t size;
    uint32_t flags;
    uint32_t out_ioas_id;
};
static_assert(sizeof(struct iommufd_ioas_alloc) == 12, "ABI");
#define IOMMUFD_IOAS_ALLOC IOMMUFD_IOCTL(1)

struct iommufd_range {
    uint64_t start, last; /* inclusive */
};
struct iommufd_iova_ranges {
    uint32_t size;
    uint32_t ioas_id;
    uint32_t num_iovas; /* in: room; out: number available */
    uint32_t reserved;
    uint64_t allowed_iovas; /* address of an array of iommufd_range */
    uint64_t out_iova_alignment;
};
static_assert(sizeof(struct iommufd_iova_ranges) == 32, "ABI");
#define IOMMUFD_IOVA_RANGES IOMMUFD_IOCTL(4)

struct iommufd_map {
    uint32_t size;
    uint32_t flags;
    uint32_t ioas_id;
    uint32_t reserved;
    uint64_t user_va;
    uint64_t length;
    uint64_t iova;
};
static_assert(sizeof(struct iommufd_map) == 40, "ABI");
#define IOMMUFD_IOAS_MAP       IOMMUFD_IOCTL(5)
#define IOMMUFD_MAP_FIXED_IOVA (1u << 0)
#define IOMMUFD_MAP_WRITEABLE  (1u << 1)
#define IOMMUFD_MAP_READABLE   (1u << 2)

struct iommufd_unmap {
    uint32_t size;
    uint32_t ioas_id;
    uint64_t iova;
    uint64_t length; /* in and out */
};
static_assert(sizeof(struct iommufd_unmap) == 24, "ABI");
#define IOMMUFD_IOAS_UNMAP IOMMUFD_IOCTL(6)

/* --- Opening --------------------------------------------------------------------------------- */

#define MAX_WINDOWS 256u /* far more than the usual handful */

/*
 * Builds the path of the device's file. Its name, such as "vfio0", is that of a
 * folder of the device in sysfs.
 */
static int device_path(const char *root, const char *bdf, char path[PATH_MAX])
{
    struct sysfs_names names;
    int rc = pci_sysfs_names(&names, "%s/sys/bus/pci/devices/%s/vfio-dev", root, bdf);

    if (rc)
        return rc;
    rc = names.n > 0 ? 0 : -ENOENT;
    if (!rc)
        snprintf(path, PATH_MAX, "%s/dev/vfio/devices/%s", root, names.entries[0]->d_name);
    pci_sysfs_names_free(&names);
    return rc;
}

bool vfio_iommufd_usable(const char *root, const char *bdf)
{
    char path[PATH_MAX], iommu[PATH_MAX];

    snprintf(iommu, sizeof(iommu), "%s/dev/iommu", root);
    return device_path(root, bdf, path) == 0 && access(path, R_OK | W_OK) == 0 &&
           access(iommu, R_OK | W_OK) == 0;
}

static int open_files(struct vfio *v, const char *root, const char *bdf, struct reason *why)
{
    char path[PATH_MAX];
    int rc;

    snprintf(path, sizeof(path), "%s/dev/iommu", root);
    v->space = vfio_open_node(path, why);
    if (v->space < 0)
        return v->space;
    rc = device_path(root, bdf, path);
    if (rc)
        return reason_set(why, -ENOTSUP, "it has no file below /dev/vfio/devices");
    v->device = vfio_open_node(path, why);
    return v->device < 0 ? v->device : 0;
}

/*
 * Binds the device. EINVAL means that the device has a user already; EBUSY
 * means that its group has one.
 */
static int iommufd_bind_device(struct vfio *v, struct reason *why)
{
    struct vfio_bind_iommufd ask = {.argsz = sizeof(ask), .iommufd = v->space};
    uint64_t deadline = deadline_after_ms(VFIO_TURN_MS);
    bool taken;

    while (ioctl(v->device, VFIO_BIND_IOMMUFD, &ask)) {
        taken = errno == EBUSY || errno == EINVAL;
        if (taken && vfio_wait_turn(deadline))
            continue;
        return taken ? reason_set(why, -EBUSY,
                                  "another program uses it or a device of its IOMMU group")
                     : reason_set(why, -errno, "VFIO does not open it: %s", strerror(errno));
    }
    return 0;
}

static int attach_device(struct vfio *v, struct reason *why)
{
    struct iommufd_ioas_alloc alloc = {.size = sizeof(alloc)};
    struct vfio_attach_iommufd ask = {.argsz = sizeof(ask)};

    if (ioctl(v->space, IOMMUFD_IOAS_ALLOC, &alloc))
        return reason_set(why, -errno, "no address space from iommufd: %s", strerror(errno));
    v->ioas = alloc.out_ioas_id;
    ask.pt_id = v->ioas;
    if (ioctl(v->device, VFIO_ATTACH_IOMMUFD, &ask) == 0)
        return 0;
    if (errno == EPERM)
        return reason_set(why, -ENOTSUP, "the IOMMU does not remap interrupts: VFIO wants that");
    return reason_set(why, -errno, "the IOMMU does not take it: %s", strerror(errno));
}

/* Reads the addresses that the attached device leaves usable. */
static int iommufd_read_windows(struct vfio *v, struct reason *why)
{
    struct iommufd_range *ranges = calloc(MAX_WINDOWS, sizeof(*ranges));
    struct iommufd_iova_ranges ask = {
        .size = sizeof(ask),
        .ioas_id = v->ioas,
        .num_iovas = MAX_WINDOWS,
        .allowed_iovas = (uintptr_t)ranges,
    };
    int rc = ranges ? 0 : -ENOMEM;

    if (!rc && ioctl(v->space, IOMMUFD_IOVA_RANGES, &ask))
        rc = -errno;
    for (uint32_t i = 0; !rc && i < ask.num_iovas && i < MAX_WINDOWS; i++)
        if (nvme_iova_allow(&v->iova, ranges[i].start, ranges[i].last) == -ENOMEM)
            rc = -ENOMEM;
    free(ranges);
    if (!rc && !v->iova.n_windows)
        rc = -EPROTO;
    return rc ? reason_set(why, rc, "the IOMMU does not tell its addresses: %s", strerror(-rc)) : 0;
}

static int iommufd_open(struct vfio *v, const char *root, const struct pci_device *p,
                        struct reason *why)
{
    int rc = open_files(v, root, p->bdf, why);

    /* Nothing answers before the bind, and no DMA passes before the attach. */
    if (!rc)
        rc = iommufd_bind_device(v, why);
    if (!rc)
        rc = attach_device(v, why);
    return rc ? rc : iommufd_read_windows(v, why);
}

/* -ENOMEM may also mean RLIMIT_MEMLOCK. */
static int iommufd_map(struct vfio *v, void *addr, size_t len, uint64_t iova)
{
    struct iommufd_map map = {
        .size = sizeof(map),
        .flags = IOMMUFD_MAP_FIXED_IOVA | IOMMUFD_MAP_WRITEABLE | IOMMUFD_MAP_READABLE,
        .ioas_id = v->ioas,
        .user_va = (uintptr_t)addr,
        .length = len,
        .iova = iova,
    };

    return ioctl(v->space, IOMMUFD_IOAS_MAP, &map) ? -errno : 0;
}

static int iommufd_unmap(struct vfio *v, uint64_t iova, size_t len)
{
    struct iommufd_unmap unmap = {
        .size = sizeof(unmap), .ioas_id = v->ioas, .iova = iova, .length = len};

    return ioctl(v->space, IOMMUFD_IOAS_UNMAP, &unmap) ? -errno : 0;
}

const struct vfio_api vfio_iommufd_api = {
    .open = iommufd_open,
    .map = iommufd_map,
    .unmap = iommufd_unmap,
};
