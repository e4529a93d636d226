/* SPDX-License-Identifier: BSD-2-Clause */
/* Opens a controller through the kernel's driver or through ours. */
#include "client/cli/ctrlr/cli_ctrlr.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "blockdev/pci/pci_sysfs.h"
#include "client/cli/common/mounts.h"
#include "client/cli/ctrlr/cli_ctrlr_internal.h"

enum { CNS_NS = 0, CNS_CTRL = 1, CNS_ACTIVE_LIST = 2 }; /* Base 2.0, 5.17.1 */

#define BAR_LEN 0x1000u /* registers; the doorbells that follow stay unmapped */

/*
 * Reports a mount by name. The error of VFIO comes later and says only that the
 * device is in use.
 */
static int ctrlr_check_unmounted(const struct cli_target *t, char *why, size_t len)
{
    struct cli_mounts mounts;
    int err = 0;

    if (t->driver != CLI_DRIVER_VFIO || cli_mounts_read(CLI_MOUNTS, &mounts) != 0)
        return 0;
    const struct cli_mount *m = cli_mounts_find(&mounts, t->bdf, NULL);
    if (m)
        err = nvme_why(why, len, -EBUSY, "mounted on %s, and VFIO gives a drive to one user",
                       m->point);
    cli_mounts_free(&mounts);
    return err;
}

int cli_ctrlr_open(const struct cli_target *t, bool noiommu, struct cli_ctrlr *out, char *why,
                   size_t len)
{
    if (t->driver == CLI_DRIVER_NONE)
        return nvme_why(why, len, -ENODEV,
                        "no driver has it that could be asked, type: gpunvme bind %s", t->bdf);
    if (t->driver == CLI_DRIVER_KERNEL)
        return cli_kernel_open(t->path, out, why, len);
    int err = ctrlr_check_unmounted(t, why, len);
    return err ? err : cli_driver_open(t, noiommu, out, why, len);
}

void cli_ctrlr_close(struct cli_ctrlr *c)
{
    c->ops->close(c);
}

int cli_identify_ctrlr(struct cli_ctrlr *c, void *page)
{
    return c->ops->identify(c, CNS_CTRL, 0, page);
}

int cli_identify_ns(struct cli_ctrlr *c, uint32_t nsid, void *page)
{
    return c->ops->identify(c, CNS_NS, nsid, page);
}

int cli_identify_list(struct cli_ctrlr *c, uint32_t after, uint32_t nn, uint32_t *ids)
{
    uint8_t page[NVME_IDENTIFY_LEN] __attribute__((aligned(8))) = {0};
    int result = c->ops->identify(c, CNS_ACTIVE_LIST, after, page);
    if (result)
        return result < 0 ? result : -EIO;
    return nvme_parse_ns_list(page, after, nn, ids);
}

const char *cli_identify_error(int result)
{
    if (result == -EPROTO)
        return "the list of namespaces is none (ids do not ascend, or are above NN)";
    return result < 0 ? strerror(-result) : nvme_status_text((uint16_t)result);
}

static int map_resource(const char *root, const char *bdf, struct cli_bar *out, char *why,
                        size_t len)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/sys/bus/pci/devices/%s/resource0", root, bdf);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return nvme_why(why, len, -errno, "%s: %s%s", path, strerror(errno),
                        errno == EACCES || errno == EPERM ? ", run it as root" : "");
    void *map = mmap(NULL, BAR_LEN, PROT_READ, MAP_SHARED, fd, 0);
    int err = map == MAP_FAILED ? -errno : 0;
    close(fd);
    if (err)
        return nvme_why(why, len, err,
                        "the kernel keeps the registers to its driver (%s): boot with "
                        "iomem=relaxed and without lockdown, or bind the drive to vfio-pci",
                        strerror(-err));
    *out = (struct cli_bar){.through = "sysfs resource0, as it runs", .map = map, .len = BAR_LEN};
    return 0;
}

int cli_bar_open(const char *root, const struct cli_target *t, bool noiommu, struct cli_bar *out,
                 char *why, size_t len)
{
    if (t->driver == CLI_DRIVER_KERNEL && !t->bdf[0])
        return nvme_why(why, len, -ENOTSUP, "no PCI drive, its registers cannot be read");
    if (t->driver == CLI_DRIVER_NONE)
        return nvme_why(why, len, -ENODEV, "no driver has it, type: gpunvme bind %s", t->bdf);
    if (t->driver == CLI_DRIVER_KERNEL)
        return map_resource(root, t->bdf, out, why, len);
    int err = ctrlr_check_unmounted(t, why, len);
    return err ? err : cli_transport_bar(t, noiommu, out, why, len);
}

uint64_t cli_bar_read(const struct cli_bar *bar, uint32_t offset, unsigned bytes)
{
    if (bar->transport)
        return cli_transport_read(bar->transport, offset, bytes);
    /*
     * Reads two halves, since some controllers reject 8-byte accesses (Base
     * 2.0, 3.1.3).
     */
    const volatile uint32_t *reg = (const volatile uint32_t *)bar->map + offset / sizeof(uint32_t);
    uint64_t low = reg[0];
    return bytes == 8 ? low | (uint64_t)reg[1] << 32 : low;
}

void cli_bar_close(struct cli_bar *bar)
{
    if (bar->map)
        munmap((void *)bar->map, bar->len);
    if (bar->owned)
        cli_transport_close(bar->transport);
}
