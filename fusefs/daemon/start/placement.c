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

int placement_common_node(const char *root)
{
    struct sysfs_names names;
    struct pci_device pci;
    int node = -1;
    bool any = false, same = true;

    if (pci_sysfs_names(&names, "%s/sys/bus/pci/devices", root) != 0)
        return -1;
    for (int i = 0; i < names.n; i++) {
        if (pci_read(root, names.entries[i]->d_name, &pci) != 0 || !pci_is_gpu(&pci))
            continue;
        same = same && (!any || pci.numa_node == node);
        node = pci.numa_node;
        any = true;
    }
    pci_sysfs_names_free(&names);
    return same ? node : -1;
}
