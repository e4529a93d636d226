/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Stands in for the GPUs of the mount and of the process, from which the
 * library chooses.
 */
#include "tests/client/lib/mount_gpu_rig.h"

#include <errno.h>
#include <string.h>

#include "client/lib/mount_gpu.h"

static const struct mount_gpu_rig *rig;

int gpunvme_cuda(struct connection *g, struct cuda_driver **out)
{
    (void)g;
    *out = NULL;
    return 0;
}

/* The lease tier of a GPU is its place in the list. */
int gpunvme_ioctl(int fd, unsigned long request, void *arg, uint32_t size)
{
    struct gpunvme_ioc_gpus *out = arg;

    (void)fd;
    if (request != GPUNVME_IOC_GPUS || size != sizeof(*out))
        return -ENOTTY;
    *out = (struct gpunvme_ioc_gpus){.count = (uint32_t)strlen(rig->mount)};
    for (uint32_t i = 0; i < out->count; i++) {
        memset(out->gpus[i].uuid, rig->mount[i], 16);
        out->gpus[i].state =
            strchr(rig->lost, rig->mount[i]) ? GPUNVME_GPU_LOST : GPUNVME_GPU_CLOSED;
        out->gpus[i].lease_tier = i;
    }
    return 0;
}

int cuda_driver_current(struct cuda_driver *cu)
{
    (void)cu;
    return rig->current;
}

int cuda_driver_uuid(struct cuda_driver *cu, int device, uint8_t uuid[16])
{
    (void)cu;
    memset(uuid, rig->process[device], 16);
    return 0;
}

int cuda_driver_find(struct cuda_driver *cu, const uint8_t uuid[16], int *device)
{
    const char *at = strchr(rig->process, uuid[0]);

    (void)cu;
    if (!at)
        return -ENODEV;
    *device = (int)(at - rig->process);
    return 0;
}

int mount_gpu_rig_choose(const struct mount_gpu_rig *r, uint32_t *lease_tier)
{
    struct connection g = {
        .info = {.executor = r->cpu ? GPUNVME_EXECUTOR_CPU : GPUNVME_EXECUTOR_CUDA,
                 .lease_tier = 7}};
    struct mount_gpu gpu;

    rig = r;
    int err = mount_gpu_choose(&g, &gpu);
    *lease_tier = gpu.lease_tier;
    return err ? err : gpu.device;
}
