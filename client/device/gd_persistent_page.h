/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A page that is staged and copied as it lies, by the persistent kernel: the shortest path. The
 * warp polls its CQE alone; between that and the report there are only the copy and a fence. A
 * command that fails, or takes long, is waited for like every other one.
 *
 * The block's second warp copies half of the page: four loads a lane return sooner than eight. It
 * waits at a barrier of both until the first warp posts a page, or has none any more; that warp's
 * stay is bounded. On a host the thread copies all.
 */
#ifndef CLIENT_DEVICE_GD_PERSISTENT_PAGE_H
#define CLIENT_DEVICE_GD_PERSISTENT_PAGE_H

#include "client/device/gd_persistent_queue.h"

/* Polls of the CQE of a page, a microsecond each, before the command counts as a slow one. */
#define GD_PAGE_POLLS 32u

/* Of a command that was sent: is it a page that the warp copies as it lies? */
GQ_FN bool gd_page_suits(const struct gd_persistent *t)
{
    return t->staged == NVME_PAGE_SIZE && !t->compares && t->dst % 16 == 0;
}

/* The CQE's last dword if the command has. */
GQ_FN uint32_t gd_page_success(const struct gq_single *s)
{
    return s->at.phase << 16 | gq_single_cid(s);
}

/* One poll of its CQE, which every lane acquires. */
GQ_FN bool gd_page_poll(struct gd_persistent *t, uint32_t success)
{
    const struct gd_reader *w = t->reader;
    const struct nvme_cqe *cqe = &w->port.cq[t->single->at.entry];
    bool is_there;
    GQ_LANE_VAR(uint32_t, differs);

    gd_persistent_time(t, &t->page_timing);
    GQ_FOR_LANES(lane)
    {
        GQ_AT(differs) = gq_load_cqe(cqe) != success;
    }
    is_there = GQ_BALLOT(differs) == 0;
    if (!is_there)
        gd_timing_missed(&t->page_timing, gd_ticks());
    return is_there;
}

/* True: the command has succeeded. False: it has failed, or takes long. */
GQ_FN bool gd_page_await(struct gd_persistent *t)
{
    uint32_t success = gd_page_success(t->single);

    gd_timing_event(&t->page_timing, gd_ticks());
#ifdef __CUDACC__
#pragma unroll 1
#endif
    for (uint32_t polls = 0; polls < GD_PAGE_POLLS; polls++) {
        if (gd_page_poll(t, success))
            return true;
        gd_idle();
    }
    return false;
}

#ifdef __CUDACC__

/* By all threads of both warps. Orders memory among them, as a barrier of the block does. */
GQ_FN void gd_page_meet(void)
{
    gd_barrier(GD_PAGE_WARPS * GQ_LANES);
}

/* By all threads of both warps: all loads are outstanding at once. */
GQ_FN void gd_page_halves(const struct gd_page_job *job)
{
    const uint32_t threads = GD_PAGE_WARPS * GQ_LANES, n = NVME_PAGE_SIZE / sizeof(uint4) / threads;
    const uint4 *src = (const uint4 *)job->src + threadIdx.x;
    uint4 *dst = (uint4 *)job->dst + threadIdx.x, units[n];

#pragma unroll
    for (uint32_t k = 0; k < n; k++)
        units[k] = __ldcv(&src[k * threads]);
#pragma unroll
    for (uint32_t k = 0; k < n; k++)
        dst[k * threads] = units[k];
}

/* By the second warp: until the first one has dismissed it. */
GQ_FN void gd_page_help(const struct gd_page_job *job)
{
    for (;;) {
        gd_page_meet();
        if (!job->src)
            return;
        gd_page_halves(job);
        gd_page_meet();
    }
}

/* Returns when all stores of the page were made. */
GQ_FN void gd_page_move(const struct gd_persistent *t, uint64_t src)
{
    const struct gd_page_job job = {.dst = t->dst, .src = src};

    if (threadIdx.x == 0)
        t->shared->job = job;
    gd_page_meet();
    gd_page_halves(&job);
    gd_page_meet();
}

/* Before a barrier of the block, to which the second warp goes now. */
GQ_FN void gd_page_dismiss(const struct gd_persistent *t)
{
    if (threadIdx.x == 0)
        t->shared->job.src = 0;
    gd_page_meet();
}

#else

GQ_FN void gd_page_move(const struct gd_persistent *t, uint64_t src)
{
    const struct gd_reader *w = t->reader;

    GQ_FOR_LANES(lane)
    {
        struct gq_page_part part;

        gq_load_page(src, lane, &part);
        gq_store_page(t->dst, lane, &part);
    }
}

GQ_FN void gd_page_dismiss(const struct gd_persistent *t)
{
    (void)t;
}

#endif

/*
 * Copies the page, and tells the host. The warps meet before their loads, which the acquire of the
 * first one's poll precedes, and after their stores. Lane 0's fence for the system then orders
 * these, and the loads of staging, before two stores of the same lane: of the report, so that the
 * page is visible to the host's thread that has seen the report, and to kernels and copies that it
 * launches then; and of the lock, so that the queue's next owner has its command write to staging.
 */
GQ_FN void gd_page_copy(const struct gd_persistent *t, uint64_t src)
{
    const struct gd_reader *w = t->reader;

    gd_page_move(t, src);
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gq_fence_results();
    }
    gd_reply(t, 0);
}

/* Of a staged page whose command was sent. False: the general polls continue with it. */
GQ_FN bool gd_page_read(struct gd_persistent *t)
{
    struct gd_reader *w = t->reader;
    struct gq_single *s = t->single;
    const struct gd_set *set = &t->file->set;
    uint64_t src = set->staging.base + gd_staging_of(set, w->queue);

    if (!gd_page_suits(t) || !gd_page_await(t))
        return false;
    gd_page_copy(t, src);
    gd_timing_found(&t->page_timing);
    gq_single_take_cqe(s, gd_page_success(s));
    (void)gd_ended(w, s);
    gd_persistent_rest(t);
    return true;
}

#endif
