/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Waits for a run's kernels without trusting the device: a kernel ends by its
 * own deadlines, otherwise the wait ends.
 */
#include <sched.h>

#include "cuda/exec_cuda/gq_cuda_int.h"
#include "support/clock.h"
#include "support/minmax.h"

#define QUERY_NS     1000000u /* between queries of CUDA */
#define CLOCK_EVERY  16u      /* polls of memory between looks at the clock */
#define POLLS_OF_ONE 512u     /* polls before a run of a short list yields */
#define HANG_NS      (GQ_HANG_MS * 1000000ull)

/* Times of a kernel's progress and of the request to leave. */
struct watch {
    uint64_t start_ns, progress_ns;
    uint64_t leave_ns; /* 0: not asked to leave */
    uint64_t query_ns; /* when CUDA was last queried, at first the start */
    uint32_t progress; /* sum of the states' counters at the last check */
};

/*
 * Forwards the caller's and the engine's flags, which the GPU cannot read.
 * Returns the engine's.
 */
static uint32_t forward_flags(const struct gq_cuda *cu, const struct gq_launch *l)
{
    uint32_t leave = __atomic_load_n(&cu->exec.flags, __ATOMIC_RELAXED);
    uint32_t cancel = l->cancel && __atomic_load_n(l->cancel, __ATOMIC_RELAXED);

    if (leave || cancel)
        __atomic_store_n(cu->runs[l->index].flags, leave | (cancel ? GQ_FLAG_CANCEL : 0),
                         __ATOMIC_RELAXED);
    return leave;
}

/*
 * Returns true if all queues of the run were returned. The acquire makes their
 * results visible, which were stored before.
 */
static bool all_ended(const struct gq_launch *l)
{
    for (unsigned i = 0; i < l->run.n_queues; i++) {
        if (__atomic_load_n(&l->states[i].outcome, __ATOMIC_ACQUIRE) == GQ_OUT_RUNNING)
            return false;
    }
    return true;
}

static uint32_t sum_progress(const struct gq_launch *l)
{
    uint32_t n = 0;

    for (unsigned i = 0; i < l->run.n_queues; i++)
        n += __atomic_load_n(&l->states[i].progress, __ATOMIC_RELAXED);
    return n;
}

/*
 * Returns true if the kernel hangs. A kernel whose commands make no progress
 * leaves when the oldest is overdue, which it checks eight times within a
 * command's deadline. It leaves at once at the end of its budget or at the
 * host's request. A kernel that still runs GQ_HANG_MS later hangs.
 */
static bool hangs(struct watch *w, const struct gq_launch *l, bool leave)
{
    uint64_t now = now_ns(), limit;
    uint32_t progress = sum_progress(l);

    if (progress != w->progress) {
        w->progress = progress;
        w->progress_ns = now;
    }
    if (leave && !w->leave_ns)
        w->leave_ns = now;
    limit = w->progress_ns + l->run.command_ns + l->run.command_ns / 8;
    if (l->run.budget_ns)
        limit = min_u64(limit, w->start_ns + l->run.budget_ns);
    if (w->leave_ns)
        limit = min_u64(limit, w->leave_ns);
    return now >= limit + HANG_NS;
}

/* Clears cudaErrorNotReady like an error; otherwise a later call would report it. */
static cudaError_t query(cudaStream_t stream)
{
    cudaError_t err = cudaStreamQuery(stream);

    if (err == cudaErrorNotReady)
        cudaGetLastError();
    return err;
}

/*
 * Queries the run's stream, or that of the persistent kernel, whose end is no
 * error.
 */
static cudaError_t query_run(const struct gq_cuda *cu, const struct gq_launch *l)
{
    cudaError_t err;

    if (!l->persistent)
        return query(cu->runs[l->index].stream);
    err = query(gq_persistent_stream(cu->persistent));
    return err == cudaSuccess ? cudaErrorNotReady : err;
}

/*
 * Returns true if CUDA must be queried now. The interval is a time because on
 * busy processors each poll yields for milliseconds.
 */
static bool query_is_due(struct watch *w, unsigned polls)
{
    uint64_t now;

    if (polls % CLOCK_EVERY)
        return false;
    now = now_ns();
    if (now < w->query_ns + QUERY_NS)
        return false;
    w->query_ns = now;
    return true;
}

/*
 * Polls memory as long as a run may end there, because a CUDA query takes locks
 * that threads which launch kernels need. It still queries at intervals, since
 * a kernel that faulted stores nothing.
 */
int gq_cuda_wait_run(struct gq_cuda *cu, const struct gq_launch *l)
{
    uint64_t start = now_ns();
    struct watch w = {.start_ns = start, .progress_ns = start, .query_ns = start};
    cudaError_t err = cudaErrorNotReady;

    for (unsigned i = 1; err == cudaErrorNotReady; i++) {
        bool leave = forward_flags(cu, l) & GQ_FLAG_LEAVE;

        if (all_ended(l))
            return 0;
        if (l->persistent && gq_persistent_keep(cu->persistent, l->slot))
            return -EIO;
        if (query_is_due(&w, i)) {
            err = query_run(cu, l);
            if (err == cudaErrorNotReady && (gq_cuda_stuck(cu) || hangs(&w, l, leave))) {
                __atomic_store_n(&cu->gate->stuck, true, __ATOMIC_RELAXED);
                return -EIO;
            }
        }
        if (!l->persistent || i > POLLS_OF_ONE)
            sched_yield();
    }
    return gq_cuda_errno(err);
}
