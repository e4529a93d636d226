/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * NVMe controllers on the PCI bus as the kernel shows them in sysfs: their identity, driver and
 * users, and how to hand them from the kernel's driver to VFIO and back.
 *
 * `root` is the folder that holds sys/, proc/ and dev/: "" for the running system; tests have a
 * tree of their own. Functions return 0 or -errno; those with `why` put a sentence there on an
 * error: the cause and the next step, without the name of the device.
 *
 * Values are those that the kernel has cached, except the link's speed and width: for those the
 * kernel wakes a device that sleeps. bind() and unbind() wait while the kernel resets the device,
 * up to a minute for a device that does not come back, and no signal ends the wait: do not call
 * them from threads that serve requests.
 */
#ifndef BLOCKDEV_PCI_PCI_H
#define BLOCKDEV_PCI_PCI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PCI_CLASS_NVME 0x010802u /* mass storage, non-volatile memory, NVM Express I/O */
#define NVME_BDF_LEN   13        /* "0000:c1:00.0" and its 0 */

struct pci_device {
    char bdf[NVME_BDF_LEN];
    uint16_t vendor, device, subsystem_vendor, subsystem_device;
    uint32_t class_code;    /* 24 bits */
    char driver[32];        /* "nvme", "vfio-pci", empty: none */
    char kernel_name[32];   /* "nvme0" when the kernel's driver has it */
    int iommu_group;        /* -1: no IOMMU, also in VFIO's noiommu mode */
    bool iommu_identity;    /* the group's domain is identity (iommu=pt) */
    unsigned group_devices; /* in that group, bridges not counted, itself included */
    int numa_node;          /* -1: unknown */
    uint64_t bar0_len;      /* bytes */
    char link_speed[32];    /* as sysfs says it: "16.0 GT/s PCIe" */
    unsigned link_width, link_width_max;
    bool can_reset;
};

/* "c1:00.0" or "0000:c1:00.0" to the long form in lower case; -EINVAL for anything else. */
int pci_parse(const char *text, char bdf[NVME_BDF_LEN]);
/* -ENODEV: no such device. Works for any PCI device; look at class_code. */
int pci_read(const char *root, const char *bdf, struct pci_device *out);
/* The same for a device that must be an NVMe controller: -EINVAL, -ENODEV. */
int pci_find(const char *root, const char *bdf, struct pci_device *out, char *why, size_t len);
/* All NVMe controllers, ascending by address; the caller frees *out. */
int pci_list(const char *root, struct pci_device **out, size_t *n);

/*
 * Can this drive be taken without harm to another user? 0; -EBUSY with the user in why: a block
 * device of it or of its partitions is mounted, is swap, belongs to LVM, md, dm or bcache (sysfs
 * holders), or is open exclusively, or the kernel is just starting it; -EEXIST: not in use, but a
 * namespace holds a foreign signature (its kind is in why). When a block device of it cannot be
 * inspected, the error of that: -EACCES without root. Only the kernel's driver shows block devices:
 * under another driver nothing is known, and the result is 0.
 */
int pci_check_unused(const char *root, const char *bdf, char *why, size_t len);
/*
 * Can VFIO give this device to this process, now? 0; -ENODEV (absent, or no NVMe controller);
 * -EBUSY (bound to another driver: bind it first); -EXDEV (devices of its IOMMU group are not bound
 * to VFIO, named in why); -ENOTSUP (no IOMMU, or the VFIO module is not loaded).
 */
int pci_check_vfio(const char *root, const char *bdf, char *why, size_t len);
/*
 * The same for VFIO's noiommu mode. -EINVAL: an IOMMU guards it; -ENOTSUP: the mode is off, or not
 * in this kernel, or VFIO is not loaded.
 */
int pci_check_noiommu(const char *root, const char *bdf, char *why, size_t len);

/*
 * Hands the device to `driver` ("vfio-pci") with driver_override, from any current driver; does
 * nothing when the device has that driver already. Does not check whether its block devices are in
 * use. When the driver does not take it, it goes back to its previous driver. -ENOENT: the driver
 * is not loaded; -ENOTSUP: vfio-pci, and there is no IOMMU; -EBUSY: in use through VFIO; -EACCES:
 * not root; -ETIMEDOUT: the driver did not take it.
 */
int pci_bind(const char *root, const char *bdf, const char *driver, char *why, size_t len);
/* The errors of pci_bind() that can be determined before; changes nothing. */
int pci_check_bind(const char *root, const char *bdf, const char *driver, char *why, size_t len);
/*
 * Clears driver_override and lets the kernel choose its driver; 0 also when none matches.
 * -EBUSY: in use through VFIO. -EACCES.
 */
int pci_unbind(const char *root, const char *bdf, char *why, size_t len);
/* -EBUSY, as pci_unbind(); changes nothing. */
int pci_check_unbind(const char *root, const char *bdf, char *why, size_t len);

#ifdef __cplusplus
}
#endif

#endif
