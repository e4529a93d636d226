#include "cuda/gq_resident.h"

#include "cuda/gq_protocol.h"

namespace
{

constexpr uint64_t kIdleNs = 200000;

/*
 * Waits for list number `list` and takes it into shared memory. Each lane acquires: commands that
 * are not in the box, the flags and a queue's entries are as the host had them when it posted,
 * whatever the processor's cache has of a list before. False after the idle time.
 */
__device__ bool take(const uint64_t *box, uint32_t list, uint32_t *out)
{
    uint64_t since = gq_clock_ns();
    unsigned lane = threadIdx.x;

    while (true) {
        uint64_t high = gq_load_word(&box[GQ_LANES + lane]);
        uint64_t low = gq_acquire_word(&box[lane]);

        if (__all_sync(GQ_LANE_ALL, low >> 32 == list && high >> 32 == list)) {
            out[lane] = (uint32_t)low;
            out[GQ_LANES + lane] = (uint32_t)high;
            __syncwarp();
            return true;
        }
        if (__any_sync(GQ_LANE_ALL, gq_clock_ns() - since > kIdleNs))
            return false;
    }
}

/* One warp, one queue at a time; see drive_queues() in gq_kernels.cu. */
__global__ void __launch_bounds__(GQ_LANES)
    serve(const __grid_constant__ struct gq_resident_launch l)
{
    __shared__ union {
        uint32_t words[GQ_RESIDENT_WORDS];
        struct gq_resident_list list;
    } box;
    static_assert(GQ_RESIDENT_WORDS == 2 * GQ_LANES, "two words a lane");

    for (uint32_t list = l.list; take(l.box, list, box.words); list++) {
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
    /* The last list's outcome before the end: who sees the end launches anew for a list without. */
    if (threadIdx.x == 0) {
        gq_fence_results();
        gq_store_sign(l.ended, l.launch);
    }
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
