/*
 * A PCI NVMe controller through VFIO, as a transport (transport.h).
 *
 * Opening resets the function, turns bus mastering on (the enable happens through nvme.h) and maps
 * BAR0 around its MSI-X table; closing hands it back quiet. iommufd where the kernel has it, else
 * the group interface. The kernel resets the device too when its user dies.
 */
#ifndef BLOCKDEV_VFIO_H
#define BLOCKDEV_VFIO_H

#include <stdbool.h>
#include <stddef.h>

#include "blockdev/transport.h"

#ifdef __cplusplus
extern "C" {
#endif

enum nvme_vfio_api { NVME_VFIO_AUTO = 0, NVME_VFIO_GROUP, NVME_VFIO_IOMMUFD };

struct nvme_vfio_opts {
    enum nvme_vfio_api api;
    /*
     * Drive a device that no IOMMU guards, through VFIO's noiommu mode. The drive can then write
     * to any memory of the machine: for machines of one's own only.
     */
    bool noiommu;
};

/*
 * bdf: as nvme_pci_parse() takes it. opts may be NULL. On an error why has a sentence: what is
 * wrong and what to do. -EINVAL (no such name), -ENODEV, -EBUSY, -EXDEV, -ENOTSUP as
 * nvme_pci_check_vfio(); -EACCES (rights on /dev/vfio/N); -ENOMEM (RLIMIT_MEMLOCK); -EPROTO (BAR0
 * too small, its doorbells not mappable).
 */
int nvme_vfio_open(const char *bdf, const struct nvme_vfio_opts *opts, struct nvme_transport **out,
                   char *why, size_t len);

#ifdef __cplusplus
}
#endif

#endif
