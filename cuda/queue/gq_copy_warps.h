/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Copy warps are additional warps of a block, which copy the staged bytes of
 * the lanes that drive its queue. In this way reading, copying and posting
 * overlap.
 *
 * Each lane has one job, because it has one staged command at a time. The job
 * of a read is posted when the command has succeeded, that of a write before
 * the command is posted. The warps serve the jobs in turn.
 *
 * On a host the lanes copy; gq_reader.copies is NULL there.
 */
#ifndef CUDA_QUEUE_GQ_COPY_WARPS_H
#define CUDA_QUEUE_GQ_COPY_WARPS_H

#include "cuda/queue/gq_bytes.h"
#include "cuda/queue/gq_lanes.h"

enum gq_copy_state {
    GQ_COPY_NONE,
    GQ_COPY_POSTED, /* posted by the lane to the copy warp */
    GQ_COPY_DONE,   /* set by the copy warp, or by the lane if its command failed */
};

/* `state` determines which side owns dst, src and len. */
struct gq_copy_job {
    uint64_t dst, src;
    uint32_t len; /* bytes */
    uint32_t state;
};

/* Lies in shared memory; zeroed before use. */
struct gq_copy_jobs {
    struct gq_copy_job job[GQ_LANES];
    uint32_t over; /* set by the lanes: no further job will be posted */
};

#ifdef __CUDACC__

/* Copy warps per block; with GQ_COPY_AHEAD they saturate the link. */
#define GQ_COPY_WARPS 6u

/* Called by one warp before a barrier of the block. */
static __device__ void gq_copy_jobs_clear(struct gq_copy_jobs *jobs)
{
    jobs->job[gq_thread()].state = GQ_COPY_NONE;
    jobs->over = 0;
}

/* Outstanding loads of 16 bytes per lane: 4 KiB in one trip over the bus. */
#define GQ_COPY_AHEAD 8u

/*
 * Main loop of copy warp `rank` of `warps`, called by the whole warp.
 * Copies until the jobs are over and none of its own is posted. The release of
 * a job orders the copied bytes before a fence of the lane that acquires it,
 * and thus before that lane's doorbell.
 */
static __device__ void gq_copy_jobs_serve(struct gq_copy_jobs *jobs, uint32_t rank, uint32_t warps)
{
    struct gq_copy_job *mine = &jobs->job[gq_thread()];
    bool serves = gq_thread() % warps == rank;

    for (;;) {
        bool over = GQ_UNIFORM32(gq_acquire_block(&jobs->over)) != 0;
        bool posted = serves && gq_acquire_block(&mine->state) == GQ_COPY_POSTED;
        uint32_t mask = __ballot_sync(GQ_LANE_ALL, posted);

        if (mask == 0 && over)
            return;
        if (mask == 0)
            __nanosleep(20);
        while (mask) {
            struct gq_copy_job *job = &jobs->job[gq_take_one(&mask)];

            gq_copy_warp<GQ_COPY_AHEAD>(job->dst, job->src, job->len);
            __syncwarp();
            if (gq_thread() == 0)
                gq_release_block(&job->state, GQ_COPY_DONE);
        }
    }
}

/* Called by all lanes: ends the copy warps. */
static __device__ void gq_copy_jobs_over(struct gq_copy_jobs *jobs)
{
    if (gq_thread() == 0)
        gq_release_block(&jobs->over, 1);
}

/* Called by all lanes: ends the copy warps and waits for the posted jobs. */
static __device__ void gq_copy_jobs_end(struct gq_copy_jobs *jobs)
{
    const struct gq_copy_job *mine = &jobs->job[gq_thread()];

    gq_copy_jobs_over(jobs);
    while (__ballot_sync(GQ_LANE_ALL, gq_acquire_block(&mine->state) == GQ_COPY_POSTED))
        ;
}

#endif

#endif
