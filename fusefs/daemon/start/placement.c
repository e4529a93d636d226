/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds the NUMA nodes of GPUs and their distance from the drive. */
#include "fusefs/daemon/start/placement.h"

#include <stdlib.h>

struct placement placement_of(const char *root, const char *gpu, const char *drive)
{
    struct placement p = {.numa_node = -1};
    struct pci_device pci;

    if (!gpu[0] || pci_read(root, gpu, &pci) != 0)
        return p;
    p.numa_node = pci.numa_node;
    if (drive[0])
        p.distance = pci_distance(root, pci.bdf, drive);
    return p;
}

unsigned placement_gpus(const char *root, int *node)
{
    struct pci_device *gpus;
    size_t n;

    *node = -1;
    (void)pci_list(root, pci_is_gpu, &gpus, &n);
    for (size_t i = 0; i < n; i++)
        *node = i == 0 || gpus[i].numa_node == *node ? gpus[i].numa_node : -1;
    free(gpus);
    return (unsigned)n;
}
