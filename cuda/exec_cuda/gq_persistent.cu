/* SPDX-License-Identifier: BSD-2-Clause */
/* The persistent kernel, which drives short lists from tagged slots. */
#include "cuda/exec_cuda/gq_persistent.h"

/* Short lists have a waiting caller: one entry per lane is the fastest. */
#define GQ_EACH 1u
#include "cuda/queue/gq_reads_protocol.h"

namespace
{

constexpr uint32_t kClockPolls = 8; /* one poll in so many reads the clock */

constexpr uint32_t kWordBytes = sizeof(uint64_t);
constexpr uint32_t kListWords = sizeof(struct gq_list) / kWordBytes;
static_assert(sizeof(struct gq_list) % kWordBytes == 0, "it is loaded by words");

/*
 * Lies in the shared memory of a block. Holds a copy of the list, which one
 * trip over the bus loads.
 */
union copy {
    uint64_t words[kListWords];
    struct gq_list list;
};

/*
 * Copies the list. Called by the warp after poll(), by which each lane has
 * acquired the list.
 */
__device__ __forceinline__ void load_list(const struct gq_list *from, union copy *to)
{
    const uint64_t *words = (const uint64_t *)from;
    struct gq_file_map *map = &to->list.reads.map;

#pragma unroll
    for (uint32_t first = 0; first < kListWords; first += GQ_LANES) {
        if (first + threadIdx.x < kListWords)
            to->words[first + threadIdx.x] = gq_load_word(&words[first + threadIdx.x]);
    }
    __syncwarp();
    if (threadIdx.x == 0 && map->extents == from->few)
        map->extents = to->list.few;
    __syncwarp();
}

/* Called by the warp. Drives a list like drive_reads() in gq_kernels.cu. */
__device__ __forceinline__ void drive_list(const struct gq_persistent_list *list, union copy *copy)
{
    const struct gq_port port = list->port;
    struct gq_state first = {.sq_tail = list->sq_tail,
                             .cq_head = list->cq_head,
                             .phase = list->phase,
                             .cq_db_pending = list->cq_db_pending,
                             .first_cid = list->first_cid};
    struct gq_reader r;

    load_list(list->list, copy);
    gq_reads_begin(&r, gq_whole_group(), &list->run, &copy->list.reads, &port, &first, 0,
                   list->area);
    r.w.state = list->state;
    while (gq_reads_round(&r) != GQ_ROUND_ENDED)
        ;
    gq_conclude_reads(&r);
    gq_report_reads(&r);
    gq_reads_end(&r);
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
__global__ void __launch_bounds__(GQ_LANES, 1)
    serve(const __grid_constant__ struct gq_persistent_launch l)
{
    __shared__ union item item;
    __shared__ union copy copy;
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
        drive_list(&item.list, &copy);
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
