/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Prints Identify data and registers (Base 2.0, figures 275, 97 of NVM 1.0;
 * section 3.1.3).
 *
 * All data comes from a device and may be wrong: values are printed as they
 * are, and impossible ones are reported.
 */
#ifndef CLIENT_CLI_COMMON_PAGES_H
#define CLIENT_CLI_COMMON_PAGES_H

#include <stdint.h>
#include <sys/cdefs.h>

#include "client/cli/common/out.h"

__BEGIN_DECLS

/*
 * Prints an Identify Controller page into the open group. `page` has the 4096
 * bytes that CNS 01h returned. Stores the largest possible namespace id in *nn,
 * as the page states it.
 */
void cli_show_ctrlr(struct cli_out *o, const void *page, uint32_t *nn);
/*
 * Prints an Identify Namespace page: the 4096 bytes that CNS 00h returned for
 * nsid. command_set is its CSI, 0 if unknown. Returns NULL, or the reason why
 * the driver refuses the namespace.
 */
const char *cli_show_ns(struct cli_out *o, const void *page, uint32_t nsid, uint8_t command_set);

/* Describes a controller register in BAR0 (section 3.1.3). */
struct cli_reg {
    const char *key, *label;
    uint32_t offset;
    unsigned bytes; /* 4 or 8 */
};
#define CLI_REGS 16
extern const struct cli_reg cli_reg_table[CLI_REGS];

/* Prints `values`, one per register in the order of cli_reg_table. */
void cli_show_regs(struct cli_out *o, const uint64_t *values);

__END_DECLS

#endif
