/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Identify data and registers in words (Base 2.0, figures 275, 97 of NVM 1.0; section 3.1.3).
 *
 * All of it comes from a device and may lie: it is shown as it is, and what cannot be is said.
 */
#ifndef CLIENT_CLI_COMMON_PAGES_H
#define CLIENT_CLI_COMMON_PAGES_H

#include <stdint.h>

#include "client/cli/common/out.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * page: 4096 bytes, as CNS 01h returned them. Into the group that is open. *nn: the largest id that
 * a namespace can have, as the page says.
 */
void cli_show_ctrlr(struct cli_out *o, const void *page, uint32_t *nn);
/*
 * page: 4096 bytes, as CNS 00h returned them for nsid; command_set: its CSI, 0 where not known.
 * Returns NULL, or why the driver refuses the namespace.
 */
const char *cli_show_ns(struct cli_out *o, const void *page, uint32_t nsid, uint8_t command_set);

/* One register of a controller (section 3.1.3), in BAR0. */
struct cli_reg {
    const char *key, *label;
    uint32_t offset;
    unsigned bytes; /* 4 or 8 */
};
#define CLI_REGS 16
extern const struct cli_reg cli_reg_table[CLI_REGS];

/* values: one a register, in the order of cli_reg_table. */
void cli_show_regs(struct cli_out *o, const uint64_t *values);

#ifdef __cplusplus
}
#endif

#endif
