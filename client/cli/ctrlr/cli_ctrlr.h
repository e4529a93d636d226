/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A controller seen through its driver: Identify data through the kernel's driver or ours,
 * registers from its BAR. Free of wire format: libnvme is behind one half of it, nvme_spec.h behind
 * the other.
 */
#ifndef CLIENT_CLI_CTRLR_CLI_CTRLR_H
#define CLIENT_CLI_CTRLR_CLI_CTRLR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "blockdev/nvme/nvme_identify.h"
#include "client/cli/ctrlr/cli_target.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cli_ctrlr;

struct cli_ctrlr_ops {
    /* Identify: 0, -errno, or an NVMe status (above 0). */
    int (*identify)(struct cli_ctrlr *c, uint8_t cns, uint32_t nsid, void *page);
    void (*close)(struct cli_ctrlr *c);
};

struct cli_ctrlr {
    const struct cli_ctrlr_ops *ops;
    const char *through; /* name of its driver, for the reader */
    union {
        int fd;       /* the kernel's node */
        void *driver; /* struct nvme_ctrlr */
    };
};

/*
 * Opens the target's drive without disturbing a user of it: -EBUSY with a sentence when it is in
 * use. Through VFIO and vfio-user the controller is reset, and left disabled at the end.
 */
int cli_ctrlr_open(const struct cli_target *t, bool noiommu, struct cli_ctrlr *out, char *why,
                   size_t len);
void cli_ctrlr_close(struct cli_ctrlr *c);

int cli_kernel_open(const char *node, struct cli_ctrlr *out, char *why, size_t len);
int cli_driver_open(const struct cli_target *t, bool noiommu, struct cli_ctrlr *out, char *why,
                    size_t len);

/* DMA regions that a controller of cli_driver_open() keeps; 0: not known, or the kernel's. */
unsigned cli_ctrlr_regions(const struct cli_ctrlr *c);

/* Has *out what the driver does for a controller of cli_driver_open() (enum nvme_quirk)? */
bool cli_ctrlr_quirks(const struct cli_ctrlr *c, unsigned *out);

/* The doorbells of a controller of cli_driver_open(), mapped until it is closed. */
struct cli_doorbells {
    void *addr; /* NULL: of the kernel's driver */
    size_t len; /* bytes, whole pages */
    bool mmio;  /* registers of a PCI device, not ordinary memory */
};
void cli_ctrlr_doorbells(const struct cli_ctrlr *c, struct cli_doorbells *out);

/*
 * Reads of every shape, of a controller of cli_driver_open() (data_check.h). 0, or -errno with a
 * sentence: -EILSEQ for wrong data, -EPROTO for a command that the controller refuses.
 */
int cli_ctrlr_check_data(struct cli_ctrlr *c, uint32_t nsid, char *why, size_t len);
/* Writes of every shape as well, in a scratch area that is put back (data_check_scratch()). */
int cli_ctrlr_check_scratch(struct cli_ctrlr *c, uint32_t nsid, uint64_t start,
                            bool (*interrupted)(void), char *why, size_t len);

/* CSI of a namespace of cli_driver_open(); 0: NVM, or not known. */
uint8_t cli_ctrlr_command_set(struct cli_ctrlr *c, uint32_t nsid);

int cli_identify_ctrlr(struct cli_ctrlr *c, void *page);
int cli_identify_ns(struct cli_ctrlr *c, uint32_t nsid, void *page);
/* Active namespaces above `after`, ascending: how many, or -errno (-EPROTO: not a list). */
int cli_identify_list(struct cli_ctrlr *c, uint32_t after, uint32_t nn, uint32_t *ids);
/* The result of the three above in words. */
const char *cli_identify_error(int result);

/* The registers of a controller. */
struct cli_bar {
    const char *through;
    volatile void *map; /* sysfs, of len bytes */
    size_t len;
    void *transport; /* struct nvme_transport; whose, says `owned` */
    bool owned;
    bool reset; /* the controller was reset to be looked at */
};

/*
 * For a drive of the kernel's driver: the registers of the running controller (sysfs, root only).
 * Through VFIO and vfio-user: only when the drive is not in use, and after a reset.
 */
int cli_bar_open(const char *root, const struct cli_target *t, bool noiommu, struct cli_bar *out,
                 char *why, size_t len);
/* The registers of a controller opened with cli_driver_open(), as it runs. */
void cli_bar_of(struct cli_ctrlr *c, struct cli_bar *out);
uint64_t cli_bar_read(const struct cli_bar *bar, uint32_t offset, unsigned bytes);
void cli_bar_close(struct cli_bar *bar);

#ifdef __cplusplus
}
#endif

#endif
