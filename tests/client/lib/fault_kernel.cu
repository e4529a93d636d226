/* SPDX-License-Identifier: BSD-2-Clause */
/* Runs a kernel that faults. Tests check that only its process loses transfers. */
#include "tests/client/lib/fault_kernel.h"

#include <cuda_runtime.h>

namespace
{

__global__ void store_to(int *address)
{
    *address = 1;
}

} // namespace

extern "C" int fault_kernel_run(void)
{
    store_to<<<1, 1>>>((int *)4096);
    return (int)cudaDeviceSynchronize();
}
