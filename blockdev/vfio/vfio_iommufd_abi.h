/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The parts of the kernel's iommufd interface (Linux 6.6) that the transport
 * uses, under own names, because Debian 12's headers lack them. Each struct
 * starts with its size.
 */
#ifndef BLOCKDEV_VFIO_VFIO_IOMMUFD_ABI_H
#define BLOCKDEV_VFIO_VFIO_IOMMUFD_ABI_H

#include <assert.h>
#include <stdint.h>

#include <linux/ioctl.h>
#include <linux/vfio.h>

/* --- On the device's file -------------------------------------------------------------------- */

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

/* --- On /dev/iommu --------------------------------------------------------------------------- */

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

#endif
