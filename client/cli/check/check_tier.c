/* SPDX-License-Identifier: BSD-2-Clause */
/* Reports the executor and the tier of a mount of a controller. */
#include "client/cli/check/cli_check.h"

/*
 * Controllers of VFIO and vfio-user cannot reach GPU memory: the transports'
 * map() refuses it.
 */
#define REACH "the controller reaches host memory only, so data in GPU memory is staged there"

static void check_tier_of_gpu(struct check *c, const struct check_executor *x)
{
    if (x->rings)
        check_add(c, CHECK_OK, "tier", NULL, "tier 1, the GPU (%s) runs the queues: %s", x->gpu,
                  REACH);
    else
        check_add(c, CHECK_WARN, "tier",
                  x->mmio ? "see the line doorbells, and docs/hardware.md"
                          : "place the directory of the server's socket on tmpfs (/dev/shm)",
                  "tier 0, the GPU (%s) runs the queues, and a CPU thread rings the doorbells, "
                  "which CUDA does not map; %s",
                  x->gpu, REACH);
}

void check_tier(struct check *c, const struct check_executor *x)
{
    const char *bounce = "reads into GPU memory pass through host memory of the daemon";

    if (x->kernel)
        check_add(c, CHECK_WARN, "tier", "hand it over: gpunvme bind ADDRESS",
                  "none, no executor runs on a drive that is not bound to vfio-pci: %s", bounce);
    else if (x->noiommu)
        check_add(c, CHECK_WARN, "tier", "switch the IOMMU on (docs/hardware.md)",
                  "none, no executor runs without an IOMMU: %s", bounce);
    else if (x->gpu)
        check_tier_of_gpu(c, x);
    else
        check_add(c, CHECK_OK, "tier", NULL,
                  "tier 1, the CPU executor runs the queues, its buffers are in host memory: %s",
                  x->no_gpu);
}
