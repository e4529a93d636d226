/* SPDX-License-Identifier: BSD-2-Clause */
/* Serves the controller: its socket, one client at a time, and signals. */
#ifndef SIM_SERVE_SERVE_SERVER_H
#define SIM_SERVE_SERVE_SERVER_H

#include <stdbool.h>

#include "sim/sim.h"
#include "support/reason.h"

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

/*
 * Serves until SIGTERM or SIGINT. SIGUSR1 calls sim_stick(), and SIGUSR2
 * sim_remove(). Returns 0, -errno after an error message, or 1 if a driver made
 * mistakes, which have been printed.
 */
int serve_server_run(const struct serve_options *o);

/*
 * serve_fault_spec.c: parses a fault on a command line, KIND[,KEY[=VALUE]]...
 * (gpunvme-sim(1)). Returns 0, or -EINVAL with the reason in why, as a phrase to
 * follow "--fault: ".
 */
int serve_fault_parse(const char *spec, struct sim_fault *out, struct reason *why);

#endif
