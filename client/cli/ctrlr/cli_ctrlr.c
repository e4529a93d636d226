/* SPDX-License-Identifier: BSD-2-Clause */
/* Opens a controller through the kernel's driver or through ours. */
#include "client/cli/ctrlr/cli_ctrlr.h"

#include <errno.h>
#include <fcntl.h>
#include <libnvme.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "blockdev/device.h"
#include "blockdev/nvme/nvme.h"
#include "client/cli/common/cli.h"
#include "client/cli/common/mounts.h"

static int ctrlr_driver_identify(struct cli_ctrlr *c, uint8_t cns, uint32_t nsid, void *page)
{
    struct nvme_sqe sqe = {.opcode = NVME_ADMIN_IDENTIFY, .nsid = nsid, .cdw10 = cns};
    struct nvme_cqe cqe = {0};
    int err = nvme_admin(c->driver, &sqe, page, NVME_IDENTIFY_LEN, false, &cqe);
    int status = NVME_STATUS(cqe.status);

    return err && status ? status : err;
}

uint8_t cli_ctrlr_command_set(struct cli_ctrlr *c, uint32_t nsid)
{
    struct nvme_ns_info ns;

    return c->driver && nvme_ns_info(c->driver, nsid, &ns) == 0 ? ns.command_set : 0;
}

static int open_transport(const struct cli_target *t, const struct bd_open_opts *wanted,
                          struct nvme_transport **out, struct reason *why)
{
    struct bd_name name = {.kind = t->driver == CLI_DRIVER_VFIO ? BD_KIND_VFIO : BD_KIND_VFIO_USER,
                           .nsid = 1};
    struct bd_open_opts opts = *wanted;

    opts.noiommu &= t->driver == CLI_DRIVER_VFIO;
    snprintf(name.path, sizeof(name.path), "%s", t->driver == CLI_DRIVER_VFIO ? t->bdf : t->path);
    if (opts.noiommu)
        cli_error(t->bdf, "warning: without an IOMMU the drive can write to any memory of this "
                          "machine");
    return bd_open_transport(&name, &opts, out, why);
}

static int ctrlr_driver_open(const struct cli_target *t, const struct bd_open_opts *wanted,
                             struct cli_ctrlr *out, struct reason *why)
{
    const struct nvme_opts opts = {.io_queues = 1,
                                   .admin_timeout_ms = wanted->deadline_ms,
                                   .io_timeout_ms = wanted->deadline_ms,
                                   .why = why};
    struct nvme_transport *transport;
    struct nvme_ctrlr *driver;
    int err = open_transport(t, wanted, &transport, why);

    if (err)
        return err;
    err = nvme_ctrlr_open(transport, &opts, &driver);
    if (err) {
        bd_refuse_ctrlr(transport, err, why);
        transport->ops->close(transport);
        return err;
    }
    *out = (struct cli_ctrlr){.through = transport->ops->name, .driver = driver};
    return 0;
}

static int ctrlr_transport_bar(const struct cli_target *t, const struct bd_open_opts *opts,
                               struct cli_bar *out, struct reason *why)
{
    struct nvme_transport *transport;
    int err = open_transport(t, opts, &transport, why);

    if (err)
        return err;
    *out = (struct cli_bar){.through = transport->ops->name,
                            .transport = transport,
                            .reset = t->driver == CLI_DRIVER_VFIO};
    return 0;
}

#define TIMEOUT_MS 10000

static int ctrlr_kernel_identify(struct cli_ctrlr *c, uint8_t cns, uint32_t nsid, void *page)
{
    struct nvme_identify_args args = {
        .data = page,
        .args_size = sizeof(args),
        .fd = c->fd,
        .timeout = TIMEOUT_MS,
        .cns = (enum nvme_identify_cns)cns,
        .csi = NVME_CSI_NVM,
        .nsid = nsid,
        .uuidx = NVME_UUID_NONE,
    };
    int rc = nvme_identify(&args);

    return rc < 0 ? -errno : rc;
}

static int ctrlr_kernel_open(const char *node, struct cli_ctrlr *out, struct reason *why)
{
    int fd = open(node, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0 && (errno == EACCES || errno == EPERM))
        return reason_set(why, -errno, "%s: %s, run it as root", node, strerror(errno));
    if (fd < 0)
        return reason_set(why, -errno, "%s: %s", node, strerror(errno));
    *out = (struct cli_ctrlr){.through = "the kernel's nvme driver", .fd = fd};
    return 0;
}

#define BAR_LEN 0x1000u /* registers; the doorbells that follow stay unmapped */

/*
 * Reports a mount by name. The error of VFIO comes later and says only that the
 * device is in use.
 */
static int ctrlr_check_unmounted(const struct cli_target *t, struct reason *why)
{
    struct cli_mounts mounts;
    int err = 0;

    if (t->driver != CLI_DRIVER_VFIO || cli_mounts_read(CLI_MOUNTS, &mounts) != 0)
        return 0;
    const struct cli_mount *m = cli_mounts_find(&mounts, t->bdf, NULL);
    if (m)
        err =
            reason_set(why, -EBUSY, "mounted on %s, and VFIO gives a drive to one user", m->point);
    cli_mounts_free(&mounts);
    return err;
}

int cli_ctrlr_open(const struct cli_target *t, const struct bd_open_opts *opts,
                   struct cli_ctrlr *out, struct reason *why)
{
    if (t->driver == CLI_DRIVER_NONE)
        return reason_set(why, -ENODEV,
                          "no driver has it that could be asked, type: gpunvme bind %s", t->bdf);
    if (t->driver == CLI_DRIVER_KERNEL)
        return ctrlr_kernel_open(t->path, out, why);
    int err = ctrlr_check_unmounted(t, why);
    return err ? err : ctrlr_driver_open(t, opts, out, why);
}

void cli_ctrlr_close(struct cli_ctrlr *c)
{
    if (c->driver)
        nvme_ctrlr_close(c->driver);
    else
        close(c->fd);
}

int cli_identify_page(struct cli_ctrlr *c, uint8_t cns, uint32_t nsid, void *page)
{
    return c->driver ? ctrlr_driver_identify(c, cns, nsid, page)
                     : ctrlr_kernel_identify(c, cns, nsid, page);
}

int cli_identify_list(struct cli_ctrlr *c, uint32_t after, uint32_t nn, uint32_t *ids)
{
    uint8_t page[NVME_IDENTIFY_LEN] __attribute__((aligned(8))) = {0};
    int result = cli_identify_page(c, NVME_CNS_ACTIVE_NS_LIST, after, page);
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

static int map_resource(const char *root, const char *bdf, struct cli_bar *out, struct reason *why)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/sys/bus/pci/devices/%s/resource0", root, bdf);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return reason_set(why, -errno, "%s: %s%s", path, strerror(errno),
                          errno == EACCES || errno == EPERM ? ", run it as root" : "");
    void *map = mmap(NULL, BAR_LEN, PROT_READ, MAP_SHARED, fd, 0);
    int err = map == MAP_FAILED ? -errno : 0;
    close(fd);
    if (err)
        return reason_set(why, err,
                          "the kernel keeps the registers to its driver (%s): boot with "
                          "iomem=relaxed and without lockdown, or bind the drive to vfio-pci",
                          strerror(-err));
    *out = (struct cli_bar){.through = "sysfs resource0, as it runs", .map = map, .len = BAR_LEN};
    return 0;
}

int cli_bar_open(const char *root, const struct cli_target *t, const struct bd_open_opts *opts,
                 struct cli_bar *out, struct reason *why)
{
    if (t->driver == CLI_DRIVER_KERNEL && !t->bdf[0])
        return reason_set(why, -ENOTSUP, "no PCI drive, its registers cannot be read");
    if (t->driver == CLI_DRIVER_NONE)
        return reason_set(why, -ENODEV, "no driver has it, type: gpunvme bind %s", t->bdf);
    if (t->driver == CLI_DRIVER_KERNEL)
        return map_resource(root, t->bdf, out, why);
    int err = ctrlr_check_unmounted(t, why);
    return err ? err : ctrlr_transport_bar(t, opts, out, why);
}

uint64_t cli_bar_read(const struct cli_bar *bar, uint32_t offset, unsigned bytes)
{
    struct nvme_transport *t = bar->transport;

    if (t)
        return t->ops->read(t, offset, bytes);
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
    if (bar->transport)
        bar->transport->ops->close(bar->transport);
}
