#include "cuda/gq_resident.h"

/* Short lists, that somebody waits for: what a lane does not do takes no time. */
#define GQ_EACH 1u
#include "cuda/gq_list_protocol.h"

namespace
{

constexpr uint64_t kIdleNs = 200000;

/* One warp, one queue at a time; see drive_queues() in gq_kernels.cu. */
__global__ void __launch_bounds__(GQ_LANES)
    serve(const __grid_constant__ struct gq_resident_launch l)
{
    __shared__ union {
        uint32_t words[GQ_BOX_WORDS];
        struct gq_resident_list list;
    } box;

    for (uint32_t number = l.box.first; gq_box_take(l.box.box, number, kIdleNs, box.words);
         number = gq_box_next(number)) {
        const struct gq_port port = l.ports[box.list.queue];
        struct gq_worker w;

        const bool inside = !box.list.run.cmds;

        __syncwarp();
        if (inside && threadIdx.x == 0)
            box.list.run.cmds = box.list.cmds;
        __syncwarp();
        gq_begin(&w, gq_whole_group(), &box.list.run, &port, &box.list.first, 0);
        w.state = box.list.state;
        while (gq_round(&w) != GQ_ROUND_ENDED)
            ;
        gq_end(&w);
    }
    if (threadIdx.x == 0)
        gq_box_leave(&l.box);
}

} // namespace

extern "C" cudaError_t gq_resident_load(void)
{
    struct cudaFuncAttributes attr;

    return cudaFuncGetAttributes(&attr, (const void *)serve);
}

extern "C" cudaError_t gq_resident_run(const struct gq_resident_launch *l, cudaStream_t stream)
{
    void *args[] = {(void *)l};

    return cudaLaunchKernel((const void *)serve, 1, GQ_LANES, args, 0, stream);
}
