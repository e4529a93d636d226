/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds NVIDIA GPUs on the PCI bus. */
#include "client/cli/check/gpus.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blockdev/pci/pci_sysfs.h"

#define DEVICES "%s/sys/bus/pci/devices/"
#define BARS    6 /* lines of "resource" that are BARs */

/*
 * Returns the size of the largest BAR. It is the window into the memory in
 * every generation, although its number differs.
 */
static uint64_t window_len(const char *root, const char *bdf)
{
    char path[PATH_MAX], line[128], *end;
    uint64_t largest = 0;

    snprintf(path, sizeof(path), DEVICES "%s/resource", root, bdf);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    for (int i = 0; i < BARS && fgets(line, sizeof(line), f); i++) {
        uint64_t first = strtoull(line, &end, 16), last = strtoull(end, NULL, 16);
        if (last > first && last - first >= largest)
            largest = last - first + 1;
    }
    fclose(f);
    return largest;
}

static bool read_gpu(const char *root, const char *bdf, struct cli_gpu *out)
{
    struct pci_device pci;

    if (pci_read(root, bdf, &pci) != 0 || !pci_is_gpu(&pci))
        return false;
    *out = (struct cli_gpu){.numa_node = pci.numa_node, .window_len = window_len(root, pci.bdf)};
    memcpy(out->bdf, pci.bdf, sizeof(out->bdf));
    memcpy(out->driver, pci.driver, sizeof(out->driver));
    return true;
}

unsigned cli_gpus(const char *root, struct cli_gpu gpus[CLI_GPUS_MAX])
{
    struct sysfs_names names;
    unsigned n = 0;

    if (pci_sysfs_names(&names, "%s/sys/bus/pci/devices", root) != 0)
        return 0;
    for (int i = 0; i < names.n && n < CLI_GPUS_MAX; i++)
        n += read_gpu(root, names.entries[i]->d_name, &gpus[n]);
    pci_sysfs_names_free(&names);
    return n;
}

const char *cli_distance_text(enum pci_distance d)
{
    static const char *const texts[] = {"way not known", "behind the same PCIe switch",
                                        "in the same root complex", "in another root complex"};

    return texts[d];
}
