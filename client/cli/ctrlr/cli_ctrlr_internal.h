/* SPDX-License-Identifier: BSD-2-Clause */
/* Functions for cli_ctrlr.c from the half that includes the transports. */
#ifndef CLIENT_CLI_CTRLR_CLI_CTRLR_INTERNAL_H
#define CLIENT_CLI_CTRLR_CLI_CTRLR_INTERNAL_H

#include "client/cli/ctrlr/cli_ctrlr.h"

int cli_transport_bar(const struct cli_target *t, bool noiommu, struct cli_bar *out, char *why,
                      size_t len);
uint64_t cli_transport_read(void *transport, uint32_t offset, unsigned bytes);
void cli_transport_close(void *transport);

#endif
