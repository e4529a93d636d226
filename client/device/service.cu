// The block that stays for reads that a host waits for, one after another.
#include "client/device/gd_pread.h"
#include "client/device/gd_service.h"

namespace
{

constexpr uint64_t kIdleNs = 200000;

} // namespace

/*
 * The first warp waits for a read, the others for it, at a barrier. They meet there for a read that
 * takes several warps, and for the end; what one warp can do, it does without them.
 */
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
        bool alone =
            threadIdx.x < GQ_LANES && !left && gd_queues_for(&read->file.set, read->len) == 1;

        if (!alone && __syncthreads_or(left))
            break;
        struct gd_block k = gd_block_for(&read->file.set, read->len);
        int64_t bytes = (int64_t)read->len;
        int err =
            gd_pread_share(k, &read->file, &read->buffer, read->addr, read->len, read->offset);

        if (!alone)
            err = gd_worst(k, err);
        if (err)
            bytes = err;
        int64_t answer = (int64_t)((uint64_t)number << 32 | (uint32_t)bytes);
        if (threadIdx.x == 0 && alone)
            gd_store_own_result((int64_t *)l.answer, answer);
        else if (threadIdx.x == 0)
            gd_store_result((int64_t *)l.answer, answer);
    }
    if (threadIdx.x == 0)
        gq_box_leave(&l.box);
}
