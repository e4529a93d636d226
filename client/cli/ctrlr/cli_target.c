/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds the drive that a command names. */
#include "client/cli/ctrlr/cli_target.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "blockdev/device.h"
#include "blockdev/pci/pci_sysfs.h"

/*
 * Returns true if the name is that of a controller of the kernel, such as
 * "nvme0".
 */
static bool is_ctrlr_name(const char *name)
{
    return strncmp(name, "nvme", 4) == 0 && name[4] &&
           strspn(name + 4, "0123456789") == strlen(name + 4);
}

/*
 * Stores the name of the controller behind a node of the kernel's driver. A
 * namespace with several paths belongs to the subsystem; its first controller
 * is used.
 */
static int ctrlr_of_node(const char *root, const char *node, char *ctrlr, size_t len)
{
    struct sysfs_names names;

    if (is_ctrlr_name(node)) {
        snprintf(ctrlr, len, "%s", node);
        return pci_sysfs_exists("%s/sys/class/nvme/%s", root, node) ? 0 : -ENODEV;
    }
    int err = pci_sysfs_link(ctrlr, len, "%s/sys/class/block/%s/device", root, node);
    if (err || is_ctrlr_name(ctrlr))
        return err;
    err = pci_sysfs_names(&names, "%s/sys/class/block/%s/device", root, node);
    if (err)
        return err;
    err = -ENODEV;
    for (int i = 0; i < names.n && err; i++) {
        if (is_ctrlr_name(names.entries[i]->d_name)) {
            snprintf(ctrlr, len, "%.63s", names.entries[i]->d_name);
            err = 0;
        }
    }
    pci_sysfs_names_free(&names);
    return err;
}

static int find_node(const char *root, struct cli_target *out, struct reason *why)
{
    char ctrlr[SYSFS_NAME], address[SYSFS_NAME], resolved[PATH_MAX];
    struct stat st;
    int64_t nsid;

    if (!realpath(out->path, resolved) || stat(resolved, &st) != 0)
        return reason_set(why, -errno, "%s", strerror(errno));
    if (!S_ISBLK(st.st_mode) && !S_ISCHR(st.st_mode))
        return reason_set(why, -ENOTSUP,
                          "no device; give a PCI address, /dev/nvme0, vfio:ADDRESS or "
                          "vfio-user:SOCKET");
    const char *node = strrchr(resolved, '/') + 1;
    if (ctrlr_of_node(root, node, ctrlr, sizeof(ctrlr)) != 0)
        return reason_set(why, -ENOTSUP,
                          "not a whole drive or a namespace of the kernel's nvme driver");
    if (pci_sysfs_text(address, sizeof(address), "%s/sys/class/nvme/%s/address", root, ctrlr) ||
        pci_parse(address, out->bdf))
        out->bdf[0] = '\0'; /* the controller is reached over a network */
    if (pci_sysfs_number(&nsid, 10, "%s/sys/class/block/%s/nsid", root, node) == 0 && nsid > 0 &&
        nsid < UINT32_MAX)
        out->nsid = (uint32_t)nsid;
    out->driver = CLI_DRIVER_KERNEL;
    return 0;
}

/*
 * Completes a target that is a bare PCI address with the driver that has the
 * device.
 */
static int find_address(const char *root, struct cli_target *out, struct reason *why)
{
    struct pci_device pci;
    int err = pci_find(root, out->bdf, &pci, why);

    if (err)
        return err;
    if (strcmp(pci.driver, "vfio-pci") == 0)
        out->driver = CLI_DRIVER_VFIO;
    if (pci.kernel_name[0]) {
        out->driver = CLI_DRIVER_KERNEL;
        snprintf(out->path, sizeof(out->path), "%s/dev/%s", root, pci.kernel_name);
    }
    return 0;
}

int cli_target_find(const char *root, const char *text, struct cli_target *out, struct reason *why)
{
    struct bd_name name;

    *out = (struct cli_target){.driver = CLI_DRIVER_NONE};
    if (pci_parse(text, out->bdf) == 0)
        return find_address(root, out, why);
    out->bdf[0] = '\0';
    int err = bd_name_parse(text, &name, why);
    if (err)
        return err;
    out->nsid = name.nsid_given ? name.nsid : 0;
    switch (name.kind) {
    case BD_KIND_VFIO:
        out->driver = CLI_DRIVER_VFIO;
        snprintf(out->bdf, sizeof(out->bdf), "%.12s", name.path);
        return 0;
    case BD_KIND_VFIO_USER:
        out->driver = CLI_DRIVER_VFIO_USER;
        snprintf(out->path, sizeof(out->path), "%s", name.path);
        return 0;
    case BD_KIND_FILE:
        break;
    }
    snprintf(out->path, sizeof(out->path), "%s", name.path);
    return find_node(root, out, why);
}
