/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Finds the drive that a command names. The name is a device string
 * (blockdev/device.h), a node of the kernel's driver (/dev/nvme0,
 * /dev/nvme0n1), or a bare PCI address. A bare PCI address selects the drive's
 * current driver.
 */
#ifndef CLIENT_CLI_CTRLR_CLI_TARGET_H
#define CLIENT_CLI_CTRLR_CLI_TARGET_H

#include <limits.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "blockdev/pci/pci.h"
#include "support/reason.h"

__BEGIN_DECLS

enum cli_driver {
    CLI_DRIVER_NONE,      /* a PCI device without a driver, or with another one */
    CLI_DRIVER_KERNEL,    /* the kernel's nvme driver */
    CLI_DRIVER_VFIO,      /* bound to vfio-pci, or named as such */
    CLI_DRIVER_VFIO_USER, /* another process */
};

struct cli_target {
    enum cli_driver driver;
    char path[PATH_MAX];    /* KERNEL: the node; VFIO_USER: the socket */
    char bdf[NVME_BDF_LEN]; /* empty if it is no PCI device, or not known to be one */
    uint32_t nsid;          /* 0 if none was named */
};

/*
 * Finds the drive. `root` is as in pci.h and also applies to nodes. Returns 0,
 * or -errno with a sentence in why: -EINVAL (not a device string), -ENODEV (no
 * such PCI device), errors of stat(2), or -ENOTSUP (an image file and the
 * like).
 */
int cli_target_find(const char *root, const char *text, struct cli_target *out, struct reason *why);

__END_DECLS

#endif
