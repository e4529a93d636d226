/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Provides entry points of the CUDA executor in a build without a CUDA toolkit.
 */
#include <errno.h>
#include <stdio.h>

#include "cuda/gq_exec.h"

int gq_probe(int cuda_device, struct reason *why)
{
    (void)cuda_device;
    return reason_set(why, -ENODEV, "built without CUDA");
}

unsigned gq_devices(struct gq_device *out, unsigned max)
{
    (void)out;
    (void)max;
    return 0;
}

int gq_cuda_open(struct nvme_ctrlr *c, const struct gq_options *opts, unsigned max_runs,
                 struct gq_exec **out, struct reason *why)
{
    (void)c;
    (void)max_runs;
    (void)out;
    return gq_probe(opts->device, why);
}
