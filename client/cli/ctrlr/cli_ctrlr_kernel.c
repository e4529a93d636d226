/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Sends Identify through the passthrough commands of the kernel's nvme driver,
 * which do not disturb I/O.
 */
#include <errno.h>
#include <fcntl.h>
#include <libnvme.h>
#include <string.h>
#include <unistd.h>

#include "blockdev/pci/pci_sysfs.h"
#include "client/cli/ctrlr/cli_ctrlr.h"

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

static void close_node(struct cli_ctrlr *c)
{
    close(c->fd);
}

static const struct cli_ctrlr_ops ops = {.identify = ctrlr_kernel_identify, .close = close_node};

int cli_kernel_open(const char *node, struct cli_ctrlr *out, char *why, size_t len)
{
    int fd = open(node, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0 && (errno == EACCES || errno == EPERM))
        return nvme_why(why, len, -errno, "%s: %s, run it as root", node, strerror(errno));
    if (fd < 0)
        return nvme_why(why, len, -errno, "%s: %s", node, strerror(errno));
    *out = (struct cli_ctrlr){.ops = &ops, .through = "the kernel's nvme driver", .fd = fd};
    return 0;
}
