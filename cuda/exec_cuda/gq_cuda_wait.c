/*
 * Waiting for a run's kernels, without trust in the device: a kernel ends by its own deadlines, and
 * when it does not, the wait does.
 */
#include <sched.h>

#include "cuda/exec_cuda/gq_cuda_int.h"
#include "cuda/exec_cuda/gq_kernels.h"
#include "support/clock.h"
#include "support/minmax.h"

#define ASK_CUDA_EVERY 4096u /* looks at memory */
#define LOOKS_FOR_ONE  512u  /* that a short list is worth before others may have the processor */
#define HANG_NS        (GQ_HANG_MS * 1000000ull)

/* When the kernel was seen to do something, and what it has been told since. */
struct watch {
    uint64_t start_ns, progress_ns;
    uint64_t leave_ns; /* 0: not asked to leave */
    uint32_t progress; /* of life, when they were looked at last */
};

/* Forwards what the GPU cannot see: the caller's flag, and the engine's. Returns the engine's. */
static uint32_t forward_flags(const struct gq_cuda *cu, const struct gq_launch *l)
{
    uint32_t leave = __atomic_load_n(&cu->exec.flags, __ATOMIC_RELAXED);
    uint32_t cancel = l->cancel && __atomic_load_n(l->cancel, __ATOMIC_RELAXED);

    if (leave || cancel)
        __atomic_store_n(cu->runs[l->index].flags, leave | (cancel ? GQ_FLAG_CANCEL : 0),
                         __ATOMIC_RELAXED);
    return leave;
}

/* Have all queues of the run been handed back? Acquire: the results were written before. */
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
 * A kernel whose commands make no progress leaves when the oldest is overdue, which it looks for
 * eight times within a command's deadline; and at once at the end of its budget, or when it is told
 * to. What is still there GQ_HANG_MS later does not run as written.
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

/* cudaErrorNotReady is taken back like an error, or a later call reports it as its own. */
static cudaError_t query(cudaStream_t stream)
{
    cudaError_t err = cudaStreamQuery(stream);

    if (err == cudaErrorNotReady)
        cudaGetLastError();
    return err;
}

/* Of a resident kernel's stream, too: but that it has ended says nothing. */
static cudaError_t query_run(const struct gq_cuda *cu, const struct gq_launch *l)
{
    cudaError_t err;

    if (!l->persistent)
        return query(cu->runs[l->index].stream);
    err = query(gq_persistent_stream(cu->persistent));
    return err == cudaSuccess ? cudaErrorNotReady : err;
}

/*
 * The copies of a read go behind its commands by the host's hand, not by the stream's order: a
 * kernel that waits for another holds up what other streams launch through the same hardware queue,
 * and that may be the simulated drive's copy kernel, without which the other never ends.
 */
static cudaError_t make_copies(const struct gq_cuda *cu, const struct gq_launch *l,
                               const struct gq_chunk *chunk)
{
    cudaError_t err =
        gq_kernel_copies(chunk->copies, chunk->n_copies, chunk->results, cu->runs[l->index].stream);

    return err == cudaSuccess ? cudaErrorNotReady : err;
}

/*
 * Looks at memory as long as that can tell something new, for asking CUDA takes locks that the
 * threads which launch copies need; asks now and then all the same, since a kernel that faulted
 * says nothing. When the queues have been handed back, only copies are left, if there are any.
 */
int gq_cuda_wait_run(struct gq_cuda *cu, const struct gq_launch *l, const struct gq_chunk *chunk)
{
    struct watch w = {.start_ns = now_ns(), .progress_ns = now_ns()};
    bool running = chunk->n_cmds != 0, copies = !l->is_write && chunk->n_copies, moving = false;
    cudaError_t err = cudaErrorNotReady;

    for (unsigned i = 1; err == cudaErrorNotReady; i++) {
        bool leave = forward_flags(cu, l) & GQ_FLAG_LEAVE;

        running = running && !all_ended(l);
        if (!running && !copies)
            return 0;
        if (!running && !moving) {
            moving = true;
            err = make_copies(cu, l, chunk);
            continue;
        }
        if (l->persistent && gq_persistent_keep(cu->persistent))
            return -EIO;
        if (!running || i % ASK_CUDA_EVERY == 0)
            err = query_run(cu, l);
        /* Since the look at its queues a kernel may have ended: the next look tells. */
        if (err == cudaSuccess && running && all_ended(l)) {
            err = cudaErrorNotReady;
            continue;
        }
        if (err == cudaErrorNotReady && i % ASK_CUDA_EVERY == 0 &&
            (gq_cuda_stuck(cu) || hangs(&w, l, leave))) {
            __atomic_store_n(&cu->stuck, true, __ATOMIC_RELAXED);
            return -EIO;
        }
        if (!l->persistent || i > LOOKS_FOR_ONE)
            sched_yield();
    }
    return gq_cuda_errno(err);
}
