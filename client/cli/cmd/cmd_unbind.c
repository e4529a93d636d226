/* SPDX-License-Identifier: BSD-2-Clause */
/* `gpunvme unbind` returns a drive to the kernel's driver. */
#include <stdio.h>
#include <string.h>

#include "blockdev/pci/pci.h"
#include "client/cli/common/cli.h"
#include "client/cli/common/mounts.h"
#include "client/cli/ctrlr/handover.h"

#define VFIO_DRIVER "vfio-pci"

static int unbind_check_unmounted(const struct pci_device *pci)
{
    struct cli_mounts mounts;
    int failed = 0;

    if (cli_mounts_read(CLI_MOUNTS, &mounts) != 0)
        return 0; /* the IOMMU group shows the use, too: see pci.h */
    const struct cli_mount *m = cli_mounts_find(&mounts, pci->bdf, NULL);
    if (m)
        failed = cli_error(pci->bdf, "mounted on %s, unmount it first", m->point);
    cli_mounts_free(&mounts);
    return failed;
}

static int unbind_drive(const struct cli_options *options, const struct pci_device *pci)
{
    char why[512] = "";
    struct pci_device now;

    if (unbind_check_unmounted(pci))
        return 1;
    if (pci_check_unbind("", pci->bdf, why, sizeof(why)))
        return cli_error(pci->bdf, "%s", why);
    if (options->dry_run) {
        printf("%s: would be given back to the kernel, from %s; nothing is done\n", pci->bdf,
               pci->driver[0] ? pci->driver : "no driver");
        return 0;
    }
    if (pci_unbind("", pci->bdf, why, sizeof(why)))
        return cli_error(pci->bdf, "%s", why);
    if (pci_read("", pci->bdf, &now) != 0)
        return cli_error(pci->bdf, "gone");
    if (!now.driver[0])
        printf("%s: given back, and no driver has taken it (modprobe nvme?)\n", pci->bdf);
    else
        printf("%s: driven by %s%s%s\n", pci->bdf, now.driver, now.kernel_name[0] ? " as " : "",
               now.kernel_name);
    return 0;
}

int cli_unbind(int argc, char **argv)
{
    struct cli_options options;
    struct pci_device pci;
    int stop = cli_handover(argc, argv, "n", &options, &pci);

    return stop ? stop - 1 : unbind_drive(&options, &pci);
}
