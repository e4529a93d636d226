/* SPDX-License-Identifier: BSD-2-Clause */
/* Chooses the GPU of a program's allocations and leases among those of the mount. */
#include "client/lib/mount_gpu.h"

#include <errno.h>
#include <string.h>

#include "client/lib/error.h"

/* Returns the entry of the GPU with this UUID, or NULL. */
static const struct gpunvme_gpu *find_uuid(const struct gpunvme_ioc_gpus *gpus,
                                           const uint8_t uuid[16])
{
    for (uint32_t i = 0; i < gpus->count && i < GPUNVME_GPUS_MAX; i++) {
        if (memcmp(gpus->gpus[i].uuid, uuid, sizeof(gpus->gpus[i].uuid)) == 0)
            return &gpus->gpus[i];
    }
    return NULL;
}

static const struct gpunvme_gpu *find_current(struct cuda_driver *cu,
                                              const struct gpunvme_ioc_gpus *gpus, int *device)
{
    uint8_t uuid[16];

    *device = cuda_driver_current(cu);
    if (*device == CUDA_NO_DEVICE || cuda_driver_uuid(cu, *device, uuid))
        return NULL;
    return find_uuid(gpus, uuid);
}

static const struct gpunvme_gpu *find_first(struct cuda_driver *cu,
                                            const struct gpunvme_ioc_gpus *gpus, int *device)
{
    for (uint32_t i = 0; i < gpus->count && i < GPUNVME_GPUS_MAX; i++) {
        const struct gpunvme_gpu *gpu = &gpus->gpus[i];
        if (gpu->state != GPUNVME_GPU_LOST && cuda_driver_find(cu, gpu->uuid, device) == 0)
            return gpu;
    }
    return NULL;
}

int mount_gpu_choose(struct connection *g, struct mount_gpu *out)
{
    struct gpunvme_ioc_gpus gpus = {.count = 0};
    struct cuda_driver *cu;

    *out = (struct mount_gpu){CUDA_NO_DEVICE, g->info.lease_tier};
    if (g->info.executor != GPUNVME_EXECUTOR_CUDA)
        return 0;
    int err = gpunvme_cuda(g, &cu);
    if (err)
        return err;
    err = gpunvme_ioctl(g->fd, GPUNVME_IOC_GPUS, &gpus, sizeof(gpus));
    if (err)
        return gpunvme_fail(err, "GPUS: %s", strerror(-err));
    const struct gpunvme_gpu *gpu = find_current(cu, &gpus, &out->device);
    if (!gpu)
        gpu = find_first(cu, &gpus, &out->device);
    if (!gpu)
        return gpunvme_fail(-ENODEV, "this process sees no GPU of the mount "
                                     "(CUDA_VISIBLE_DEVICES, or -o gpus= of the mount)");
    out->lease_tier = gpu->lease_tier;
    return 0;
}
