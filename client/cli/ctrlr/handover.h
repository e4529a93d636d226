/* SPDX-License-Identifier: BSD-2-Clause */
/* The command lines of `bind` and `unbind`, which name one NVMe controller. */
#ifndef CLIENT_CLI_CTRLR_HANDOVER_H
#define CLIENT_CLI_CTRLR_HANDOVER_H

#include "blockdev/pci/pci.h"
#include "client/cli/common/cli.h"

/* Finds the drive. Returns 0, or 1 plus the exit status of the command. */
int cli_handover(int argc, char **argv, const char *accepted, struct cli_options *options,
                 struct pci_device *pci);

#endif
