/* SPDX-License-Identifier: BSD-2-Clause */
/* `gpunvme bind` binds a drive to vfio-pci. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "blockdev/pci/pci.h"
#include "client/cli/common/cli.h"
#include "client/cli/common/mounts.h"
#include "client/cli/ctrlr/handover.h"

#define VFIO_DRIVER "vfio-pci"

/*
 * Refuses a drive in use in any case, and one that only has a signature unless
 * --force is given.
 */
static int check_unused(const struct cli_options *options, const char *bdf)
{
    char why[512] = "";
    int err = pci_check_unused("", bdf, why, sizeof(why));

    if (err == -EEXIST && options->force) {
        cli_error(bdf, "%s; taken all the same (--force)", why);
        return 0;
    }
    if (err == -EEXIST)
        return cli_error(bdf, "%s: nothing is done; --force takes the drive all the same", why);
    return err ? cli_error(bdf, "%s: nothing is done", why) : 0;
}

/*
 * Reports where the drive is mounted, if it is. A mounted drive needs no next
 * step, least of all mkfs.
 */
static bool say_mounted(const char *bdf)
{
    struct cli_mounts mounts;

    if (cli_mounts_read(CLI_MOUNTS, &mounts) != 0)
        return false;
    const struct cli_mount *m = cli_mounts_find(&mounts, bdf, NULL);
    if (m)
        printf("mounted on %s\n", m->point);
    cli_mounts_free(&mounts);
    return m != NULL;
}

/*
 * Prints the next steps. A bound drive is unusable while other drivers have the
 * rest of its group. Without an IOMMU, VFIO accepts it only because root has
 * enabled that mode.
 */
static void say_next(const char *bdf)
{
    char why[512] = "";
    bool noiommu = pci_check_noiommu("", bdf, why, sizeof(why)) == 0;

    if (noiommu)
        printf("no IOMMU guards it: it can write to any memory of this machine\n");
    else if (pci_check_vfio("", bdf, why, sizeof(why)) != 0)
        printf("not usable yet: %s\n", why);
    printf("next, to format it:  mkfs.gpunvme %svfio:%s\n"
           "or, to mount it:     gpunvmefs vfio:%s MOUNTPOINT%s\n"
           "to give it back:     gpunvme unbind %s\n",
           noiommu ? "--noiommu " : "", bdf, bdf, noiommu ? " -o noiommu" : "", bdf);
}

static int bind_drive(const struct cli_options *options, const struct pci_device *pci)
{
    char why[512] = "";
    const char *was = pci->driver[0] ? pci->driver : "no driver";

    if (strcmp(pci->driver, VFIO_DRIVER) == 0) {
        printf("%s: bound to " VFIO_DRIVER " already\n", pci->bdf);
        if (!say_mounted(pci->bdf))
            say_next(pci->bdf);
        return 0;
    }
    if (check_unused(options, pci->bdf))
        return 1;
    if (pci_check_bind("", pci->bdf, VFIO_DRIVER, why, sizeof(why)))
        return cli_error(pci->bdf, "%s", why);
    if (options->dry_run) {
        printf("%s: would be taken from %s and bound to " VFIO_DRIVER "; nothing is done\n",
               pci->bdf, was);
        return 0;
    }
    if (pci_bind("", pci->bdf, VFIO_DRIVER, why, sizeof(why)))
        return cli_error(pci->bdf, "%s", why);
    printf("%s: bound to " VFIO_DRIVER " (before: %s)\n", pci->bdf, was);
    say_next(pci->bdf);
    return 0;
}

int cli_bind(int argc, char **argv)
{
    struct cli_options options;
    struct pci_device pci;
    int stop = cli_handover(argc, argv, "fn", &options, &pci);

    return stop ? stop - 1 : bind_drive(&options, &pci);
}
