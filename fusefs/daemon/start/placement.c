/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds the NUMA nodes of GPUs and their distance from the drive. */
#include "fusefs/daemon/start/placement.h"

#include "blockdev/pci/pci_sysfs.h"

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
    struct sysfs_names names;
    struct pci_device pci;
    unsigned n = 0;

    *node = -1;
    if (pci_sysfs_names(&names, "%s/sys/bus/pci/devices", root) != 0)
        return 0;
    for (int i = 0; i < names.n; i++) {
        if (pci_read(root, names.entries[i]->d_name, &pci) != 0 || !pci_is_gpu(&pci))
            continue;
        *node = n == 0 || pci.numa_node == *node ? pci.numa_node : -1;
        n++;
    }
    pci_sysfs_names_free(&names);
    return n;
}
