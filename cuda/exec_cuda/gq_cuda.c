/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the CUDA executor. A warp drives each queue. Data is transferred
 * to GPU memory. The queues are in host memory (tier 2).
 *
 * Rings, doorbells and work lists are host memory that the GPU accesses over
 * the bus. While the kernel of a run is on the GPU, it may wait for copies that
 * other threads have yet to launch (for a software controller). So no call that
 * makes the device wait for kernels may be made meanwhile. Runs hold `gate`
 * shared, and such calls hold `gate` exclusively (quiesce).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/exec_cuda/gq_cuda_int.h"
#include "cuda/exec_cuda/gq_kernels.h"
#include "support/minmax.h"

static struct gq_state *cuda_run_states(struct gq_exec *x, unsigned index)
{
    return gq_cuda_of(x)->runs[index].states;
}

static cudaError_t launch_list(struct gq_cuda *cu, const struct gq_launch *l)
{
    struct gq_kernel_run k = {
        .run = l->run, .ports = cu->ports, .states = cu->runs[l->index].states};

    memcpy(k.queues, l->queues, sizeof(k.queues));
    return gq_kernel_run(&k, &l->list->reads, cu->runs[l->index].stream);
}

/*
 * A longer list is worth a launch, and must not delay short ones in a slot of
 * the persistent kernel.
 */
#define SHORT_LIST 8u
#define SHORT_COPY (16u << 10)

/* Returns true for a few units by one queue that need no copy warps. */
static bool suits_persistent(const struct gq_launch *l)
{
    const struct gq_reads *reads = &l->list->reads;
    bool copies =
        reads->staged && (l->run.opcode == NVME_IO_WRITE || reads->whole.len > SHORT_COPY);

    return l->run.n_queues == 1 && l->run.n_cmds <= SHORT_LIST && !reads->desc && !copies;
}

/*
 * Wakes a parked software controller before the first store to a doorbell,
 * because it does not see stores of a GPU. With proxied doorbells the proxy
 * wakes it.
 */
static void wake_controller(const struct gq_cuda *cu, unsigned queues)
{
    if (cu->exec.rings)
        nvme_wake(cu->transport, queues);
}

/*
 * Posts or launches the run. In both cases the controller wakes up while the
 * GPU starts.
 */
static int begin_run(struct gq_cuda *cu, struct gq_launch *l)
{
    l->slot = -EBUSY;
    if (suits_persistent(l))
        l->slot = gq_persistent_post(cu->persistent, l, &cu->host_ports[l->queues[0]]);
    wake_controller(cu, l->run.n_queues);
    l->persistent = l->slot >= 0; /* a post that failed has left the slot free */
    if (l->slot == -EBUSY)
        return gq_cuda_errno(launch_list(cu, l));
    return l->persistent ? 0 : l->slot;
}

/* Enters the gate. wait() leaves it; start() itself does if nothing was launched. */
static int cuda_start(struct gq_exec *x, struct gq_launch *l)
{
    struct gq_cuda *cu = gq_cuda_of(x);
    struct cuda_run *run = &cu->runs[l->index];
    int err = gq_gate_enter(cu->gate, l, &cu->exec.flags);

    if (err)
        return err;
    /*
     * A relaxed store suffices: the launch, or the post, orders it before the
     * kernel.
     */
    __atomic_store_n(run->flags, 0, __ATOMIC_RELAXED);
    l->run.flags = run->flags;
    l->run.dealing = l->run.n_queues > 1 || l->list->reads.desc ? &cu->dealings[l->index] : NULL;
    l->persistent = false;
    err = gq_cuda_errno(cudaSetDevice(cu->device));
    if (!err)
        err = begin_run(cu, l);
    if (!err)
        return 0;
    /* Kernels launched before the error are asked to leave. */
    __atomic_store_n(run->flags, GQ_FLAG_LEAVE, __ATOMIC_RELAXED);
    gq_cuda_wait_run(cu, l);
    gq_gate_leave(cu->gate);
    return err;
}

/*
 * Called if a drive has written data to the GPU, because its CQE does not order
 * such data. Makes all writes that have arrived at the GPU's bus interface
 * visible to work launched later, before the caller is notified.
 */
static int flush_writes(const struct gq_cuda *cu, const struct gq_launch *l)
{
    if (l->run.opcode == NVME_IO_WRITE || cu->exec.tier < 2 || gq_cqe_covers_device(cu->transport))
        return 0;
    return gq_cuda_errno(cudaDeviceFlushGPUDirectRDMAWrites(
        cudaFlushGPUDirectRDMAWritesTargetCurrentDevice, cudaFlushGPUDirectRDMAWritesToOwner));
}

static int cuda_wait(struct gq_exec *x, struct gq_launch *l)
{
    struct gq_cuda *cu = gq_cuda_of(x);
    int err = gq_cuda_wait_run(cu, l);

    if (!err && l->persistent)
        gq_persistent_done(cu->persistent, l->slot);
    if (!err)
        err = flush_writes(cu, l);
    gq_gate_leave(cu->gate);
    return err;
}

/*
 * Copies to or from a buffer in device memory or pinned host memory; CUDA
 * decides by the address.
 */
static int cuda_copy(struct gq_cuda *cu, void *dst, const void *src, size_t len)
{
    cudaError_t err;

    if (gq_cuda_stuck(cu))
        return -EIO;
    pthread_mutex_lock(&cu->copy_lock);
    err = cudaSetDevice(cu->device);
    if (err == cudaSuccess)
        err = cudaMemcpyAsync(dst, src, len, cudaMemcpyDefault, cu->copy_stream);
    if (err == cudaSuccess)
        err = cudaStreamSynchronize(cu->copy_stream);
    pthread_mutex_unlock(&cu->copy_lock);
    return gq_cuda_errno(err);
}

static int cuda_put(struct gq_exec *x, uint64_t dst, const void *src, size_t len)
{
    return cuda_copy(gq_cuda_of(x), (void *)(uintptr_t)dst, src, len);
}

static int cuda_get(struct gq_exec *x, void *dst, uint64_t src, size_t len)
{
    return cuda_copy(gq_cuda_of(x), dst, (const void *)(uintptr_t)src, len);
}

/*
 * Computes at most GQ_CUDA_SUMS checksums. With `anywhere` the offsets of the
 * parts are in cu->sums.
 */
static cudaError_t make_sums(struct gq_cuda *cu, uint64_t base, bool anywhere, size_t n)
{
    const uint64_t *at = anywhere ? cu->sums->at : NULL;
    cudaError_t err = cudaSetDevice(cu->device);

    if (err == cudaSuccess)
        err = gq_sums_launch(base, at, (uint32_t)n, cu->sums->sums, cu->copy_stream);
    return err == cudaSuccess ? cudaStreamSynchronize(cu->copy_stream) : err;
}

static int cuda_sums(struct gq_exec *x, uint64_t base, const uint64_t *at, size_t n, uint32_t *sums)
{
    struct gq_cuda *cu = gq_cuda_of(x);
    cudaError_t err = cudaSuccess;

    pthread_mutex_lock(&cu->copy_lock);
    for (size_t done = 0, part; done < n && err == cudaSuccess; done += part) {
        part = min_u64(n - done, GQ_CUDA_SUMS);
        if (gq_cuda_stuck(cu))
            err = cudaErrorUnknown;
        if (at)
            memcpy(cu->sums->at, at + done, part * sizeof(*at));
        if (err == cudaSuccess)
            err = make_sums(cu, at ? base : base + done * GQ_SUM_BYTES, at != NULL, part);
        memcpy(sums + done, cu->sums->sums, part * sizeof(*sums));
    }
    pthread_mutex_unlock(&cu->copy_lock);
    return gq_cuda_errno(err);
}

static int cuda_port_trackers(struct gq_exec *x, unsigned i, struct gq_tracker *out)
{
    const struct gq_port *port = &gq_cuda_of(x)->host_ports[i];

    return cuda_copy(gq_cuda_of(x), out, port->trackers, (port->depth - 1) * sizeof(*out));
}

static void cuda_quiesce(struct gq_exec *x)
{
    struct gq_cuda *cu = gq_cuda_of(x);

    gq_gate_take(cu->gate);
    cudaSetDevice(cu->device);
}

static void cuda_resume(struct gq_exec *x)
{
    gq_gate_give(gq_cuda_of(x)->gate);
}

static void close_runs(struct gq_cuda *cu)
{
    for (unsigned i = 0; i < cu->n_runs; i++) {
        cudaStreamDestroy(cu->runs[i].stream);
        cudaFreeHost(cu->runs[i].states);
    }
}

/* The states of a run and its flags share an allocation. */
static int open_run(struct cuda_run *run)
{
    size_t states = GQ_MAX_QUEUES * sizeof(*run->states);
    int err = gq_cuda_alloc_pinned((void **)&run->states, states + sizeof(*run->flags));

    if (err)
        return err;
    run->flags = (uint32_t *)(void *)((char *)run->states + states);
    err = gq_cuda_errno(cudaStreamCreateWithFlags(&run->stream, cudaStreamNonBlocking));
    if (err)
        cudaFreeHost(run->states);
    return err;
}

static int open_runs(struct gq_cuda *cu, unsigned n)
{
    int err = 0;

    while (cu->n_runs < n && !err) {
        err = open_run(&cu->runs[cu->n_runs]);
        cu->n_runs += !err;
    }
    return err;
}

/*
 * Allocates zeroed ports and dealings; the words of dealings are zero between
 * runs.
 */
static int alloc_ports(struct gq_cuda *cu, unsigned max_runs)
{
    size_t ports = GQ_MAX_QUEUES * sizeof(struct gq_port);
    size_t len = ports + max_runs * sizeof(struct gq_dealing);
    int err = gq_cuda_errno(cudaMalloc((void **)&cu->ports, len));

    if (err)
        return err;
    cu->dealings = (struct gq_dealing *)(void *)((char *)cu->ports + ports);
    return gq_cuda_errno(cudaMemset(cu->ports, 0, len));
}

/* Also closes a device that was opened in part. */
static void close_device(struct gq_cuda *cu)
{
    close_runs(cu);
    if (cu->sums)
        cudaFreeHost(cu->sums);
    if (cu->persistent)
        gq_persistent_close(cu->persistent);
    if (cu->copy_stream)
        cudaStreamDestroy(cu->copy_stream);
    cudaFree(cu->ports);
}

/* Opens the other parts that need the device; close_device() undoes this. */
static int cuda_open_device(struct gq_cuda *cu, unsigned max_runs)
{
    int err = alloc_ports(cu, max_runs);

    if (!err)
        err = gq_cuda_errno(cudaStreamCreateWithFlags(&cu->copy_stream, cudaStreamNonBlocking));
    if (!err)
        err = gq_persistent_open(&cu->persistent);
    if (!err)
        err = gq_cuda_alloc_pinned((void **)&cu->sums, sizeof(*cu->sums));
    if (!err)
        err = open_runs(cu, max_runs);
    if (err)
        close_device(cu);
    return err;
}

static void cuda_close(struct gq_exec *x)
{
    struct gq_cuda *cu = gq_cuda_of(x);

    if (gq_cuda_stuck(cu) || x->in_reach)
        return;
    cuda_quiesce(x);
    close_device(cu);
    gq_cuda_unmap_doorbells(cu);
    cuda_resume(x);
    pthread_mutex_destroy(&cu->copy_lock);
    free(cu);
}

static const struct gq_exec_ops cuda_ops = {
    .import = gq_cuda_import,
    .release = gq_cuda_release,
    .staging_alloc = gq_cuda_staging_alloc,
    .staging_free = gq_cuda_staging_free,
    .device_page = gq_cuda_device_page,
    .shared_alloc = gq_cuda_shared_alloc,
    .shared_free = gq_cuda_shared_free,
    .port_add = gq_cuda_port_add,
    .port_remove = gq_cuda_port_remove,
    .port_trackers = cuda_port_trackers,
    .run_states = cuda_run_states,
    .start = cuda_start,
    .wait = cuda_wait,
    .put = cuda_put,
    .get = cuda_get,
    .sums = cuda_sums,
    .quiesce = cuda_quiesce,
    .resume = cuda_resume,
    .close = cuda_close,
};

/* Opens the parts after the device was selected. On an error `why` is filled. */
static int cuda_open_parts(struct gq_cuda *cu, const struct gq_options *opts, unsigned max_runs,
                           struct reason *why)
{
    int err = gq_cuda_errno(gq_kernels_load());

    if (err)
        return reason_set(why, err, "%s does not load the kernels", cu->exec.device);
    err = gq_cuda_map_doorbells(cu, opts->doorbells);
    if (err)
        return reason_set(why, err, "%s", cu->exec.note);
    err = cuda_open_device(cu, max_runs);
    if (err) {
        reason_set(why, 0, "%s has no memory left", cu->exec.device);
        gq_cuda_unmap_doorbells(cu);
    }
    return err;
}

int gq_cuda_open(struct nvme_ctrlr *c, const struct gq_options *opts, unsigned max_runs,
                 struct gq_exec **out, struct reason *why)
{
    struct gq_cuda *cu;
    int err = gq_probe(opts->device, why);

    if (err)
        return err;
    cu = calloc(1, sizeof(*cu));
    if (!cu)
        return -ENOMEM;
    cu->exec = (struct gq_exec){.ops = &cuda_ops, .kind = GQ_EXECUTOR_CUDA, .tier = 2};
    cu->device = opts->device;
    cu->transport = nvme_ctrlr_transport(c);
    err = gq_gate_of_device(cu->device, &cu->gate);
    if (err)
        goto free_cuda;
    if (gq_cuda_stuck(cu)) {
        err = reason_set(why, -ENODEV, "a kernel on CUDA device %d does not end", cu->device);
        goto free_cuda;
    }
    err = gq_cuda_select(cu, why);
    if (err)
        goto free_cuda;
    pthread_mutex_init(&cu->copy_lock, NULL);
    cuda_quiesce(&cu->exec);
    err = cuda_open_parts(cu, opts, max_runs, why);
    cuda_resume(&cu->exec);
    if (err)
        goto destroy_lock;
    *out = &cu->exec;
    return 0;

destroy_lock:
    pthread_mutex_destroy(&cu->copy_lock);
free_cuda:
    free(cu);
    return err;
}
