/* SPDX-License-Identifier: BSD-2-Clause */
/* Selects the CUDA device, or explains why there is none. Finds functions of the driver. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/exec_cuda/gq_cuda_int.h"

/*
 * Both variables must be set before the first CUDA call of the process. EAGER
 * loads kernels at once (see gq_kernels_load). The second one gives each stream
 * its own hardware queue: with the default of eight, a copy for which a kernel
 * waits could be queued behind that kernel.
 */
static void set_environment(void)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

static pthread_once_t environment_once = PTHREAD_ONCE_INIT;

/* Returns -ENODEV. */
static int cuda_device_explain(cudaError_t err, struct reason *why)
{
    int driver = 0;

    cudaGetLastError();
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
        return reason_set(why, -ENODEV, "no NVIDIA driver on this machine");
    return reason_set(why, -ENODEV, "%s", cudaGetErrorString(err));
}

int gq_probe(int cuda_device, struct reason *why)
{
    cudaError_t err;
    int n = 0;

    pthread_once(&environment_once, set_environment);
    err = cudaGetDeviceCount(&n);
    if (err != cudaSuccess)
        return cuda_device_explain(err, why);
    if (cuda_device < 0 || cuda_device >= n)
        return reason_set(why, -ENODEV, "CUDA device %d asked for, %d present", cuda_device, n);
    *why = (struct reason){0};
    return 0;
}

unsigned gq_devices(struct gq_device *out, unsigned max)
{
    struct cudaDeviceProp prop;
    struct reason why;
    unsigned n = 0;

    while (n < max && gq_probe((int)n, &why) == 0 &&
           cudaGetDeviceProperties(&prop, (int)n) == cudaSuccess) {
        memcpy(out[n].uuid, prop.uuid.bytes, sizeof(out->uuid));
        snprintf(out[n].name, sizeof(out->name), "%.63s", prop.name);
        if (cudaDeviceGetPCIBusId(out[n].bus_id, sizeof(out->bus_id), (int)n) != cudaSuccess) {
            out[n].bus_id[0] = '\0';
            cudaGetLastError();
        }
        n++;
    }
    return n;
}

/* Ordering for the device's own kernels suffices, since only they read buffers. */
static bool device_orders_writes(int device)
{
    int scope = cudaGPUDirectRDMAWritesOrderingNone;
    cudaError_t err =
        cudaDeviceGetAttribute(&scope, cudaDevAttrGPUDirectRDMAWritesOrdering, device);

    if (err != cudaSuccess)
        cudaGetLastError();
    return err == cudaSuccess && scope >= cudaGPUDirectRDMAWritesOrderingOwner;
}

/*
 * Creates the context. This is the first call that can fail for reasons outside
 * of the program.
 */
int gq_cuda_select(struct gq_cuda *cu, struct reason *why)
{
    struct cudaDeviceProp prop;
    cudaError_t err = cudaSetDevice(cu->device);

    if (err == cudaSuccess)
        err = cudaGetDeviceProperties(&prop, cu->device);
    if (err != cudaSuccess)
        return cuda_device_explain(err, why);
    snprintf(cu->exec.device, sizeof(cu->exec.device), "%.127s", prop.name);
    static_assert(sizeof(cu->exec.gpu_uuid) == sizeof(prop.uuid.bytes), "UUID of a device");
    memcpy(cu->exec.gpu_uuid, prop.uuid.bytes, sizeof(cu->exec.gpu_uuid));
    cu->exec.orders_writes = device_orders_writes(cu->device);
    return 0;
}

void (*gq_cuda_driver_function(const char *name))(void)
{
    enum cudaDriverEntryPointQueryResult found;
    void *fn = NULL;
    cudaError_t err = cudaGetDriverEntryPointByVersion(name, &fn, 12000, cudaEnableDefault, &found);

    if (err != cudaSuccess || found != cudaDriverEntryPointSuccess) {
        cudaGetLastError();
        return NULL;
    }
    return (void (*)(void))(uintptr_t)fn;
}
