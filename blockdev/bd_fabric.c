/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads the transports of NVMe controllers in sysfs. The folder `device` of a
 * disk is that of its controller or, with the kernel's multipath, that of a
 * subsystem, which has a link to each controller.
 */
#include "blockdev/bd_fabric.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "blockdev/pci/pci_sysfs.h"

static bool fabric_names_network(const char *controller)
{
    char text[32];

    return pci_sysfs_text(text, sizeof(text), "%s/transport", controller) == 0 && text[0] &&
           strcmp(text, "pcie") != 0;
}

static bool fabric_in_subsystem(const char *subsystem)
{
    char path[PATH_MAX];
    DIR *dir = opendir(subsystem);
    bool found = false;

    for (struct dirent *e; dir && !found && (e = readdir(dir));) {
        if (strncmp(e->d_name, "nvme", 4) == 0 &&
            snprintf(path, sizeof(path), "%s/%s", subsystem, e->d_name) < (int)sizeof(path))
            found = fabric_names_network(path);
    }
    if (dir)
        closedir(dir);
    return found;
}

bool bd_on_fabric(const char *folder)
{
    static const char *const disks[] = {"device", "../device"};
    char path[PATH_MAX];

    for (unsigned i = 0; i < sizeof(disks) / sizeof(disks[0]); i++) {
        if (snprintf(path, sizeof(path), "%s/%s", folder, disks[i]) < (int)sizeof(path) &&
            (fabric_names_network(path) || fabric_in_subsystem(path)))
            return true;
    }
    return false;
}
