/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds NVIDIA GPUs on the PCI bus. `root` is as in blockdev/pci/pci.h. */
#ifndef CLIENT_CLI_CHECK_GPUS_H
#define CLIENT_CLI_CHECK_GPUS_H

#include <sys/cdefs.h>

#include "blockdev/pci/pci.h"

__BEGIN_DECLS

#define CLI_GPUS_MAX 32

struct cli_gpu {
    char bdf[NVME_BDF_LEN];
    int numa_node;       /* -1: not reported */
    char driver[32];     /* "nvidia"; empty without one */
    uint64_t window_len; /* bytes of the BAR that exposes its memory */
};

/* Stores the GPUs in ascending order of address and returns their number. */
unsigned cli_gpus(const char *root, struct cli_gpu gpus[CLI_GPUS_MAX]);

const char *cli_distance_text(enum pci_distance d);

__END_DECLS

#endif
