/* SPDX-License-Identifier: BSD-2-Clause */
/* The persistent kernel, which drives short lists from a tagged slot. */
#include "cuda/exec_cuda/gq_persistent.h"

/* Short lists have a waiting caller: one entry per lane is the fastest. */
#define GQ_EACH 1u
#include "cuda/queue/gq_list_protocol.h"
#include "cuda/queue/gq_single.h"

namespace
{

constexpr uint64_t kIdleNs = 200000;

/*
 * Called by the warp, of which lane 0 drives the queue. The fence orders the
 * copied bytes of all lanes, which have converged, before the report.
 */
__device__ __forceinline__ void drive_single(const struct gq_persistent_list *list)
{
    const struct gq_port port = list->port;
    const struct gq_copy copy = list->one.copy;
    struct gq_single s = {
        .run = &list->run, .port = &port, .at = {list->sq_tail, list->phase, list->cq_db_pending}};

    if (threadIdx.x == 0) {
        gq_single_send(&s, &list->one.cmd);
        while (gq_single_poll(&s) == GQ_OUT_RUNNING)
            ;
    }
    if (copy.len && GQ_UNIFORM32(s.outcome == GQ_OUT_DONE && s.status == 0)) {
        gq_copy_4k(copy.dst, copy.src, copy.len, threadIdx.x, GQ_LANES);
        __syncwarp();
        if (threadIdx.x == 0)
            gq_fence_results();
    }
    if (threadIdx.x == 0)
        gq_single_report(&s, list->state);
}

/* Called by the warp. Drives a list like drive_queues() in gq_kernels.cu. */
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
    gq_end(&w);
}

/* Serves one queue at a time with one warp. */
__global__ void __launch_bounds__(GQ_LANES)
    serve(const __grid_constant__ struct gq_tagged_slot_launch l)
{
    __shared__ union {
        uint32_t words[GQ_TAGGED_SLOT_WORDS];
        struct gq_persistent_list list;
    } slot;

    for (uint32_t number = l.first; gq_tagged_slot_poll(l.slot, number, kIdleNs, slot.words);
         number = gq_tagged_slot_next(number)) {
        if (slot.list.single)
            drive_single(&slot.list);
        else
            drive_list(&slot.list);
        __syncwarp();
    }
    if (threadIdx.x == 0)
        gq_tagged_slot_leave(&l);
}

} // namespace

extern "C" cudaError_t gq_persistent_load(void)
{
    struct cudaFuncAttributes attr;

    return cudaFuncGetAttributes(&attr, (const void *)serve);
}

extern "C" cudaError_t gq_persistent_launch(const struct gq_tagged_slot_launch *l,
                                            cudaStream_t stream)
{
    void *args[] = {(void *)l};

    return cudaLaunchKernel((const void *)serve, 1, GQ_LANES, args, 0, stream);
}
