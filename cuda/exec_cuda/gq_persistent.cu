/* SPDX-License-Identifier: BSD-2-Clause */
/* The persistent kernel, which drives short lists from tagged slots. */
#include "cuda/exec_cuda/gq_persistent.h"

/* Short lists have a waiting caller: one entry per lane is the fastest. */
#define GQ_EACH 1u
#include "cuda/queue/gq_bytes.h"
#include "cuda/queue/gq_list_protocol.h"

namespace
{

constexpr uint32_t kClockPolls = 8; /* one poll in so many reads the clock */

/* Makes the copy of a list whose only command has succeeded. */
__device__ __forceinline__ void make_copy(const struct gq_persistent_list *list)
{
    const struct gq_copy copy = list->one.copy;

    if (list->copies && gq_load_flag(&list->run.results[0]) == GQ_ENDED)
        gq_copy_4k(copy.dst, copy.src, copy.len, threadIdx.x, GQ_LANES);
    __syncwarp();
}

/*
 * Called by the warp. Drives a list like drive_queues() in gq_kernels.cu. The
 * lanes have converged after the copy, so the fence of gq_end() orders the
 * copied bytes before the outcome.
 */
__device__ __forceinline__ void drive_list(struct gq_persistent_list *list)
{
    const struct gq_port port = list->port;
    struct gq_state first = {.sq_tail = list->sq_tail,
                             .cq_head = list->cq_head,
                             .phase = list->phase,
                             .cq_db_pending = list->cq_db_pending,
                             .first_cid = list->first_cid};
    struct gq_worker w;

    __syncwarp();
    if (threadIdx.x == 0 && !list->run.cmds)
        list->run.cmds = list->cmds;
    __syncwarp();
    gq_begin(&w, gq_whole_group(), &list->run, &port, &first, 0);
    w.state = list->state;
    while (gq_round(&w) != GQ_ROUND_ENDED)
        ;
    make_copy(list);
    gq_end(&w);
}

union item {
    uint32_t words[GQ_SERVICE_WORDS];
    struct gq_persistent_list list;
};

/*
 * Polls the slot once. If all words are of a new item, copies them, stores its
 * number, and returns true; the lanes have synchronised. Each lane acquires:
 * stores of the host before the post are visible, even if the cache holds words
 * of an earlier item.
 */
__device__ __forceinline__ bool poll(const struct gq_service_slot *slot, uint32_t *number,
                                     union item *item)
{
    uint64_t high = gq_load_word(&slot->words[GQ_LANES + threadIdx.x]);
    uint64_t low = gq_acquire_word(&slot->words[threadIdx.x]);
    uint32_t found = GQ_UNIFORM32(low >> 32);

    if (found == 0 || found == *number ||
        !__all_sync(GQ_LANE_ALL, low >> 32 == found && high >> 32 == found))
        return false;
    *number = found;
    item->words[threadIdx.x] = (uint32_t)low;
    item->words[GQ_LANES + threadIdx.x] = (uint32_t)high;
    __syncwarp();
    return true;
}

__device__ __forceinline__ bool is_over(struct gq_service_stay *stay, uint64_t began_ns)
{
    return GQ_UNIFORM32(threadIdx.x == 0 && gq_service_is_over(stay, began_ns, gq_clock_ns())) != 0;
}

/* Each block is a warp, which serves one slot and drives one queue at a time. */
__global__ void __launch_bounds__(GQ_LANES)
    serve(const __grid_constant__ struct gq_persistent_launch l)
{
    __shared__ union item item;
    const struct gq_service_slot *slot = &l.service.memory->slots[blockIdx.x];
    const uint64_t began_ns = GQ_UNIFORM64(gq_clock_ns());
    uint32_t number = 0;

    if (threadIdx.x == 0)
        number = gq_service_begin(&l.service, l.stay, blockIdx.x, began_ns);
    number = GQ_UNIFORM32(number);
    for (uint32_t polls = 0;; polls++) {
        if (polls % kClockPolls == 0 && is_over(l.stay, began_ns))
            break;
        if (!poll(slot, &number, &item))
            continue;
        drive_list(&item.list);
        if (threadIdx.x == 0)
            gq_service_touch(l.stay, gq_clock_ns());
        __syncwarp();
    }
    if (threadIdx.x == 0)
        gq_service_leave(&l.service, l.stay, blockIdx.x, number);
}

} // namespace

extern "C" cudaError_t gq_persistent_load(void)
{
    struct cudaFuncAttributes attr;

    return cudaFuncGetAttributes(&attr, (const void *)serve);
}

extern "C" cudaError_t gq_persistent_launch(const struct gq_persistent_launch *l,
                                            cudaStream_t stream)
{
    void *args[] = {(void *)l};

    return cudaLaunchKernel((const void *)serve, l->service.slots, GQ_LANES, args, 0, stream);
}
