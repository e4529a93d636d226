/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef TESTS_CLIENT_LIB_GPU_MOUNT_H
#define TESTS_CLIENT_LIB_GPU_MOUNT_H

#include <cuda_runtime_api.h>

#include <string>

#include "tests/e2e/mounted.h"

// The reason why this machine cannot mount or has no GPU; empty when both are there.
inline std::string why_no_gpu_mount()
{
    int devices = 0;

    std::string why = why_no_mount();

    if (why.empty() && (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0))
        why = "no CUDA device";
    return why;
}

// Skips the test also where there is no GPU.
class GpuMountedTest : public MountedTest
{
  protected:
    std::string why_not() override { return why_no_gpu_mount(); }
};

#endif
