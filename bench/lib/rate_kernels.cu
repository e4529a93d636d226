/* SPDX-License-Identifier: BSD-2-Clause */
/* Kernels of rate_bench: drivers of queue pairs, and a controller on the GPU. */
#include "bench/lib/rate_kernels.h"

#include "cuda/queue/gq_list_protocol.h"
#include "cuda/queue/gq_reads_protocol.h"

namespace
{

__global__ void __launch_bounds__(GQ_LANES)
    warp_owned(const __grid_constant__ struct gq_run run, const struct gq_port *ports,
               struct gq_state *states)
{
    const struct gq_port port = ports[blockIdx.x];
    struct gq_worker w;

    gq_begin(&w, gq_whole_group(), &run, &port, &states[blockIdx.x], blockIdx.x);
    while (gq_round(&w) != GQ_ROUND_ENDED)
        ;
    gq_end(&w);
}

__global__ void __launch_bounds__(GQ_LANES, 1)
    warp_reads(const __grid_constant__ struct gq_run run,
               const __grid_constant__ struct gq_reads reads, const struct gq_port *ports,
               struct gq_state *states)
{
    const struct gq_port port = ports[blockIdx.x];
    struct gq_reader r;

    gq_reads_begin(&r, gq_whole_group(), &run, &reads, &port, &states[blockIdx.x], blockIdx.x,
                   blockIdx.x);
    while (gq_reads_round(&r) != GQ_ROUND_ENDED)
        ;
    gq_conclude_reads(&r);
    gq_reads_end(&r);
}

/* The completion at ring position pos, counted from the queue's start; false after the deadline. */
__device__ bool wait_at(const struct gq_port *port, uint64_t pos, uint64_t limit_ns, uint32_t *dw3)
{
    const struct nvme_cqe *cqe = &port->cq[pos % port->depth];
    uint32_t phase = (pos / port->depth & 1) ^ 1;
    uint64_t start = gq_clock_ns();

    do {
        *dw3 = gq_load_cqe(cqe);
        if (NVME_CQE_PHASE(*dw3 >> 16) == phase)
            return true;
    } while (gq_clock_ns() - start < limit_ns);
    return false;
}

__global__ void block_owned(const __grid_constant__ struct gq_run run, const struct gq_port *ports,
                            struct gq_state *states)
{
    const struct gq_port port = ports[blockIdx.x];
    const uint32_t batch = blockDim.x;
    uint64_t at = 0;
    bool ok = true;

    for (uint64_t next = (uint64_t)blockIdx.x * batch; next < run.n_cmds && ok;
         next += (uint64_t)gridDim.x * batch) {
        uint32_t n = run.n_cmds - next < batch ? (uint32_t)(run.n_cmds - next) : batch;
        uint32_t index = (uint32_t)next + threadIdx.x, dw3;

        if (threadIdx.x < n) {
            struct gq_cmd cmd = run.cmds[index];

            gq_store_sqe(&port.sq[(at + threadIdx.x) % port.depth], &run, &cmd, threadIdx.x);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            gq_fence_entries();
            gq_store_doorbell(port.sq_doorbell, (uint32_t)((at + n) % port.depth));
        }
        if (threadIdx.x < n) {
            ok = wait_at(&port, at + threadIdx.x, run.command_ns, &dw3);
            run.results[index] = ok ? GQ_ENDED | NVME_STATUS(dw3 >> 16) : GQ_PENDING;
        }
        at += n;
        ok = __syncthreads_and(ok);
        if (threadIdx.x == 0)
            gq_store_doorbell(port.cq_doorbell, (uint32_t)(at % port.depth));
    }
    if (threadIdx.x == 0)
        states[blockIdx.x].outcome = ok ? GQ_OUT_DONE : GQ_OUT_TIMED_OUT;
}

/* The doorbells and rings are GPU memory here, so all of it stays on the chip. */
__global__ void __launch_bounds__(GQ_LANES)
    serve(const struct gq_port *ports, const uint32_t *stop, uint64_t *served)
{
    const struct gq_port port = ports[blockIdx.x];
    uint64_t head = 0;
    uint32_t lane = threadIdx.x;

    while (true) {
        uint32_t tail = gq_load_flag(port.sq_doorbell);
        uint32_t n = (tail + port.depth - (uint32_t)(head % port.depth)) % port.depth;

        n = GQ_UNIFORM32(n < GQ_LANES ? n : GQ_LANES);
        if (n == 0) {
            if (GQ_UNIFORM32(gq_load_flag(stop)) != 0)
                break;
            continue;
        }
        __threadfence(); /* the entries were written before the doorbell */
        if (lane < n) {
            uint64_t pos = head + lane;
            uint32_t cid = port.sq[pos % port.depth].cid;
            uint32_t phase = (uint32_t)(pos / port.depth & 1) ^ 1;

            *(volatile uint32_t *)&port.cq[pos % port.depth].cid = cid | phase << 16;
        }
        head += n;
        __syncwarp();
    }
    if (lane == 0)
        served[blockIdx.x] = head;
}

} // namespace

extern "C" cudaError_t rate_load(void)
{
    const void *kernels[] = {(const void *)warp_owned, (const void *)warp_reads,
                             (const void *)block_owned, (const void *)serve};

    for (const void *kernel : kernels) {
        struct cudaFuncAttributes attr;
        cudaError_t err = cudaFuncGetAttributes(&attr, kernel);

        if (err != cudaSuccess)
            return err;
    }
    return cudaSuccess;
}

extern "C" cudaError_t rate_warp_owned(const struct gq_run *run, const struct gq_port *ports,
                                       struct gq_state *states, cudaStream_t stream)
{
    void *args[] = {(void *)run, &ports, &states};

    return cudaLaunchKernel((const void *)warp_owned, run->n_queues, GQ_LANES, args, 0, stream);
}

extern "C" cudaError_t rate_warp_reads(const struct gq_run *run, const struct gq_reads *reads,
                                       const struct gq_port *ports, struct gq_state *states,
                                       cudaStream_t stream)
{
    void *args[] = {(void *)run, (void *)reads, &ports, &states};

    return cudaLaunchKernel((const void *)warp_reads, run->n_queues, GQ_LANES, args, 0, stream);
}

extern "C" cudaError_t rate_block_owned(const struct gq_run *run, const struct gq_port *ports,
                                        struct gq_state *states, unsigned batch,
                                        cudaStream_t stream)
{
    void *args[] = {(void *)run, &ports, &states};

    return cudaLaunchKernel((const void *)block_owned, run->n_queues, batch, args, 0, stream);
}

extern "C" cudaError_t rate_serve(const struct gq_port *ports, unsigned n_queues,
                                  const uint32_t *stop, uint64_t *served, cudaStream_t stream)
{
    void *args[] = {&ports, &stop, &served};

    return cudaLaunchKernel((const void *)serve, n_queues, GQ_LANES, args, 0, stream);
}
