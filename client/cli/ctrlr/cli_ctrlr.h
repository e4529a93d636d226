/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads Identify data and registers of a controller. Identify commands use the
 * kernel's driver or the driver of this project. Registers are read from the
 * controller's BAR.
 */
#ifndef CLIENT_CLI_CTRLR_CLI_CTRLR_H
#define CLIENT_CLI_CTRLR_CLI_CTRLR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "blockdev/device.h"
#include "blockdev/nvme/nvme_identify.h"
#include "client/cli/common/cli.h"
#include "client/cli/ctrlr/cli_target.h"
#include "support/reason.h"

struct nvme_ctrlr;
struct nvme_transport;

/* Returns how our driver opens a drive, from the options of the command. */
static inline struct bd_open_opts cli_open_opts(const struct cli_options *options)
{
    return (struct bd_open_opts){.noiommu = options->noiommu,
                                 .deadline_ms = (unsigned)options->deadline_ms};
}

struct cli_ctrlr {
    const char *through;       /* name of its driver, for messages */
    struct nvme_ctrlr *driver; /* ours; NULL for the kernel's */
    int fd;                    /* node of the kernel's driver */
};

/*
 * Opens the target's drive without disturbing a user of it. Returns -EBUSY with
 * a sentence if it is in use. Through VFIO and vfio-user the controller is
 * reset, and left disabled on closing. `opts` is for our driver.
 */
int cli_ctrlr_open(const struct cli_target *t, const struct bd_open_opts *opts,
                   struct cli_ctrlr *out, struct reason *why);
void cli_ctrlr_close(struct cli_ctrlr *c);

/*
 * Returns the CSI of a namespace of our driver, or 0 for NVM or if
 * unknown.
 */
uint8_t cli_ctrlr_command_set(struct cli_ctrlr *c, uint32_t nsid);

/* Fetches the page of this CNS (NVME_CNS_CTRL or NVME_CNS_NS). Returns 0, -errno or a status. */
int cli_identify_page(struct cli_ctrlr *c, uint8_t cns, uint32_t nsid, void *page);
/*
 * Stores the active namespaces above `after` in ascending order. Returns their
 * number or -errno; -EPROTO means that the page is not a valid list.
 */
int cli_identify_list(struct cli_ctrlr *c, uint32_t after, uint32_t nn, uint32_t *ids);
/* Describes a result of the functions above. */
const char *cli_identify_error(int result);

/* Access to the registers of a controller. */
struct cli_bar {
    const char *through;
    volatile void *map; /* mapping of sysfs, `len` bytes */
    size_t len;
    struct nvme_transport *transport; /* closed with the BAR; NULL: `map` is used */
    bool reset;                       /* the controller was reset in order to be read */
};

/*
 * Opens the registers. For a drive of the kernel's driver they are those of the
 * running controller (sysfs, root only). Through VFIO and vfio-user the drive
 * must be unused, and the controller is reset.
 */
int cli_bar_open(const char *root, const struct cli_target *t, const struct bd_open_opts *opts,
                 struct cli_bar *out, struct reason *why);
uint64_t cli_bar_read(const struct cli_bar *bar, uint32_t offset, unsigned bytes);
void cli_bar_close(struct cli_bar *bar);

#endif
