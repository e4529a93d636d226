/* SPDX-License-Identifier: BSD-2-Clause */
// The persistent kernel: reads for which threads of a host wait. Each block serves one slot.
#include "client/device/gd_pread.h"
#include "client/device/gd_serve.h"

static __device__ struct gq_service_stay stay;

/*
 * The first warp serves reads of a single command; the other warps wait for it at a barrier. All
 * warps meet there for any other read, and for the end.
 */
extern "C" __global__ void __launch_bounds__(GD_READ_QUEUES *GQ_LANES, 1)
    gpunvme_direct_serve(const __grid_constant__ struct gd_service_launch l)
{
    __shared__ struct gd_serve_shared shared;
    const uint64_t began_ns = GQ_UNIFORM64(gq_clock_ns());

    if (threadIdx.x == 0)
        shared.number = gq_service_begin(&l.service, &stay, blockIdx.x, began_ns);
    __syncthreads();
    for (;;) {
        bool left = threadIdx.x < GQ_LANES && !gd_serve(&l, &stay, blockIdx.x, began_ns, &shared);

        if (__syncthreads_or(left))
            break;
        const struct gpunvme_device_file f =
            gd_load_file((const struct gpunvme_device_file *)shared.request.read.file);
        int64_t got = gd_pread_block(&f, {.known = NULL,
                                          .dst = shared.request.read.addr,
                                          .len = shared.request.read.len,
                                          .offset = shared.request.read.offset,
                                          .defers = false});
        int err = got < 0 ? (int)got : 0;

        if (threadIdx.x == 0) {
            gd_store_result((int64_t *)&l.service.memory->slots[blockIdx.x].answer,
                            (int64_t)gd_answer(shared.number, err));
            gq_service_touch(&stay, gq_clock_ns());
        }
        __syncthreads(); /* the request has been read */
    }
    if (threadIdx.x == 0)
        gq_service_leave(&l.service, &stay, blockIdx.x, shared.number);
}
