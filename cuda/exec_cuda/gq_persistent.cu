/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the persistent kernel, which drives short lists from tagged slots.
 */
#include "cuda/exec_cuda/gq_persistent.h"

/* Short lists have a waiting caller: one entry per lane is the fastest. */
#define GQ_EACH 1u
#include "cuda/gq_serve.h"
#include "cuda/queue/gq_reads_protocol.h"

namespace
{

constexpr uint32_t kWordBytes = sizeof(uint64_t);
constexpr uint32_t kRecordWords = sizeof(struct gq_persistent_list) / kWordBytes;
static_assert(sizeof(struct gq_persistent_list) % kWordBytes == 0, "it is loaded by words");

/*
 * Each block has this union in its shared memory. It contains a copy of the
 * list's record, which the lanes load at the same time.
 */
union record {
    uint64_t words[kRecordWords];
    struct gq_persistent_list list;
};

/* Called by the warp after gq_serve_take(), by which each lane has acquired the record. */
__device__ __forceinline__ void load_record(const struct gq_persistent_list *from, union record *to)
{
    const uint64_t *words = (const uint64_t *)from;

#pragma unroll
    for (uint32_t first = 0; first < kRecordWords; first += GQ_LANES) {
        if (first + threadIdx.x < kRecordWords)
            to->words[first + threadIdx.x] = gq_load_word(&words[first + threadIdx.x]);
    }
    __syncwarp();
    if (threadIdx.x == 0 && !to->list.list.reads.map.extents)
        to->list.list.reads.map.extents = to->list.list.few;
    __syncwarp();
}

/* Called by the warp. Drives a list like drive_reads() in gq_kernels.cu. */
__device__ __forceinline__ void drive_list(const struct gq_persistent_list *list)
{
    const struct gq_port port = list->port; /* in registers */
    struct gq_state first = list->first;
    struct gq_reader r;

    gq_reads_begin(&r, gq_whole_group(), &list->run, &list->list.reads, &port, &first, 0,
                   (uint32_t)list->area);
    r.w.state = list->state;
    while (gq_reads_round(&r) != GQ_ROUND_ENDED)
        ;
    gq_report_reads(&r);
}

/* Each block is a warp, which serves one slot and drives one queue at a time. */
__global__ void __launch_bounds__(GQ_LANES, 1)
    serve(const __grid_constant__ struct gq_persistent_launch l)
{
    __shared__ union record record;
    struct gq_server server = {.group = gq_whole_group(),
                               .launch = &l.service,
                               .stay = l.stay,
                               .slot = blockIdx.x,
                               .began_ns = GQ_UNIFORM64(gq_clock_ns())};

    if (threadIdx.x == 0)
        server.number = gq_service_begin(&l.service, l.stay, blockIdx.x, server.began_ns);
    server.number = GQ_UNIFORM32(server.number);
    while (gq_serve_take(&server)) {
        load_record((const struct gq_persistent_list *)gq_serve_pair(&server, 0), &record);
        drive_list(&record.list);
        gq_serve_touch(&server);
    }
    if (threadIdx.x == 0)
        gq_service_leave(&l.service, l.stay, blockIdx.x, server.number);
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
