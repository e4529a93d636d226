/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A PCI NVMe controller through VFIO, as a transport (transport.h).
 *
 * The kernel resets the function when it is opened and when it is closed, also because its user
 * has died. Opening turns bus mastering on (the enable happens through nvme.h) and maps the
 * doorbells, up to the MSI-X table; closing turns it off again. iommufd where the kernel
 * has it, else the group interface. Memory is mapped up to RLIMIT_MEMLOCK, except for root; of
 * device memory only addresses exist, which VFIO cannot map (-EFAULT).
 *
 * The kernel waits up to a minute for a device that does not become ready after a reset, its own or
 * one requested through sysfs, and nothing ends that wait. reset() and register accesses do not
 * wait for it: registers read all-ones while a reset() is under way. Opening and closing do wait.
 */
#ifndef BLOCKDEV_VFIO_VFIO_H
#define BLOCKDEV_VFIO_VFIO_H

#include <stdbool.h>
#include <stddef.h>

#include "blockdev/transport.h"

#ifdef __cplusplus
extern "C" {
#endif

enum vfio_api_choice { VFIO_API_AUTO = 0, VFIO_API_GROUP, VFIO_API_IOMMUFD };

struct vfio_opts {
    enum vfio_api_choice api;
    /*
     * Drive a device without an IOMMU, through VFIO's noiommu mode, for root. The drive can then
     * write to any memory of the machine: for machines without other users only. Memory comes from
     * the large pages that root has reserved, of which 8 must be free at least (-ENOMEM).
     */
    bool noiommu;
};

/*
 * bdf: as pci_parse() takes it. opts may be NULL. On an error why has a sentence: the cause
 * and the next step. -EINVAL (no such name), -ENODEV, -EBUSY, -EXDEV, -ENOTSUP as
 * pci_check_vfio(), with noiommu as pci_check_noiommu(); -EACCES (rights on /dev/vfio/N);
 * -EPROTO (BAR0 too small, its doorbells not mappable).
 */
int vfio_open(const char *bdf, const struct vfio_opts *opts, struct nvme_transport **out, char *why,
              size_t len);

/*
 * After -ENOMEM from map(): does RLIMIT_MEMLOCK bound this process? If so, why has the next step.
 */
bool vfio_memlock_low(char *why, size_t len);
/* The same of a transport with physical addresses. -ENOMEM. */
int vfio_no_large_page(char *why, size_t len);

#ifdef __cplusplus
}
#endif

#endif
