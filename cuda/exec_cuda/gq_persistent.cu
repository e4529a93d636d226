#include "cuda/exec_cuda/gq_persistent.h"

/* Short lists, that somebody waits for: what a lane does not do takes no time. */
#define GQ_EACH 1u
#include "cuda/queue/gq_list_protocol.h"
#include "cuda/queue/gq_single.h"

namespace
{

constexpr uint64_t kIdleNs = 200000;

/* By one lane. */
__device__ __forceinline__ void drive_single(const struct gq_resident_list *list)
{
    const struct gq_port port = list->port;
    struct gq_single s = {
        .run = &list->run, .port = &port, .at = {list->sq_tail, list->phase, list->owed}};

    gq_single_send(&s, &list->cmds[0]);
    while (gq_single_look(&s) == GQ_OUT_RUNNING)
        ;
    gq_single_tell(&s, list->state);
}

/* By the warp; see drive_queues() in gq_kernels.cu. */
__device__ __forceinline__ void drive_list(struct gq_resident_list *list)
{
    const struct gq_port port = list->port;
    struct gq_state first = {.sq_tail = list->sq_tail,
                             .cq_head = list->cq_head,
                             .phase = list->phase,
                             .owed = list->owed};
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

/* One warp, one queue at a time. */
__global__ void __launch_bounds__(GQ_LANES) serve(const __grid_constant__ struct gq_box_launch l)
{
    __shared__ union {
        uint32_t words[GQ_BOX_WORDS];
        struct gq_resident_list list;
    } box;

    for (uint32_t number = l.first; gq_box_take(l.box, number, kIdleNs, box.words);
         number = gq_box_next(number)) {
        if (!box.list.single)
            drive_list(&box.list);
        else if (threadIdx.x == 0)
            drive_single(&box.list);
        __syncwarp();
    }
    if (threadIdx.x == 0)
        gq_box_leave(&l);
}

} // namespace

extern "C" cudaError_t gq_resident_load(void)
{
    struct cudaFuncAttributes attr;

    return cudaFuncGetAttributes(&attr, (const void *)serve);
}

extern "C" cudaError_t gq_resident_run(const struct gq_box_launch *l, cudaStream_t stream)
{
    void *args[] = {(void *)l};

    return cudaLaunchKernel((const void *)serve, 1, GQ_LANES, args, 0, stream);
}
