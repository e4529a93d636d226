/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds the lowest bridge between two PCI devices. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blockdev/pci/pci.h"

#define DEVICES "%s/sys/bus/pci/devices/"

/*
 * Returns the path from its root complex to a device, such as
 * "pci0000:c0/0000:c0:01.1/0000:c1:00.0", or NULL. The caller frees it.
 */
static char *pci_way_down(const char *root, const char *bdf)
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

enum pci_distance pci_distance(const char *root, const char *a, const char *b)
{
    char *ways[2] = {pci_way_down(root, a), pci_way_down(root, b)};
    enum pci_distance d = PCI_DISTANCE_UNKNOWN;

    if (ways[0] && ways[1]) {
        unsigned n = shared_components(ways[0], ways[1]);
        /*
         * One shared component is the root complex. A second one is a root
         * port, so there is a switch below it.
         */
        d = n >= 2 ? PCI_DISTANCE_SWITCH : n == 1 ? PCI_DISTANCE_ROOT : PCI_DISTANCE_FAR;
    }
    free(ways[0]);
    free(ways[1]);
    return d;
}
