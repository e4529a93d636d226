// The block that stays for reads that a host waits for, one after another.
#include "client/device/gd_pread.h"
#include "client/device/gd_service.h"

namespace
{

constexpr uint64_t kIdleNs = 200000;

} // namespace

// The first warp waits for a read, the others for it.
extern "C" __global__ void __launch_bounds__(GD_READ_QUEUES *GQ_LANES, 1)
    gpunvme_direct_serve(const __grid_constant__ struct gd_service_launch l)
{
    __shared__ union {
        uint32_t words[GQ_BOX_WORDS];
        struct gd_launch read;
    } piece;
    const struct gd_launch *read = &piece.read;

    for (uint32_t number = l.box.first;; number = gq_box_next(number)) {
        bool left = threadIdx.x < GQ_LANES && !gq_box_take(l.box.box, number, kIdleNs, piece.words);

        if (__syncthreads_or(left))
            break;
        int64_t bytes =
            gd_pread_block(&read->file, &read->buffer, read->addr, read->len, read->offset);

        if (threadIdx.x == 0)
            gd_store_result((int64_t *)l.answer,
                            (int64_t)((uint64_t)number << 32 | (uint32_t)bytes));
    }
    if (threadIdx.x == 0)
        gq_box_leave(&l.box);
}
