/* SPDX-License-Identifier: BSD-2-Clause */
/* Checks a drive by its properties on the bus. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/check/cli_check.h"

#define BAR0_MIN 0x2000u /* registers and one page of doorbells */

static void check_pci_check_driver(struct check *c, const char *root, const struct pci_device *pci)
{
    struct reason why = {0};

    if (strcmp(pci->driver, "nvme") != 0 && strcmp(pci->driver, "vfio-pci") != 0) {
        check_add(c, CHECK_WARN, "driver", "hand it over: gpunvme bind ADDRESS", "%s drives it",
                  pci->driver[0] ? pci->driver : "no driver");
        return;
    }
    check_add(c, CHECK_OK, "driver", NULL, "%s drives it%s%s", pci->driver,
              pci->kernel_name[0] ? " as " : "", pci->kernel_name);
    if (!pci->kernel_name[0])
        return;
    int err = pci_check_unused(root, pci, &why);
    if (err == -EBUSY)
        check_add(c, CHECK_WARN, "in_use", "it cannot be taken while that is so", "%s", why.text);
    else if (err)
        check_add(c, CHECK_WARN, "in_use",
                  err == -EEXIST ? "gpunvme bind --force takes it all the same; mkfs erases it"
                                 : "run this as root",
                  "%s", why.text);
    else
        check_add(c, CHECK_OK, "in_use", NULL, "nothing uses it, and it bears no foreign data");
}

static void check_pci_check_group(struct check *c, const char *root, const struct pci_device *pci)
{
    struct reason why = {0};

    if (pci->iommu_group < 0) {
        check_add(
            c, CHECK_WARN, "group",
            "switch the IOMMU on; docs/hardware.md says what it means to do without (noiommu)",
            "no IOMMU guards it");
        return;
    }
    check_add(c, CHECK_OK, "group", NULL, "IOMMU group %d, %u device%s in it%s", pci->iommu_group,
              pci->group_devices, pci->group_devices == 1 ? "" : "s",
              pci->iommu_identity ? ", untranslated until VFIO takes it (iommu=pt)" : "");
    int err = pci_check_vfio(root, pci, &why);
    if (err == -EXDEV)
        check_add(c, CHECK_FAIL, "group_shared", "bind those too, or use another slot", "%s",
                  why.text);
}

static void check_pci_check_link(struct check *c, const struct pci_device *pci)
{
    if (!pci->link_speed[0] || !pci->link_width)
        check_add(c, CHECK_OK, "link", NULL, "PCIe link not said (an emulated drive?)");
    else
        check_that(c, pci->link_width >= pci->link_width_max, CHECK_WARN, "link",
                   "the slot, the riser or the BIOS limits it", "PCIe %s, x%u of x%u",
                   pci->link_speed, pci->link_width, pci->link_width_max);
}

static void check_bar(struct check *c, const struct pci_device *pci)
{
    check_that(c, pci->bar0_len >= BAR0_MIN, CHECK_FAIL, "bar0",
               "look at dmesg: the BIOS gave it no addresses", "BAR0 of %" PRIu64 " bytes",
               pci->bar0_len);
    check_that(c, pci->can_reset, CHECK_WARN, "reset", "a drive that hangs needs a power cycle",
               pci->can_reset ? "can be reset from outside" : "has no function level reset");
}

static void check_distance(struct check *c, const char *root, const struct pci_device *pci,
                           const struct pci_device *gpu)
{
    static const char *const ways[] = {"way not known", "behind the same PCIe switch",
                                       "in the same root complex", "in another root complex"};
    enum pci_distance d = pci_distance(root, pci->bdf, gpu->bdf);
    bool far = d == PCI_DISTANCE_FAR ||
               (pci->numa_node >= 0 && gpu->numa_node >= 0 && pci->numa_node != gpu->numa_node);

    check_that(c, !far, CHECK_WARN, "topology",
               "works, but transfers cross between processors or root complexes; use a slot near "
               "the GPU",
               "GPU %s: %s, NUMA nodes %d and %d", gpu->bdf, ways[d], pci->numa_node,
               gpu->numa_node);
}

void check_pci(struct check *c, const char *root, const struct pci_device *pci)
{
    struct pci_device *gpus;
    size_t n;

    if (!pci_is_nvme(pci)) {
        check_add(c, CHECK_FAIL, "pci", "gpunvme list shows the drives",
                  "%s: not an NVMe controller (class %06" PRIx32 ")", pci->bdf, pci->class_code);
        return;
    }
    check_add(c, CHECK_OK, "pci", NULL, "%s: NVMe controller %04x:%04x", pci->bdf, pci->vendor,
              pci->device);
    check_pci_check_driver(c, root, pci);
    check_pci_check_group(c, root, pci);
    check_bar(c, pci);
    check_pci_check_link(c, pci);
    (void)pci_list(root, pci_is_gpu, &gpus, &n);
    for (size_t i = 0; i < n; i++)
        check_distance(c, root, pci, &gpus[i]);
    free(gpus);
}
