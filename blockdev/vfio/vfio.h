/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the transport (transport.h) of a PCI NVMe controller through VFIO.
 *
 * The kernel resets the function when it is opened and when it is closed, also
 * after its user has died. Opening enables bus mastering and maps the
 * doorbells, up to the MSI-X table; closing disables bus mastering again.
 * nvme.h enables the controller. The transport uses iommufd if the kernel has
 * it, else the group interface. Memory can be mapped up to RLIMIT_MEMLOCK,
 * except by root. Device memory is mapped by its handle (device_mem.h) if
 * bd_open_opts.device_memory is set. The transport then uses the group interface.
 * iommufd would fail with -EFAULT, because it pins pages, and device memory has none.
 *
 * After a reset, its own or one requested through sysfs, the kernel waits up to
 * a minute for the device to become ready, and nothing ends that wait. reset()
 * and register accesses do not wait for it: registers read all-ones while a
 * reset() runs. Opening and closing do wait.
 */
#ifndef BLOCKDEV_VFIO_VFIO_H
#define BLOCKDEV_VFIO_VFIO_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/cdefs.h>

#include "blockdev/transport.h"
#include "support/reason.h"

__BEGIN_DECLS

/*
 * Opens the drive bdf, an address that pci_parse() accepts.
 * On an error `why` holds a sentence with the cause and the next step. Returns
 * -EINVAL (no such name), -ENODEV, -EBUSY, -EXDEV and -ENOTSUP like
 * pci_find() and pci_check_vfio() (with noiommu like pci_check_noiommu()), -EACCES without
 * rights on /dev/vfio/N, and -EPROTO if BAR0 is too small or its doorbells
 * cannot be mapped.
 */
int vfio_open(const char *bdf, const struct bd_open_opts *opts, struct nvme_transport **out,
              struct reason *why);

/*
 * Call after -ENOMEM from map(). Returns true, with the next step in `why`, if
 * RLIMIT_MEMLOCK bounds this process.
 */
bool vfio_memlock_low(struct reason *why);
/*
 * Writes the next step after -ENOMEM from a transport with physical addresses.
 * Returns -ENOMEM.
 */
int vfio_no_large_page(struct reason *why);

__END_DECLS

#endif
