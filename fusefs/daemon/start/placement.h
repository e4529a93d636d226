/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Finds the places of GPUs and drives in the machine. `root` is as in
 * blockdev/pci/pci.h. A process whose sandbox has no sysfs finds nothing.
 */
#ifndef FUSEFS_DAEMON_START_PLACEMENT_H
#define FUSEFS_DAEMON_START_PLACEMENT_H

#include <sys/cdefs.h>

#include "blockdev/pci/pci.h"

__BEGIN_DECLS

struct placement {
    int numa_node; /* of the GPU; -1: not reported */
    enum pci_distance distance;
};

/*
 * Returns the place of a GPU and its distance from the drive. Both are PCI
 * addresses; "" stands for a device that is not on the PCI bus.
 */
struct placement placement_of(const char *root, const char *gpu, const char *drive);
/*
 * Returns the number of NVIDIA GPUs of the machine, and stores the NUMA node
 * that all of them have in common, or -1.
 */
unsigned placement_gpus(const char *root, int *node);

__END_DECLS

#endif
