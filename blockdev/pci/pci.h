/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads the identity, driver and users of NVMe controllers on the PCI bus from
 * sysfs. Moves controllers from the kernel's driver to VFIO and back.
 *
 * `root` is the folder that holds sys/, proc/ and dev/: "" for the running
 * system; tests have a tree of their own. Functions return 0 or -errno. On an
 * error, functions with `why` store a sentence that names the cause and the
 * next step, but not the device.
 *
 * Values are those that the kernel has cached, except the link's speed and
 * width: to read these, the kernel wakes a sleeping device. bind() and unbind()
 * wait while the kernel resets the device. The wait takes up to a minute if the
 * device does not come back, and no signal ends it. Threads that serve requests
 * must not call bind() or unbind().
 */
#ifndef BLOCKDEV_PCI_PCI_H
#define BLOCKDEV_PCI_PCI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "support/reason.h"

__BEGIN_DECLS

#define PCI_CLASS_NVME 0x010802u /* mass storage, non-volatile memory, NVM Express I/O */
#define NVME_BDF_LEN   13        /* "0000:c1:00.0" and its terminating 0 */

struct pci_device {
    char bdf[NVME_BDF_LEN];
    uint16_t vendor, device, subsystem_vendor, subsystem_device;
    uint32_t class_code;    /* 24 bits */
    char driver[32];        /* "nvme", "vfio-pci", or empty if none */
    char kernel_name[32];   /* "nvme0" if the kernel's driver has it */
    int iommu_group;        /* -1: no IOMMU, or VFIO's noiommu mode */
    bool iommu_identity;    /* the group's domain is identity (iommu=pt) */
    unsigned group_devices; /* devices in that group, itself included, bridges not counted */
    int numa_node;          /* -1: unknown */
    uint64_t bar0_len;      /* bytes */
    uint64_t largest_bar;   /* bytes; for a GPU that of the window into its memory */
    char link_speed[32];    /* sysfs text: "16.0 GT/s PCIe" */
    unsigned link_width, link_width_max;
    bool can_reset;
};

/*
 * Converts "c1:00.0" or "0000:c1:00.0" to the long form in lower case. Returns
 * -EINVAL for anything else.
 */
int pci_parse(const char *text, char bdf[NVME_BDF_LEN]);
/*
 * Describes any PCI device; the caller checks class_code. Returns -EINVAL if
 * bdf is no address and -ENODEV if there is no such device.
 */
int pci_read(const char *root, const char *bdf, struct pci_device *out);
/*
 * Like pci_read(), but returns -ENODEV for a device that is no NVMe controller.
 */
int pci_find(const char *root, const char *bdf, struct pci_device *out, struct reason *why);
/* Returns true if the device is an NVMe controller. */
bool pci_is_nvme(const struct pci_device *p);
/* Returns true if the device is a VGA or 3D controller of NVIDIA. */
bool pci_is_gpu(const struct pci_device *p);
/*
 * Lists all devices for which `is` returns true, ascending by address. The caller frees *out.
 * After an error *n is 0.
 */
int pci_list(const char *root, bool (*is)(const struct pci_device *p), struct pci_device **out,
             size_t *n);

/* The distance of two devices is named after the lowest bridge between them. */
enum pci_distance {
    PCI_DISTANCE_UNKNOWN,
    PCI_DISTANCE_SWITCH, /* the same PCIe switch */
    PCI_DISTANCE_ROOT,   /* the same root complex */
    PCI_DISTANCE_FAR,    /* different root complexes */
};
enum pci_distance pci_distance(const char *root, const char *a, const char *b);

/*
 * The following functions take a device of pci_find() or pci_list().
 *
 * pci_check_unused() is in blockdev/pci_use.c, because it calls bd_signature.h.
 * It checks that no one else uses the drive's block devices. Returns 0
 * if it can be taken. Returns -EBUSY, with the user in `why`, if a block device
 * of the drive or of its partitions is mounted, is swap, belongs to LVM, md, dm
 * or bcache (sysfs holders), is open exclusively, or if the kernel is just
 * starting the drive. Returns -EEXIST if it is unused but a namespace holds a
 * foreign signature; `why` names its kind. Returns the error of the inspection
 * if a block device cannot be inspected (-EACCES without root). Only the
 * kernel's driver shows block devices; under another driver nothing is known,
 * and the result is 0.
 */
int pci_check_unused(const char *root, const struct pci_device *p, struct reason *why);
/*
 * Checks that VFIO can give this device to this process now. Returns 0, -EBUSY
 * if another driver has it (bind it first), -EXDEV if devices of its IOMMU
 * group, named in `why`, are not bound to VFIO, and -ENOTSUP if there is no
 * IOMMU or the VFIO module is not loaded.
 */
int pci_check_vfio(const char *root, const struct pci_device *p, struct reason *why);
/*
 * Like pci_check_vfio(), for VFIO's noiommu mode. Returns -EINVAL if an IOMMU
 * guards the device, and -ENOTSUP if the mode is off or missing in this kernel,
 * or VFIO is not loaded.
 */
int pci_check_noiommu(const char *root, const struct pci_device *p, struct reason *why);

/*
 * Hands the device to vfio-pci by driver_override, from any current driver. Does
 * nothing if vfio-pci has it already. The caller checks that its block devices
 * are not in use. If vfio-pci refuses the device, the function gives it back to
 * its previous driver. Returns -ENOENT if vfio-pci is not loaded, -ENOTSUP without an
 * IOMMU (which is known only after the attempt if the device has had no driver
 * yet), -EBUSY if the device is in use through VFIO, -EACCES without root, and
 * -ETIMEDOUT if vfio-pci did not take it. If `dry` is true, the function changes
 * nothing, and returns the errors that can be determined in advance.
 */
int pci_bind(const char *root, const struct pci_device *p, bool dry, struct reason *why);
/*
 * Clears driver_override and lets the kernel choose the driver; also returns 0
 * if none matches. Returns -EBUSY if the device is in use through VFIO, and
 * -EACCES without root. If `dry` is true, the function changes nothing.
 */
int pci_unbind(const char *root, const struct pci_device *p, bool dry, struct reason *why);

__END_DECLS

#endif
