/*
 * `gpunvme check`: the obstacles between this machine, or this drive, and a mount. A finding is a
 * fact, its meaning (OK, WARN, FAIL), and for the last two the next step.
 *
 * `root` is as in blockdev/pci/pci.h: "" for the running system, a tree of their own for tests.
 */
#ifndef CLIENT_CLI_CLI_CHECK_H
#define CLIENT_CLI_CLI_CHECK_H

#include <stddef.h>
#include <stdint.h>

#include "blockdev/pci/pci.h"
#include "client/cli/cli_ctrlr.h"
#include "client/cli/out.h"

#ifdef __cplusplus
extern "C" {
#endif

enum check_level { CHECK_OK, CHECK_WARN, CHECK_FAIL };

struct check_finding {
    enum check_level level;
    const char *id; /* stable, for scripts */
    char text[320];
    char advice[320]; /* empty when there is nothing to do */
};

struct check {
    struct check_finding *all;
    size_t n;
    enum check_level worst;
};

/* advice may be NULL. When memory runs out the finding is lost and the check has failed. */
void check_add(struct check *c, enum check_level level, const char *id, const char *advice,
               const char *text, ...) __attribute__((format(printf, 5, 6)));
void check_free(struct check *c);
void check_print(const struct check *c, struct cli_out *o);

/* IOMMU, VFIO, memory limits, huge pages, FUSE, lockdown. */
void check_machine(struct check *c, const char *root);
/* GPUs on the bus, and NVIDIA's kernel modules. */
void check_gpu(struct check *c, const char *root);
/* The CUDA driver of this process. */
void check_cuda(struct check *c);
/* One drive, as the bus shows it: class, driver, group, link, BAR0, use, distance to the GPUs. */
void check_pci(struct check *c, const char *root, const struct nvme_pci *pci);
/* Identify Controller, and a namespace: pages as the controller returned them. */
void check_ctrlr_page(struct check *c, const void *page);
void check_ns_page(struct check *c, const void *page, uint32_t nsid);
/* The register CAP. */
void check_cap(struct check *c, uint64_t cap);

#ifdef __cplusplus
}
#endif

#endif
