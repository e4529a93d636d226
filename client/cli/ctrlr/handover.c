/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Parses the command lines of `bind` and `unbind`, which name one controller.
 */
#include "client/cli/ctrlr/handover.h"

#include <string.h>

int cli_handover(int argc, char **argv, const char *accepted, struct cli_options *options,
                 struct pci_device *pci)
{
    const char *text;
    char bdf[NVME_BDF_LEN], why[256] = "";
    int stop = cli_parse_one(argc, argv, accepted, options, "one PCI address", &text);

    if (stop)
        return stop;
    const char *address = strncmp(text, "vfio:", 5) == 0 ? text + 5 : text;
    if (pci_parse(address, bdf) != 0) {
        cli_error(text, "no PCI address, one looks like 0000:c1:00.0 (gpunvme list has them)");
        return 3;
    }
    return pci_find("", bdf, pci, why, sizeof(why)) ? cli_error(bdf, "%s", why) + 1 : 0;
}
