/* SPDX-License-Identifier: BSD-2-Clause */
/* What `bind` and `unbind` share: a command line that names one NVMe controller. */
#ifndef CLIENT_CLI_CTRLR_HANDOVER_H
#define CLIENT_CLI_CTRLR_HANDOVER_H

#include "blockdev/pci/pci.h"
#include "client/cli/common/cli.h"

/* 0 and the drive, or the status to exit with plus one. */
int cli_handover(int argc, char **argv, const char *accepted, struct cli_options *options,
                 struct pci_device *pci);

#endif
