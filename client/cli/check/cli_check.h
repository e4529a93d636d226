/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * `gpunvme check`: the obstacles between this machine, or this drive, and a mount. A finding is a
 * fact, its meaning (OK, WARN, FAIL), and for the last two the next step.
 *
 * `root` is as in blockdev/pci/pci.h: "" for the running system, a tree of their own for tests.
 */
#ifndef CLIENT_CLI_CHECK_CLI_CHECK_H
#define CLIENT_CLI_CHECK_CLI_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "blockdev/pci/pci.h"
#include "client/cli/check/check_findings.h"

#ifdef __cplusplus
extern "C" {
#endif

/* IOMMU, VFIO, memory limits, huge pages, FUSE, lockdown. */
void check_machine(struct check *c, const char *root);
/* GPUs on the bus, and NVIDIA's kernel modules. */
void check_gpu(struct check *c, const char *root);
/* The CUDA driver of this process. */
void check_cuda(struct check *c);
/* What NVIDIA's cuFile wants; path: a file that it should take, or NULL. */
void check_cufile(struct check *c, const char *root, const char *path);
/* One drive, as the bus shows it: class, driver, group, link, BAR0, use, distance to the GPUs. */
void check_pci(struct check *c, const char *root, const struct pci_device *pci);
/*
 * Identify Controller, and a namespace: pages as the controller returned them. command_set: CSI of
 * the namespace, 0 where not known.
 */
void check_ctrlr_page(struct check *c, const void *page);
void check_ns_page(struct check *c, const void *page, uint32_t nsid, uint8_t command_set);
/* How many DMA regions the controller keeps; 0: no limit is known. */
void check_regions(struct check *c, unsigned limit);
/* What the driver does for a controller that it knows: enum nvme_quirk. */
void check_quirks(struct check *c, unsigned quirks);
/* What decides how a mount of the controller runs its queues. */
struct check_executor {
    bool kernel;     /* the kernel's driver has the drive, or none has */
    bool noiommu;    /* the drive reaches the daemon's own memory only */
    const char *gpu; /* the device whose kernels drive the queues; NULL: none can, because: */
    const char *no_gpu;
    bool rings; /* gpu maps the controller's doorbells */
    bool mmio;  /* they are registers of a PCI device, not memory of a server */
};
/* Tier and executor of a mount with the default options, and the reason: docs/hardware.md. */
void check_tier(struct check *c, const struct check_executor *x);
/* The register CAP. */
void check_cap(struct check *c, uint64_t cap);

#ifdef __cplusplus
}
#endif

#endif
