/* SPDX-License-Identifier: BSD-2-Clause */
// Persistent kernel of one block: reads for which a host waits, one after another.
#define GQ_COPY_LONG 4u /* long staged reads have a kernel of their own: staged.cu */
#include "client/device/gd_persistent.h"
#include "client/device/gd_pread.h"

/*
 * The first warp serves reads of a single command, and the second one helps it with pages; the
 * other warps wait for both at a barrier. All warps meet there for any other read, and for the end.
 */
extern "C" __global__ void __launch_bounds__(GD_READ_QUEUES *GQ_LANES, 1)
    gpunvme_direct_serve(const __grid_constant__ struct gd_service_launch l)
{
    __shared__ struct gd_persistent_shared shared;
    const uint64_t until_ns = gq_clock_ns() + GD_SERVE_NS;

    for (uint32_t number = l.slot.first;; number = gq_tagged_slot_next(number)) {
        bool left = false;

        if (threadIdx.x < GQ_LANES)
            left = !gd_persistent(&l, until_ns, &number, &shared);
        else if (threadIdx.x < GD_PAGE_WARPS * GQ_LANES)
            gd_page_help(&shared.job);
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

        if (threadIdx.x == 0)
            gd_store_result((int64_t *)l.answer, (int64_t)gd_answer(number, err));
    }
    if (threadIdx.x == 0)
        gq_tagged_slot_leave(&l.slot);
}
