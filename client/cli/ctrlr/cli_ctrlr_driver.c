/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads Identify data and registers through our own driver (VFIO, vfio-user).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "blockdev/data_check.h"
#include "blockdev/device.h"
#include "blockdev/nvme/nvme.h"
#include "blockdev/pci/pci_sysfs.h"
#include "client/cli/common/cli.h"
#include "client/cli/ctrlr/cli_ctrlr.h"

#define CHECK_DEPTH 64u /* queue entries of a test */

static int ctrlr_driver_identify(struct cli_ctrlr *c, uint8_t cns, uint32_t nsid, void *page)
{
    struct nvme_sqe sqe = {.opcode = NVME_ADMIN_IDENTIFY, .nsid = nsid, .cdw10 = cns};
    struct nvme_cqe cqe = {0};
    int err = nvme_admin(c->driver, &sqe, page, NVME_IDENTIFY_LEN, false, &cqe);
    int status = NVME_STATUS(cqe.status);

    return err && status ? status : err;
}

static void close_driver(struct cli_ctrlr *c)
{
    nvme_ctrlr_close(c->driver);
}

static const struct cli_ctrlr_ops ops = {.identify = ctrlr_driver_identify, .close = close_driver};

unsigned cli_ctrlr_regions(const struct cli_ctrlr *c)
{
    struct nvme_dma_budget regions;

    if (c->ops != &ops)
        return 0;
    nvme_dma_regions(c->driver, &regions);
    return regions.limit;
}

bool cli_ctrlr_quirks(const struct cli_ctrlr *c, unsigned *out)
{
    *out = c->ops == &ops ? nvme_ctrlr_info(c->driver)->quirks : 0;
    return c->ops == &ops;
}

void cli_ctrlr_doorbells(const struct cli_ctrlr *c, struct cli_doorbells *out)
{
    *out = (struct cli_doorbells){0};
    if (c->ops != &ops)
        return;
    const struct nvme_transport *t = nvme_ctrlr_transport(c->driver);
    *out = (struct cli_doorbells){.addr = (void *)(uintptr_t)t->doorbells,
                                  .len = t->doorbells_len,
                                  .mmio = t->doorbells_are_mmio};
}

uint8_t cli_ctrlr_command_set(struct cli_ctrlr *c, uint32_t nsid)
{
    struct nvme_ns_info ns;

    return c->ops == &ops && nvme_ns_info(c->driver, nsid, &ns) == 0 ? ns.command_set : 0;
}

int cli_ctrlr_check_data(struct cli_ctrlr *c, uint32_t nsid, char *why, size_t len)
{
    struct bd_dev *dev;
    int err = bd_open_namespace(c->driver, nsid, 1, CHECK_DEPTH, &dev, why, len);

    if (err)
        return err;
    err = data_check_device(dev, 0, nvme_ctrlr_info(c->driver)->max_transfer, true, why, len);
    bd_close(dev);
    return err;
}

int cli_ctrlr_check_scratch(struct cli_ctrlr *c, uint32_t nsid, uint64_t start,
                            bool (*interrupted)(void), char *why, size_t len)
{
    struct bd_dev *dev;
    int err = bd_open_namespace(c->driver, nsid, 1, CHECK_DEPTH, &dev, why, len);

    if (err)
        return err;
    err = data_check_scratch(dev, start, nvme_ctrlr_info(c->driver)->max_transfer, interrupted, why,
                             len);
    bd_close(dev);
    return err;
}

static int open_transport(const struct cli_target *t, bool noiommu, struct nvme_transport **out,
                          char *why, size_t len)
{
    struct bd_name name = {.kind = t->driver == CLI_DRIVER_VFIO ? BD_KIND_VFIO : BD_KIND_VFIO_USER,
                           .nsid = 1};
    const struct bd_open_opts opts = {.noiommu = noiommu && t->driver == CLI_DRIVER_VFIO};

    snprintf(name.path, sizeof(name.path), "%s", t->driver == CLI_DRIVER_VFIO ? t->bdf : t->path);
    if (opts.noiommu)
        cli_error(t->bdf, "warning: without an IOMMU the drive can write to any memory of this "
                          "machine");
    return bd_open_transport(&name, &opts, out, why, len);
}

int cli_driver_open(const struct cli_target *t, bool noiommu, struct cli_ctrlr *out, char *why,
                    size_t len)
{
    char said[256] = "";
    const struct nvme_opts opts = {.io_queues = 1, .why = said, .why_len = sizeof(said)};
    struct nvme_transport *transport;
    struct nvme_ctrlr *driver;
    int err = open_transport(t, noiommu, &transport, why, len);

    if (err)
        return err;
    err = nvme_ctrlr_open(transport, &opts, &driver);
    if (err) {
        bd_refuse_ctrlr(transport, err, said, why, len);
        transport->ops->close(transport);
        return err;
    }
    *out = (struct cli_ctrlr){.ops = &ops, .through = transport->ops->name, .driver = driver};
    return 0;
}

int cli_transport_bar(const struct cli_target *t, bool noiommu, struct cli_bar *out, char *why,
                      size_t len)
{
    struct nvme_transport *transport;
    int err = open_transport(t, noiommu, &transport, why, len);

    if (err)
        return err;
    *out = (struct cli_bar){.through = transport->ops->name,
                            .transport = transport,
                            .owned = true,
                            .reset = t->driver == CLI_DRIVER_VFIO};
    return 0;
}

void cli_bar_of(struct cli_ctrlr *c, struct cli_bar *out)
{
    *out = (struct cli_bar){.through = c->through, .transport = nvme_ctrlr_transport(c->driver)};
}

uint64_t cli_transport_read(void *transport, uint32_t offset, unsigned bytes)
{
    struct nvme_transport *t = transport;

    return bytes == 8 ? t->ops->read64(t, offset) : t->ops->read32(t, offset);
}

void cli_transport_close(void *transport)
{
    struct nvme_transport *t = transport;

    t->ops->close(t);
}
