/* SPDX-License-Identifier: BSD-2-Clause */
// Implements the persistent kernel, which executes reads for waiting threads of the host. Each
// block serves one slot.
#include "client/device/gd_serve.h"

static __device__ struct gq_service_stay stay;

extern "C" __global__ void __launch_bounds__(GQ_LANES)
    gpunvme_direct_serve(const __grid_constant__ struct gq_service_launch l)
{
    const uint64_t began_ns = GQ_UNIFORM64(gq_clock_ns());
    uint32_t number = 0;

    if (threadIdx.x == 0)
        number = gq_service_begin(&l, &stay, blockIdx.x, began_ns);
    number = gd_serve(&l, &stay, blockIdx.x, began_ns, GQ_UNIFORM32(number));
    if (threadIdx.x == 0)
        gq_service_leave(&l, &stay, blockIdx.x, number);
}
