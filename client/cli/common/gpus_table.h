/* SPDX-License-Identifier: BSD-2-Clause */
/* Prints the table of a mount's GPUs for commands. */
#ifndef CLIENT_CLI_COMMON_GPUS_TABLE_H
#define CLIENT_CLI_COMMON_GPUS_TABLE_H

#include "client/cli/common/out.h"
#include "gpunvme/gpunvme_ioctl.h"

/* Prints a row for each GPU, in JSON with the key "gpus". */
void cli_gpus_table(struct cli_out *out, const struct gpunvme_ioc_gpus *gpus);

#endif
