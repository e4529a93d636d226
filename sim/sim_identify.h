/* SPDX-License-Identifier: BSD-2-Clause */
/* Builds Identify data from values of the host. Pages have 4096 bytes. */
#ifndef SIM_SIM_IDENTIFY_H
#define SIM_SIM_IDENTIFY_H

#include <stdbool.h>
#include <stdint.h>

struct sim_identify_ctrl {
    uint32_t namespaces, version, aer_limit, abort_limit;
    uint32_t mdts_shift; /* log2 of 4 KiB pages */
    bool sgl, volatile_cache;
    uint32_t events; /* OAES */
};

struct sim_identify_ns {
    uint32_t nsid;
    unsigned identity; /* changes NGUID */
    uint64_t lbas;
    unsigned lba_shift;
    uint16_t metadata;
    bool read_only;
};

void sim_identify_ctrl(const struct sim_identify_ctrl *in, void *page);
void sim_identify_ns(const struct sim_identify_ns *in, void *page);
/* Fills the page with the active namespaces whose ids are above `after`. */
void sim_identify_ns_list(uint32_t after, uint32_t namespaces, void *page);
void sim_identify_ns_desc(uint32_t nsid, unsigned identity, bool zoned, void *page);

#endif
