/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * `gpunvme bind` binds a drive to vfio-pci, and `gpunvme unbind` returns it to
 * the kernel's driver.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "blockdev/pci/pci.h"
#include "client/cli/common/cli.h"
#include "client/cli/common/mounts.h"

/* Finds the drive. Returns 0, or the exit status after a message. */
static int bind_find(const char *text, struct pci_device *pci)
{
    char bdf[NVME_BDF_LEN];
    struct reason why;
    const char *address = strncmp(text, "vfio:", 5) == 0 ? text + 5 : text;

    if (pci_parse(address, bdf) != 0) {
        cli_error(text, "no PCI address, one looks like 0000:c1:00.0 (gpunvme list has them)");
        return 2;
    }
    return pci_find("", bdf, pci, &why) ? cli_error(bdf, "%s", why.text) : 0;
}

#define VFIO_DRIVER "vfio-pci"

/* Refuses a used drive always, one with a signature without --force. */
static int check_unused(const struct cli_options *options, const struct pci_device *pci)
{
    struct reason why = {0};
    const char *bdf = pci->bdf;
    int err = pci_check_unused("", pci, &why);

    if (err == -EEXIST && options->force) {
        cli_error(bdf, "%s; taken all the same (--force)", why.text);
        return 0;
    }
    if (err == -EEXIST)
        return cli_error(bdf, "%s: nothing is done; --force takes the drive all the same",
                         why.text);
    return err ? cli_error(bdf, "%s: nothing is done", why.text) : 0;
}

/* A mounted drive needs no next step, least of all mkfs. */
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
    struct reason why = {0};
    struct pci_device now;
    bool found = pci_find("", bdf, &now, &why) == 0;
    bool noiommu = found && pci_check_noiommu("", &now, &why) == 0;

    if (noiommu)
        printf("no IOMMU guards it: it can write to any memory of this machine\n");
    else if (!found || pci_check_vfio("", &now, &why) != 0)
        printf("not usable yet: %s\n", why.text);
    printf("next, to format it:  mkfs.gpunvme %svfio:%s\n"
           "or, to mount it:     gpunvmefs vfio:%s MOUNTPOINT%s\n"
           "to give it back:     gpunvme unbind %s\n",
           noiommu ? "--noiommu " : "", bdf, bdf, noiommu ? " -o noiommu" : "", bdf);
}

static int bind_drive(const struct cli_options *options, const struct pci_device *pci)
{
    struct reason why = {0};
    const char *was = pci->driver[0] ? pci->driver : "no driver";

    if (strcmp(pci->driver, VFIO_DRIVER) == 0) {
        printf("%s: bound to " VFIO_DRIVER " already\n", pci->bdf);
        if (!say_mounted(pci->bdf))
            say_next(pci->bdf);
        return 0;
    }
    if (check_unused(options, pci))
        return 1;
    if (pci_bind("", pci, options->dry_run, &why))
        return cli_error(pci->bdf, "%s", why.text);
    if (options->dry_run) {
        printf("%s: would be taken from %s and bound to " VFIO_DRIVER "; nothing is done\n",
               pci->bdf, was);
        return 0;
    }
    printf("%s: bound to " VFIO_DRIVER " (before: %s)\n", pci->bdf, was);
    say_next(pci->bdf);
    return 0;
}

int cli_bind(const struct cli_options *options, char **operands, int n)
{
    struct pci_device pci;
    int status = bind_find(operands[0], &pci);

    (void)n;
    return status ? status : bind_drive(options, &pci);
}

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
    struct reason why = {0};
    struct pci_device now;

    if (unbind_check_unmounted(pci))
        return 1;
    if (pci_unbind("", pci, options->dry_run, &why))
        return cli_error(pci->bdf, "%s", why.text);
    if (options->dry_run) {
        printf("%s: would be given back to the kernel, from %s; nothing is done\n", pci->bdf,
               pci->driver[0] ? pci->driver : "no driver");
        return 0;
    }
    if (pci_read("", pci->bdf, &now) != 0)
        return cli_error(pci->bdf, "gone");
    if (!now.driver[0])
        printf("%s: given back, and no driver has taken it (modprobe nvme?)\n", pci->bdf);
    else
        printf("%s: driven by %s%s%s\n", pci->bdf, now.driver, now.kernel_name[0] ? " as " : "",
               now.kernel_name);
    return 0;
}

int cli_unbind(const struct cli_options *options, char **operands, int n)
{
    struct pci_device pci;
    int status = bind_find(operands[0], &pci);

    (void)n;
    return status ? status : unbind_drive(options, &pci);
}
