/*
 * The CUDA executor: a warp drives each queue, data goes straight to GPU memory, queues stay in
 * host memory (tier 2).
 *
 * Rings, doorbells and work lists are host memory that the GPU reads and writes over the bus.
 * While a run's kernel is resident it may be waiting for copies that other threads still have to
 * launch (a software controller's), so nothing here that makes the device wait for kernels may
 * happen meanwhile: runs hold `gate` shared, and calls of that kind hold it alone (quiesce).
 */
#include <assert.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/gq_exec.h"
#include "cuda/gq_kernels.h"
#include "cuda/gq_mover.h"

#define PAGE_MASK    ((uint64_t)NVME_PAGE_SIZE - 1)
#define MAPPED_FLAGS (cudaHostAllocPortable | cudaHostAllocMapped)

struct cuda_slot {
    cudaStream_t stream;
    struct gq_state *states; /* pinned: GQ_MAX_QUEUES */
    uint32_t *cancel;        /* pinned; the caller's flag is forwarded to it */
};

struct gq_cuda {
    struct gq_exec exec;
    int device;
    struct nvme_transport *transport;
    struct gq_mover *mover;
    pthread_rwlock_t gate;
    char *doorbells; /* as the GPU addresses them */
    bool doorbells_ours;
    struct gq_port *ports; /* device memory: GQ_MAX_QUEUES */
    struct gq_port host_ports[GQ_MAX_QUEUES];
    const struct nvme_qpair *qpairs[GQ_MAX_QUEUES];
    struct cuda_slot slots[GQ_MAX_QUEUES];
    unsigned n_slots;
    pthread_mutex_t copy_lock; /* one put, get or zero at a time, on copy_stream */
    cudaStream_t copy_stream;
};

static struct gq_cuda *cuda_of(struct gq_exec *x)
{
    return (struct gq_cuda *)x;
}

/* -errno for what CUDA said, which is taken back so that no later call reports it again. */
static int to_errno(cudaError_t err)
{
    if (err == cudaSuccess)
        return 0;
    cudaGetLastError();
    return err == cudaErrorMemoryAllocation ? -ENOMEM : -EIO;
}

/*
 * Both must be in place before the first CUDA call of the process. Kernels are loaded at once
 * (gq_kernels_load says why), and streams get hardware queues of their own: with the default of
 * eight, a copy that a resident kernel waits for could stand in line behind that kernel.
 */
static void set_environment(void)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

static pthread_once_t environment_once = PTHREAD_ONCE_INIT;

static void explain(cudaError_t err, char *why, size_t len)
{
    int driver = 0;

    cudaGetLastError();
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
        snprintf(why, len, "no NVIDIA driver on this machine");
    else
        snprintf(why, len, "%s", cudaGetErrorString(err));
}

int gq_probe(int cuda_device, char *why, size_t len)
{
    cudaError_t err;
    int n = 0;

    pthread_once(&environment_once, set_environment);
    err = cudaGetDeviceCount(&n);
    if (err != cudaSuccess) {
        explain(err, why, len);
        return -ENODEV;
    }
    if (cuda_device < 0 || cuda_device >= n) {
        snprintf(why, len, "CUDA device %d asked for, %d present", cuda_device, n);
        return -ENODEV;
    }
    if (len)
        why[0] = '\0';
    return 0;
}

/* Memory of others: what is named must lie inside one allocation of this device. */

typedef CUresult (*range_fn)(CUdeviceptr *base, size_t *size, CUdeviceptr ptr);

/* The runtime has no such call, and linking the driver would keep programs from starting without.
 */
static range_fn address_range(void)
{
    enum cudaDriverEntryPointQueryResult found;
    void *fn = NULL;
    cudaError_t err = cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &fn, 12000,
                                                       cudaEnableDefault, &found);

    if (err != cudaSuccess || found != cudaDriverEntryPointSuccess) {
        cudaGetLastError();
        return NULL;
    }
    return (range_fn)(uintptr_t)fn;
}

static int check_range(const struct gq_cuda *cu, uint64_t addr, uint64_t len)
{
    struct cudaPointerAttributes attr;
    range_fn range = address_range();
    CUdeviceptr base;
    size_t size;

    if (cudaPointerGetAttributes(&attr, (const void *)(uintptr_t)addr) != cudaSuccess) {
        cudaGetLastError();
        return -EINVAL;
    }
    if (attr.type != cudaMemoryTypeDevice || attr.device != cu->device)
        return -EINVAL;
    if (!range || range(&base, &size, (CUdeviceptr)addr) != CUDA_SUCCESS)
        return -EINVAL;
    return addr - base <= size && len <= size - (addr - base) ? 0 : -EINVAL;
}

/* A GPU's pages are larger than the controller's, so the pages around the buffer are its own. */
static void set_device_memory(const struct gq_cuda *cu, uint64_t addr, uint64_t len,
                              struct gq_import *out)
{
    out->head = addr & PAGE_MASK;
    out->mem = (struct nvme_mem){
        .device = addr - out->head,
        .len = (out->head + len + PAGE_MASK) & ~PAGE_MASK,
        .fd = -1,
        .mover = gq_mover_table(cu->mover),
    };
}

static int import_local(const struct gq_cuda *cu, const struct gq_mem *mem, struct gq_import *out)
{
    uint64_t addr = (uint64_t)(uintptr_t)mem->addr;
    int err = check_range(cu, addr, mem->len);

    if (!err)
        set_device_memory(cu, addr, mem->len, out);
    return err;
}

/* CUDA counts how often a handle is open, and gives the same address each time. */
static int import_ipc(const struct gq_cuda *cu, const struct gq_mem *mem, struct gq_import *out)
{
    cudaIpcMemHandle_t handle;
    void *base;
    uint64_t addr;
    int err = -EINVAL;

    static_assert(sizeof(handle) == sizeof(mem->ipc), "an IPC handle is 64 bytes");
    memcpy(&handle, mem->ipc, sizeof(handle));
    if (cudaIpcOpenMemHandle(&base, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess) {
        cudaGetLastError();
        return -EINVAL;
    }
    addr = (uint64_t)(uintptr_t)base + mem->offset;
    if (addr >= mem->offset)
        err = check_range(cu, addr, mem->len);
    if (err) {
        cudaIpcCloseMemHandle(base);
        return err;
    }
    set_device_memory(cu, addr, mem->len, out);
    out->mapping = base;
    return 0;
}

static int cuda_import(struct gq_exec *x, const struct gq_mem *mem, struct gq_import *out)
{
    struct gq_cuda *cu = cuda_of(x);

    *out = (struct gq_import){.mem.fd = -1};
    if (mem->kind == GQ_MEM_CUDA)
        return import_local(cu, mem, out);
    if (mem->kind == GQ_MEM_CUDA_IPC)
        return import_ipc(cu, mem, out);
    return -ENOTSUP;
}

static void cuda_release(struct gq_exec *x, struct gq_import *imp)
{
    (void)x;
    if (imp->mapping && cudaIpcCloseMemHandle(imp->mapping) != cudaSuccess)
        cudaGetLastError();
}

/* cudaMalloc promises 256 bytes of alignment, the controller wants pages: one page more. */
static int cuda_staging_alloc(struct gq_exec *x, size_t len, struct gq_import *out)
{
    struct gq_cuda *cu = cuda_of(x);
    uint64_t addr;
    int err;

    *out = (struct gq_import){.mem.fd = -1};
    err = to_errno(cudaMalloc(&out->mapping, len + NVME_PAGE_SIZE));
    if (err)
        return err;
    addr = ((uint64_t)(uintptr_t)out->mapping + PAGE_MASK) & ~PAGE_MASK;
    set_device_memory(cu, addr, len, out);
    return 0;
}

static void cuda_staging_free(struct gq_exec *x, struct gq_import *imp)
{
    (void)x;
    cudaFree(imp->mapping);
}

/* Host memory of others, made reachable for the GPU. *ours: it has to be taken back. */
static int map_host(void *addr, size_t len, unsigned flags, void **device, bool *ours)
{
    cudaError_t err = cudaHostRegister(addr, len, flags);

    *ours = err == cudaSuccess;
    if (err == cudaErrorHostMemoryAlreadyRegistered) {
        cudaGetLastError();
        err = cudaSuccess;
    }
    if (err == cudaSuccess)
        err = cudaHostGetDevicePointer(device, addr, 0);
    if (err != cudaSuccess && *ours)
        cudaHostUnregister(addr);
    return to_errno(err);
}

static int map_ring(void *ring, size_t len, void **device)
{
    bool ours;

    return map_host(ring, len, cudaHostRegisterPortable | cudaHostRegisterMapped, device, &ours);
}

static int send_port(struct gq_cuda *cu, unsigned i)
{
    return to_errno(cudaMemcpy(&cu->ports[i], &cu->host_ports[i], sizeof(struct gq_port),
                               cudaMemcpyHostToDevice));
}

/* The GPU's address of a doorbell: the host's, moved by the distance of the two mappings. */
static volatile uint32_t *doorbell(const struct gq_cuda *cu, volatile uint32_t *host)
{
    return (volatile uint32_t *)(void *)(cu->doorbells +
                                         ((volatile char *)host -
                                          (volatile char *)cu->transport->doorbells));
}

static int port_memory(struct gq_port *port)
{
    cudaError_t err = cudaMalloc((void **)&port->slots, port->depth * sizeof(*port->slots));

    if (err == cudaSuccess)
        err = cudaMalloc((void **)&port->free_cids, port->depth * sizeof(*port->free_cids));
    if (err != cudaSuccess && port->slots)
        cudaFree(port->slots);
    return to_errno(err);
}

static int cuda_port_add(struct gq_exec *x, unsigned i, const struct nvme_qpair *qp)
{
    struct gq_cuda *cu = cuda_of(x);
    struct gq_port *port = &cu->host_ports[i];
    int err;

    *port = (struct gq_port){.depth = qp->depth};
    err = map_ring(qp->sq, qp->sq_len, (void **)&port->sq);
    if (err)
        return err;
    err = map_ring(qp->cq, qp->cq_len, (void **)&port->cq);
    if (err)
        goto unmap_sq;
    err = port_memory(port);
    if (err)
        goto unmap_cq;
    port->sq_doorbell = doorbell(cu, qp->sq_doorbell);
    port->cq_doorbell = doorbell(cu, qp->cq_doorbell);
    err = send_port(cu, i);
    if (err)
        goto free_memory;
    cu->qpairs[i] = qp;
    return 0;

free_memory:
    cudaFree(port->slots);
    cudaFree(port->free_cids);
unmap_cq:
    cudaHostUnregister(qp->cq);
unmap_sq:
    cudaHostUnregister(qp->sq);
    return err;
}

static void cuda_port_remove(struct gq_exec *x, unsigned i)
{
    struct gq_cuda *cu = cuda_of(x);

    cudaSetDevice(cu->device);
    cudaFree(cu->host_ports[i].slots);
    cudaFree(cu->host_ports[i].free_cids);
    cudaHostUnregister(cu->qpairs[i]->cq);
    cudaHostUnregister(cu->qpairs[i]->sq);
}

/* Pinned memory has the same address for the GPU as for the host. */
static int alloc_pinned(void **out, size_t len)
{
    return to_errno(cudaHostAlloc(out, len, MAPPED_FLAGS));
}

static int cuda_chunk_alloc(struct gq_exec *x, struct gq_chunk *chunk)
{
    size_t cmds = GQ_CHUNK_CMDS * sizeof(*chunk->cmds);
    size_t pieces = GQ_CHUNK_PIECES * sizeof(*chunk->pieces);
    void *block;
    int err = alloc_pinned(&block, cmds + pieces + GQ_CHUNK_CMDS * sizeof(*chunk->results));

    (void)x;
    if (err)
        return err;
    chunk->cmds = block;
    chunk->pieces = (struct gq_piece *)(void *)((char *)block + cmds);
    chunk->results = (uint32_t *)(void *)((char *)block + cmds + pieces);
    return 0;
}

static void cuda_chunk_free(struct gq_exec *x, struct gq_chunk *chunk)
{
    (void)x;
    cudaFreeHost(chunk->cmds);
}

static struct gq_state *cuda_slot_states(struct gq_exec *x, unsigned slot)
{
    return cuda_of(x)->slots[slot].states;
}

static cudaError_t launch_commands(struct gq_cuda *cu, const struct gq_launch *l)
{
    struct gq_kernel_run k = {
        .run = l->run, .ports = cu->ports, .states = cu->slots[l->slot].states};

    memcpy(k.queues, l->queues, sizeof(k.queues));
    return gq_kernel_run(&k, cu->slots[l->slot].stream);
}

static cudaError_t launch_all(struct gq_cuda *cu, const struct gq_launch *l,
                              const struct gq_chunk *chunk)
{
    cudaStream_t stream = cu->slots[l->slot].stream;
    cudaError_t err = cudaSuccess;

    if (l->is_write && chunk->n_pieces)
        err = gq_kernel_pieces(chunk->pieces, chunk->n_pieces, chunk->results, stream);
    if (err == cudaSuccess && chunk->n_cmds)
        err = launch_commands(cu, l);
    if (err == cudaSuccess && !l->is_write && chunk->n_pieces)
        err = gq_kernel_pieces(chunk->pieces, chunk->n_pieces, chunk->results, stream);
    return err;
}

/* Takes the gate; wait() opens it again, or start() itself when nothing was launched. */
static int cuda_start(struct gq_exec *x, struct gq_launch *l, const struct gq_chunk *chunk)
{
    struct gq_cuda *cu = cuda_of(x);
    struct cuda_slot *slot = &cu->slots[l->slot];
    cudaError_t err;

    pthread_rwlock_rdlock(&cu->gate);
    /* Relaxed: the launch orders it before the kernel. */
    __atomic_store_n(slot->cancel, 0, __ATOMIC_RELAXED);
    l->run.cancel = slot->cancel;
    err = cudaSetDevice(cu->device);
    if (err == cudaSuccess)
        err = launch_all(cu, l, chunk);
    if (err == cudaSuccess)
        return 0;
    cudaStreamSynchronize(slot->stream);
    pthread_rwlock_unlock(&cu->gate);
    return to_errno(err);
}

/* Forwards the caller's cancel flag, which the GPU cannot see. */
static void forward_cancel(const struct gq_launch *l, struct cuda_slot *slot)
{
    if (l->cancel && __atomic_load_n(l->cancel, __ATOMIC_RELAXED))
        __atomic_store_n(slot->cancel, 1, __ATOMIC_RELAXED);
}

/*
 * Tier 2 with hardware: the drive wrote data to the GPU and CQEs to host memory, and a CQE may
 * have overtaken the data. The flush makes all writes that arrived at the GPU's bus interface
 * visible to work launched later, before the caller hears of them. A software controller's
 * copies are complete before it posts a CQE, and need nothing.
 */
static cudaError_t flush_writes(const struct gq_cuda *cu, const struct gq_launch *l)
{
    if (l->is_write || !cu->transport->doorbells_are_mmio)
        return cudaSuccess;
    return cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
                                              cudaFlushGPUDirectRDMAWritesToOwner);
}

/* The kernel ends by its own deadlines, and so does this loop. */
static int cuda_wait(struct gq_exec *x, struct gq_launch *l, const struct gq_chunk *chunk)
{
    struct gq_cuda *cu = cuda_of(x);
    struct cuda_slot *slot = &cu->slots[l->slot];
    cudaError_t err;

    (void)chunk;
    while ((err = cudaStreamQuery(slot->stream)) == cudaErrorNotReady) {
        cudaGetLastError();
        forward_cancel(l, slot);
        sched_yield();
    }
    if (err == cudaSuccess)
        err = flush_writes(cu, l);
    pthread_rwlock_unlock(&cu->gate);
    return to_errno(err);
}

static int copy(struct gq_cuda *cu, void *dst, const void *src, size_t len,
                enum cudaMemcpyKind kind)
{
    cudaError_t err;

    pthread_mutex_lock(&cu->copy_lock);
    err = cudaSetDevice(cu->device);
    if (err == cudaSuccess)
        err = cudaMemcpyAsync(dst, src, len, kind, cu->copy_stream);
    if (err == cudaSuccess)
        err = cudaStreamSynchronize(cu->copy_stream);
    pthread_mutex_unlock(&cu->copy_lock);
    return to_errno(err);
}

static int cuda_put(struct gq_exec *x, uint64_t dst, const void *src, size_t len)
{
    return copy(cuda_of(x), (void *)(uintptr_t)dst, src, len, cudaMemcpyHostToDevice);
}

static int cuda_get(struct gq_exec *x, void *dst, uint64_t src, size_t len)
{
    return copy(cuda_of(x), dst, (const void *)(uintptr_t)src, len, cudaMemcpyDeviceToHost);
}

/* By a kernel: the driver's own fill is not ordered against a device's DMA. */
static int cuda_zero(struct gq_exec *x, uint64_t dst, size_t len)
{
    struct gq_cuda *cu = cuda_of(x);
    cudaError_t err;

    pthread_mutex_lock(&cu->copy_lock);
    err = cudaSetDevice(cu->device);
    if (err == cudaSuccess && len)
        err = gq_kernel_fill(dst, len, cu->copy_stream);
    if (err == cudaSuccess)
        err = cudaStreamSynchronize(cu->copy_stream);
    pthread_mutex_unlock(&cu->copy_lock);
    return to_errno(err);
}

static void cuda_quiesce(struct gq_exec *x)
{
    struct gq_cuda *cu = cuda_of(x);

    pthread_rwlock_wrlock(&cu->gate);
    cudaSetDevice(cu->device);
}

static void cuda_resume(struct gq_exec *x)
{
    pthread_rwlock_unlock(&cuda_of(x)->gate);
}

static void close_slots(struct gq_cuda *cu)
{
    for (unsigned i = 0; i < cu->n_slots; i++) {
        cudaStreamDestroy(cu->slots[i].stream);
        cudaFreeHost(cu->slots[i].states);
    }
}

/* The states of a slot and its cancel flag share an allocation. */
static int open_slot(struct cuda_slot *slot)
{
    size_t states = GQ_MAX_QUEUES * sizeof(*slot->states);
    int err = alloc_pinned((void **)&slot->states, states + sizeof(*slot->cancel));

    if (err)
        return err;
    slot->cancel = (uint32_t *)(void *)((char *)slot->states + states);
    err = to_errno(cudaStreamCreateWithFlags(&slot->stream, cudaStreamNonBlocking));
    if (err)
        cudaFreeHost(slot->states);
    return err;
}

static int open_slots(struct gq_cuda *cu, unsigned n)
{
    int err = 0;

    while (cu->n_slots < n && !err) {
        err = open_slot(&cu->slots[cu->n_slots]);
        if (!err)
            cu->n_slots++;
    }
    if (err)
        close_slots(cu);
    return err;
}

static int map_doorbells(struct gq_cuda *cu)
{
    struct nvme_transport *t = cu->transport;
    unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;

    if (t->doorbells_are_mmio)
        flags |= cudaHostRegisterIoMemory;
    return map_host((void *)(uintptr_t)t->doorbells, t->doorbells_len, flags,
                    (void **)&cu->doorbells, &cu->doorbells_ours);
}

static void unmap_doorbells(struct gq_cuda *cu)
{
    if (cu->doorbells_ours)
        cudaHostUnregister((void *)(uintptr_t)cu->transport->doorbells);
}

/* Everything that needs the device; undone by close_device(). */
static int open_device(struct gq_cuda *cu, unsigned slots)
{
    int err = to_errno(gq_kernels_load());

    if (!err)
        err = map_doorbells(cu);
    if (err)
        return err;
    err = to_errno(cudaMalloc((void **)&cu->ports, GQ_MAX_QUEUES * sizeof(struct gq_port)));
    if (err)
        goto unmap_doorbells;
    err = to_errno(cudaStreamCreateWithFlags(&cu->copy_stream, cudaStreamNonBlocking));
    if (err)
        goto free_ports;
    err = gq_mover_open(cu->device, &cu->mover);
    if (err)
        goto destroy_stream;
    err = open_slots(cu, slots);
    if (err)
        goto close_mover;
    return 0;

close_mover:
    gq_mover_close(cu->mover);
destroy_stream:
    cudaStreamDestroy(cu->copy_stream);
free_ports:
    cudaFree(cu->ports);
unmap_doorbells:
    unmap_doorbells(cu);
    return err;
}

static void close_device(struct gq_cuda *cu)
{
    cudaSetDevice(cu->device);
    close_slots(cu);
    gq_mover_close(cu->mover);
    cudaStreamDestroy(cu->copy_stream);
    cudaFree(cu->ports);
    unmap_doorbells(cu);
}

/* A waiting registration goes before new runs, or it might wait for ever. */
static int open_locks(struct gq_cuda *cu)
{
    pthread_rwlockattr_t attr;
    int err = pthread_rwlockattr_init(&attr);

    if (err)
        return -err;
    pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    err = pthread_rwlock_init(&cu->gate, &attr);
    pthread_rwlockattr_destroy(&attr);
    if (err)
        return -err;
    pthread_mutex_init(&cu->copy_lock, NULL);
    return 0;
}

static void close_locks(struct gq_cuda *cu)
{
    pthread_mutex_destroy(&cu->copy_lock);
    pthread_rwlock_destroy(&cu->gate);
}

static void cuda_close(struct gq_exec *x)
{
    struct gq_cuda *cu = cuda_of(x);

    close_device(cu);
    close_locks(cu);
    free(cu);
}

static const struct gq_exec_ops cuda_ops = {
    .import = cuda_import,
    .release = cuda_release,
    .staging_alloc = cuda_staging_alloc,
    .staging_free = cuda_staging_free,
    .port_add = cuda_port_add,
    .port_remove = cuda_port_remove,
    .chunk_alloc = cuda_chunk_alloc,
    .chunk_free = cuda_chunk_free,
    .slot_states = cuda_slot_states,
    .start = cuda_start,
    .wait = cuda_wait,
    .put = cuda_put,
    .get = cuda_get,
    .zero = cuda_zero,
    .quiesce = cuda_quiesce,
    .resume = cuda_resume,
    .close = cuda_close,
};

/* Creates the context: the first call that can fail for reasons of the machine's. */
static int select_device(struct gq_cuda *cu, char *why, size_t why_len)
{
    struct cudaDeviceProp prop;
    cudaError_t err = cudaSetDevice(cu->device);

    if (err == cudaSuccess)
        err = cudaGetDeviceProperties(&prop, cu->device);
    if (err != cudaSuccess) {
        explain(err, why, why_len);
        return -ENODEV;
    }
    snprintf(cu->exec.device, sizeof(cu->exec.device), "%.127s", prop.name);
    static_assert(sizeof(cu->exec.gpu_uuid) == sizeof(prop.uuid.bytes), "UUID of a device");
    memcpy(cu->exec.gpu_uuid, prop.uuid.bytes, sizeof(cu->exec.gpu_uuid));
    return 0;
}

int gq_cuda_open(struct nvme_ctrlr *c, const struct gq_options *opts, unsigned slots,
                 struct gq_exec **out, char *why, size_t why_len)
{
    struct gq_cuda *cu;
    int err = gq_probe(opts->cuda_device, why, why_len);

    if (err)
        return err;
    cu = calloc(1, sizeof(*cu));
    if (!cu)
        return -ENOMEM;
    cu->exec = (struct gq_exec){.ops = &cuda_ops, .kind = GQ_EXECUTOR_CUDA, .tier = 2};
    cu->device = opts->cuda_device;
    cu->transport = nvme_ctrlr_transport(c);
    err = select_device(cu, why, why_len);
    if (err)
        goto free_cuda;
    err = open_locks(cu);
    if (err)
        goto free_cuda;
    err = open_device(cu, slots);
    if (err) {
        snprintf(why, why_len, "%s refused to map the controller's memory", cu->exec.device);
        goto close_locks;
    }
    *out = &cu->exec;
    return 0;

close_locks:
    close_locks(cu);
free_cuda:
    free(cu);
    return err;
}
