/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds NVIDIA GPUs on the PCI bus and their distance from a drive. */
#include "client/cli/check/gpus.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blockdev/pci/pci_sysfs.h"

#define DEVICES       "%s/sys/bus/pci/devices/"
#define VENDOR_NVIDIA 0x10de
#define CLASS_DISPLAY 0x03u /* base class: VGA and 3D controllers */

#define BARS 6 /* lines of "resource" that are BARs */

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

    if (pci_read(root, bdf, &pci) != 0 || pci.vendor != VENDOR_NVIDIA ||
        pci.class_code >> 16 != CLASS_DISPLAY)
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

/*
 * Returns the path from its root complex to a device, such as
 * "pci0000:c0/0000:c0:01.1/0000:c1:00.0", or NULL. The caller frees it.
 */
static char *way_down(const char *root, const char *bdf)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), DEVICES "%s", root, bdf);
    char *full = realpath(path, NULL);
    char *start = full ? strstr(full, "/pci") : NULL;
    /* Skips the "/pci" of "/sys/bus/pci/devices". */
    while (start && strspn(start + 4, "0123456789abcdef") != 4)
        start = strstr(start + 1, "/pci");
    char *way = start ? strdup(start + 1) : NULL;
    free(full);
    return way;
}

/* Counts shared leading components, without those of the devices. */
static unsigned shared_components(const char *a, const char *b)
{
    unsigned n = 0;

    for (;; n++) {
        size_t len = strcspn(a, "/");
        if (!a[len] || strncmp(a, b, len) != 0 || b[len] != '/')
            return n;
        a += len + 1;
        b += len + 1;
    }
}

enum cli_distance cli_pci_distance(const char *root, const char *a, const char *b)
{
    char *ways[2] = {way_down(root, a), way_down(root, b)};
    enum cli_distance d = CLI_DISTANCE_UNKNOWN;

    if (ways[0] && ways[1]) {
        unsigned n = shared_components(ways[0], ways[1]);
        /*
         * One shared component is the root complex. A second one is a root
         * port, so there is a switch below it.
         */
        d = n >= 2 ? CLI_DISTANCE_SWITCH : n == 1 ? CLI_DISTANCE_ROOT : CLI_DISTANCE_FAR;
    }
    free(ways[0]);
    free(ways[1]);
    return d;
}

const char *cli_distance_text(enum cli_distance d)
{
    static const char *const texts[] = {"behind the same PCIe switch", "in the same root complex",
                                        "in another root complex", "way not known"};

    return texts[d];
}
