/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads the properties of PCI devices from sysfs. */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blockdev/pci/pci.h"
#include "blockdev/pci/pci_sysfs.h"
#include "support/minmax.h"

#define CLASS_BRIDGE  0x0604u /* class and subclass of a PCI-to-PCI bridge */
#define CLASS_DISPLAY 0x03u   /* base class: VGA and 3D controllers */
#define VENDOR_NVIDIA 0x10de
#define DOMAIN        "0000:"
#define DOMAIN_LEN    5
#define BARS          6
#define GROUP_NOIOMMU "vfio-noiommu"

#define DEVICES "%s/sys/bus/pci/devices/"

static bool is_address(const char *s)
{
    static const char shape[] = "xxxx:xx:xx.x";

    for (size_t i = 0; i < sizeof(shape) - 1; i++) {
        bool fits = shape[i] == 'x' ? isxdigit((unsigned char)s[i]) != 0 : s[i] == shape[i];

        if (!fits)
            return false;
    }
    /* The device number has 5 bits, the function number 3. */
    return s[NVME_BDF_LEN - 1] == 0 && s[8] <= '1' && s[11] <= '7';
}

int pci_parse(const char *text, char bdf[NVME_BDF_LEN])
{
    size_t len = strlen(text), missing = NVME_BDF_LEN - 1 - len;

    if (missing != 0 && missing != DOMAIN_LEN)
        return -EINVAL;
    memcpy(bdf, DOMAIN, missing);
    memcpy(bdf + missing, text, len + 1);
    for (char *c = bdf; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    return is_address(bdf) ? 0 : -EINVAL;
}

/* Returns an attribute as a number up to max, else 0. */
static uint64_t attribute(const char *root, const char *bdf, const char *name, int base,
                          uint64_t max)
{
    int64_t value;

    if (pci_sysfs_number(&value, base, DEVICES "%s/%s", root, bdf, name) || value < 0)
        return 0;
    return (uint64_t)value <= max ? (uint64_t)value : 0;
}

static uint16_t id(const char *root, const char *bdf, const char *name)
{
    return (uint16_t)attribute(root, bdf, name, 16, UINT16_MAX);
}

static bool is_bridge(const char *root, const char *bdf)
{
    return attribute(root, bdf, "class", 16, 0xffffff) >> 8 == CLASS_BRIDGE;
}

/* Each of the first lines of "resource" has the first address, last address and flags of a BAR. */
static void read_bars(const char *root, struct pci_device *p)
{
    char path[PATH_MAX], line[128], *end;

    snprintf(path, sizeof(path), DEVICES "%s/resource", root, p->bdf);
    FILE *f = fopen(path, "re");
    for (int i = 0; f && i < BARS && fgets(line, sizeof(line), f); i++) {
        uint64_t first = strtoull(line, &end, 16), last = strtoull(end, NULL, 16);
        uint64_t len = last > first ? last - first + 1 : 0;
        if (i == 0)
            p->bar0_len = len;
        p->largest_bar = max_u64(p->largest_bar, len);
    }
    if (f)
        fclose(f);
}

/* Reads the kernel's name for the controller from "nvme". */
static void read_kernel_name(const char *root, struct pci_device *p)
{
    struct sysfs_names names;

    if (pci_sysfs_names(&names, DEVICES "%s/nvme", root, p->bdf))
        return;
    if (names.n > 0 && strlen(names.entries[0]->d_name) < sizeof(p->kernel_name))
        snprintf(p->kernel_name, sizeof(p->kernel_name), "%.31s", names.entries[0]->d_name);
    pci_sysfs_printable(p->kernel_name);
    pci_sysfs_names_free(&names);
}

static unsigned count_group(const char *root, int group)
{
    struct sysfs_names names;
    unsigned count = 0;

    if (pci_sysfs_names(&names, "%s/sys/kernel/iommu_groups/%d/devices", root, group))
        return 0;
    for (int i = 0; i < names.n; i++)
        count += !is_bridge(root, names.entries[i]->d_name);
    pci_sysfs_names_free(&names);
    return count;
}

/* VFIO's group for a device without an IOMMU does not count. */
static void read_group(const char *root, struct pci_device *p)
{
    char text[SYSFS_NAME], *end;
    long group;

    p->iommu_group = -1;
    if (pci_sysfs_link(text, sizeof(text), DEVICES "%s/iommu_group", root, p->bdf))
        return;
    group = strtol(text, &end, 10);
    if (end == text || *end || group < 0 || group > INT32_MAX)
        return;
    if (pci_sysfs_text(text, sizeof(text), "%s/sys/kernel/iommu_groups/%ld/name", root, group) ==
            0 &&
        strcmp(text, GROUP_NOIOMMU) == 0)
        return;
    p->iommu_group = (int)group;
    p->group_devices = count_group(root, p->iommu_group);
    pci_sysfs_text(text, sizeof(text), "%s/sys/kernel/iommu_groups/%ld/type", root, group);
    p->iommu_identity = strcmp(text, "identity") == 0;
}

static void read_link(const char *root, struct pci_device *p)
{
    pci_sysfs_text(p->link_speed, sizeof(p->link_speed), DEVICES "%s/current_link_speed", root,
                   p->bdf);
    p->link_width = (unsigned)attribute(root, p->bdf, "current_link_width", 10, 32);
    p->link_width_max = (unsigned)attribute(root, p->bdf, "max_link_width", 10, 32);
}

int pci_read(const char *root, const char *bdf, struct pci_device *out)
{
    int64_t node;

    memset(out, 0, sizeof(*out));
    if (pci_parse(bdf, out->bdf))
        return -EINVAL;
    bdf = out->bdf;
    if (!pci_sysfs_exists(DEVICES "%s/vendor", root, bdf))
        return -ENODEV;
    out->vendor = id(root, bdf, "vendor");
    out->device = id(root, bdf, "device");
    out->subsystem_vendor = id(root, bdf, "subsystem_vendor");
    out->subsystem_device = id(root, bdf, "subsystem_device");
    out->class_code = (uint32_t)attribute(root, bdf, "class", 16, 0xffffff);
    read_bars(root, out);
    pci_sysfs_link(out->driver, sizeof(out->driver), DEVICES "%s/driver", root, bdf);
    read_kernel_name(root, out);
    read_group(root, out);
    read_link(root, out);
    out->can_reset = pci_sysfs_exists(DEVICES "%s/reset", root, bdf);
    out->numa_node = -1;
    if (pci_sysfs_number(&node, 10, DEVICES "%s/numa_node", root, bdf) == 0 && node >= 0 &&
        node <= INT16_MAX)
        out->numa_node = (int)node;
    return 0;
}

bool pci_is_nvme(const struct pci_device *p)
{
    return p->class_code == PCI_CLASS_NVME;
}

bool pci_is_gpu(const struct pci_device *p)
{
    return p->vendor == VENDOR_NVIDIA && p->class_code >> 16 == CLASS_DISPLAY;
}

int pci_find(const char *root, const char *bdf, struct pci_device *out, struct reason *why)
{
    int rc = pci_read(root, bdf, out);

    if (rc == -EINVAL)
        return reason_set(why, rc, "no PCI address: one looks like 0000:c1:00.0");
    if (rc)
        return reason_set(why, rc, "no such PCI device: lspci -D lists them");
    if (!pci_is_nvme(out))
        return reason_set(why, -ENODEV, "not an NVMe controller (its class is %06x, not %06x)",
                          out->class_code, PCI_CLASS_NVME);
    return 0;
}

int pci_list(const char *root, bool (*is)(const struct pci_device *p), struct pci_device **out,
             size_t *n)
{
    struct sysfs_names names;
    struct pci_device *list;
    int rc = pci_sysfs_names(&names, "%s/sys/bus/pci/devices", root);

    *out = NULL;
    *n = 0;
    if (rc)
        return rc == -ENOENT ? 0 : rc; /* a machine without PCI */
    list = calloc((size_t)names.n + 1, sizeof(*list));
    /* Names sort like addresses. A device may vanish meanwhile. */
    for (int i = 0; list && i < names.n; i++)
        *n += pci_read(root, names.entries[i]->d_name, &list[*n]) == 0 && is(&list[*n]);
    pci_sysfs_names_free(&names);
    *out = list;
    return list ? 0 : -ENOMEM;
}

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
    /* The loop skips the "/pci" of "/sys/bus/pci/devices". */
    while (start && strspn(start + 4, "0123456789abcdef") != 4)
        start = strstr(start + 1, "/pci");
    char *way = start ? strdup(start + 1) : NULL;
    free(full);
    return way;
}

/*
 * Returns how many leading components the two paths share. Their last components,
 * which are the devices, do not count.
 */
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
