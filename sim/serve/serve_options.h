/* SPDX-License-Identifier: BSD-2-Clause */
/* The command line of gpunvme-sim. */
#ifndef SIM_SERVE_SERVE_OPTIONS_H
#define SIM_SERVE_SERVE_OPTIONS_H

#include <stdbool.h>

#include "sim/sim.h"

#define OPTIONS_MAX_FAULTS 64

struct serve_options {
    const char *socket;
    struct sim_config cfg;
    struct sim_fault faults[OPTIONS_MAX_FAULTS];
    unsigned n_faults;
    uint16_t pci_vendor, pci_device; /* 0: ids of QEMU's controller */
    bool no_mmap;
    /*
     * Maximum number of regions, which is not announced. 0 means DMA_MAX_MAPS,
     * which is announced.
     */
    unsigned dma_maps;
    bool stuck;       /* CSTS.RDY never follows CC.EN */
    bool wait_second; /* a second client waits instead of being refused */
    bool strict;
};

/* Parses the command line. Exits with a message if it is invalid. */
void serve_options_parse(struct serve_options *o, int argc, char **argv);

#endif
