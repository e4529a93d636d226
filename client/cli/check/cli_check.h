/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * `gpunvme check` finds obstacles to a mount on this machine or of this drive.
 * A finding is a fact with a level (OK, WARN, FAIL), and for the last two the
 * next step.
 *
 * `root` is as in blockdev/pci/pci.h: "" for the running system, or a directory
 * tree for tests.
 */
#ifndef CLIENT_CLI_CHECK_CLI_CHECK_H
#define CLIENT_CLI_CHECK_CLI_CHECK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "blockdev/pci/pci.h"
#include "client/cli/common/out.h"

__BEGIN_DECLS

enum check_level { CHECK_OK, CHECK_WARN, CHECK_FAIL };

struct check_finding {
    enum check_level level;
    const char *id; /* stable, for scripts */
    char text[320];
    char advice[320]; /* empty if there is nothing to do */
};

struct check {
    struct check_finding *all;
    size_t n;
    enum check_level worst;
};

/*
 * Adds a finding; advice may be NULL. If memory is exhausted, the finding is
 * lost and the check has failed.
 */
void check_add(struct check *c, enum check_level level, const char *id, const char *advice,
               const char *text, ...) __attribute__((format(printf, 5, 6)));
/* Adds a finding that is OK without advice, or else has the level and the advice. */
#define check_that(c, ok, otherwise, id, advice, ...) \
    check_add(c, (ok) ? CHECK_OK : (otherwise), id, (ok) ? NULL : (advice), __VA_ARGS__)
void check_free(struct check *c);
void check_print(const struct check *c, struct cli_out *o);

/* Checks IOMMU, VFIO, memory limits, huge pages, FUSE and lockdown. */
void check_machine(struct check *c, const char *root);
/* Checks the GPUs on the bus and NVIDIA's kernel modules. */
void check_gpu(struct check *c, const char *root);
/* Checks the CUDA driver of this process. */
void check_cuda(struct check *c);
/* Checks NVIDIA's cuFile. `path`: a file that it should accept, or NULL. */
void check_cufile(struct check *c, const char *root, const char *path);
/*
 * Checks the properties of one drive on the bus: class, driver, group, link,
 * BAR0, use, and distance to the GPUs.
 */
void check_pci(struct check *c, const char *root, const struct pci_device *pci);
/*
 * Check an Identify Controller and an Identify Namespace page as the controller
 * returned them. command_set is the CSI of the namespace, 0 if unknown.
 */
void check_ctrlr_page(struct check *c, const void *page);
void check_ns_page(struct check *c, const void *page, uint32_t nsid, uint8_t command_set);
/* Checks the number of DMA regions; 0: no limit is known. */
void check_regions(struct check *c, unsigned limit);
/* Reports the driver's workarounds for the controller (enum nvme_quirk). */
void check_quirks(struct check *c, unsigned quirks);
/* Conditions that determine how a mount of the controller runs its queues. */
struct check_executor {
    bool kernel;  /* the kernel's driver or no driver has the drive */
    bool noiommu; /* the drive reaches only the daemon's own memory */
    /* Device whose kernels drive the queues; NULL: see no_gpu. */
    const char *gpu;
    const char *no_gpu;
    bool rings; /* gpu can map the controller's doorbells */
    bool mmio;  /* doorbells are PCI registers, not memory of a server */
};
/* Reports tier and executor of a mount with the default options. */
void check_tier(struct check *c, const struct check_executor *x);
/* Checks the register CAP. */
void check_cap(struct check *c, uint64_t cap);

__END_DECLS

#endif
