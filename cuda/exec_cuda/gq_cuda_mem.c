/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Provides memory of the CUDA executor: imported GPU memory of applications,
 * host memory mapped for the GPU (rings, doorbells, work lists), and its own
 * allocations. Every call here may make the device wait, so no run may be in
 * flight during a call (gq_cuda.c).
 */
#include <assert.h>
#include <cudaTypedefs.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cuda/exec_cuda/gq_cuda_int.h"
#include "cuda/gq_host.h"
#include "cuda/gq_segments.h"

#define PAGE_MASK    ((uint64_t)NVME_PAGE_SIZE - 1)
#define MAPPED_FLAGS (cudaHostAllocPortable | cudaHostAllocMapped)

/* The range of imported memory must be inside one allocation of this device. */
static int cuda_mem_check_range(const struct gq_cuda *cu, uint64_t addr, uint64_t len)
{
    struct cudaPointerAttributes attr;
    PFN_cuMemGetAddressRange_v3020 range =
        (PFN_cuMemGetAddressRange_v3020)gq_cuda_driver_function("cuMemGetAddressRange");
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

/*
 * Fills in the import of device memory. A GPU's pages are larger than the
 * controller's, so the pages around the buffer belong to the same allocation.
 */
static void set_device_memory(uint64_t addr, uint64_t len, struct gq_import *out)
{
    out->head = addr & PAGE_MASK;
    out->base = addr - out->head;
    out->mem = (struct nvme_mem){
        .device = addr - out->head,
        .len = (out->head + len + PAGE_MASK) & ~PAGE_MASK,
        .fd = -1,
    };
}

static int import_local(const struct gq_cuda *cu, const struct gq_mem *mem, struct gq_import *out)
{
    uint64_t addr = (uint64_t)(uintptr_t)mem->addr;
    int err = cuda_mem_check_range(cu, addr, mem->len);

    if (!err)
        set_device_memory(addr, mem->len, out);
    return err;
}

/* CUDA counts the opens of a handle and returns the same address for each. */
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
        err = cuda_mem_check_range(cu, addr, mem->len);
    if (err) {
        cudaIpcCloseMemHandle(base);
        return err;
    }
    set_device_memory(addr, mem->len, out);
    out->mapping = base;
    /*
     * The client exports the same pages as this process maps only if both bases
     * are at a page.
     */
    if (mem->fd >= 0 && ((uintptr_t)base & PAGE_MASK) == 0)
        out->mem.fd = fcntl(mem->fd, F_DUPFD_CLOEXEC, 0);
    return 0;
}

/*
 * Maps host memory for the GPU. "Already registered" is an error, because the
 * registration may refer to other pages that were at this address before.
 */
static int cuda_mem_map_host(void *addr, size_t len, unsigned flags, void **device)
{
    cudaError_t err =
        cudaHostRegister(addr, len, flags | cudaHostRegisterPortable | cudaHostRegisterMapped);

    if (err != cudaSuccess)
        return gq_cuda_errno(err);
    err = cudaHostGetDevicePointer(device, addr, 0);
    if (err != cudaSuccess)
        cudaHostUnregister(addr);
    return gq_cuda_errno(err);
}

/*
 * Pins host memory and sets its GPU address. The controller reaches it as host
 * memory.
 */
static int cuda_mem_pin(struct gq_import *imp)
{
    void *device;
    int err = cuda_mem_map_host(imp->mem.addr, imp->mem.len, 0, &device);

    if (!err)
        imp->base = (uint64_t)(uintptr_t)device;
    return err;
}

static void unpin(struct gq_import *imp)
{
    cudaHostUnregister(imp->mem.addr);
    gq_host_release(imp);
}

int gq_cuda_import(struct gq_exec *x, const struct gq_mem *mem, struct gq_import *out)
{
    struct gq_cuda *cu = gq_cuda_of(x);

    if (gq_cuda_stuck(cu))
        return -EIO;
    if (mem->kind == GQ_MEM_CUDA)
        return import_local(cu, mem, out);
    if (mem->kind == GQ_MEM_CUDA_IPC)
        return import_ipc(cu, mem, out);
    if (mem->kind == GQ_MEM_SEGMENTS)
        return gq_cuda_import_segments(cu, mem, out);
    if (mem->kind == GQ_MEM_FD)
        return cuda_mem_pin(out);
    return -ENOTSUP;
}

static void close_export(const struct gq_import *imp)
{
    if (imp->mem.fd >= 0)
        close(imp->mem.fd);
}

void gq_cuda_release(struct gq_exec *x, struct gq_import *imp)
{
    if (gq_cuda_stuck(gq_cuda_of(x)))
        return;
    if (imp->mem.addr) {
        unpin(imp);
        return;
    }
    if (imp->map_len) {
        gq_cuda_release_segments(imp);
        gq_segments_forget(imp);
        return;
    }
    if (imp->mapping && cudaIpcCloseMemHandle(imp->mapping) != cudaSuccess)
        cudaGetLastError();
    close_export(imp);
}

/*
 * Allocates one page more, because cudaMalloc aligns to 256 bytes and the
 * controller needs pages.
 */
static int alloc_device_staging(size_t len, struct gq_import *out)
{
    uint64_t addr;
    int err = gq_cuda_errno(cudaMalloc(&out->mapping, len + NVME_PAGE_SIZE));

    if (err)
        return err;
    addr = ((uint64_t)(uintptr_t)out->mapping + PAGE_MASK) & ~PAGE_MASK;
    set_device_memory(addr, len, out);
    return 0;
}

/* Returns a dma-buf of whole pages, or -1 if the driver exports none. */
static int export_pages(uint64_t addr, size_t len)
{
    PFN_cuMemGetHandleForAddressRange_v11070 export_range =
        (PFN_cuMemGetHandleForAddressRange_v11070)gq_cuda_driver_function(
            "cuMemGetHandleForAddressRange");
    int fd = -1;

    if (!export_range || export_range(&fd, (CUdeviceptr)addr, len,
                                      CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) != CUDA_SUCCESS)
        return -1;
    return fd;
}

int gq_cuda_device_page(struct gq_exec *x, struct gq_import *out)
{
    int err;

    *out = (struct gq_import){.mem.fd = -1};
    err = alloc_device_staging(NVME_PAGE_SIZE, out);
    if (!err && !gq_cuda_of(x)->transport->copies_device_memory)
        out->mem.fd = export_pages(out->mem.device, NVME_PAGE_SIZE);
    return err;
}

static int alloc_host_staging(size_t len, struct gq_import *out)
{
    int err = gq_host_alloc(len, out);

    if (err)
        return err;
    err = cuda_mem_pin(out);
    if (err)
        gq_host_release(out);
    return err;
}

int gq_cuda_staging_alloc(struct gq_exec *x, size_t len, bool host, struct gq_import *out)
{
    (void)x;
    *out = (struct gq_import){.mem.fd = -1};
    return host ? alloc_host_staging(len, out) : alloc_device_staging(len, out);
}

void gq_cuda_staging_free(struct gq_exec *x, struct gq_import *imp)
{
    if (gq_cuda_stuck(gq_cuda_of(x)))
        return;
    if (imp->mem.addr) {
        unpin(imp);
        return;
    }
    cudaFree(imp->mapping);
    close_export(imp);
}

/*
 * Sends a port to the device. cudaMemcpy() from unpinned memory may return
 * before the bytes have arrived, and the runs' own streams do not wait for it.
 */
static int send_port(struct gq_cuda *cu, unsigned i)
{
    int err = gq_cuda_errno(cudaMemcpy(&cu->ports[i], &cu->host_ports[i], sizeof(struct gq_port),
                                       cudaMemcpyHostToDevice));

    return err ? err : gq_cuda_errno(cudaStreamSynchronize(NULL));
}

/*
 * Returns the GPU's address of a doorbell: the host's plus the distance of the
 * two mappings. Proxied doorbells are pinned memory with the same address on
 * both sides.
 */
static volatile uint32_t *cuda_mem_doorbell(const struct gq_cuda *cu, volatile uint32_t *host)
{
    if (!cu->doorbells)
        return host;
    return (volatile uint32_t *)(void *)(cu->doorbells +
                                         ((volatile char *)host -
                                          (volatile char *)cu->transport->doorbells));
}

static int port_memory(struct gq_port *port)
{
    cudaError_t err = cudaMalloc((void **)&port->trackers, port->depth * sizeof(*port->trackers));

    if (err == cudaSuccess)
        err = cudaMalloc((void **)&port->free_cids, port->depth * sizeof(*port->free_cids));
    if (err != cudaSuccess && port->trackers)
        cudaFree(port->trackers);
    return gq_cuda_errno(err);
}

int gq_cuda_port_add(struct gq_exec *x, unsigned i, const struct nvme_qpair *qp)
{
    struct gq_cuda *cu = gq_cuda_of(x);
    struct gq_port *port = &cu->host_ports[i];
    int err;

    if (gq_cuda_stuck(cu))
        return -EIO;
    *port = (struct gq_port){.depth = qp->depth};
    err = cuda_mem_map_host(qp->sq, qp->sq_len, 0, (void **)&port->sq);
    if (err)
        return err;
    err = cuda_mem_map_host(qp->cq, qp->cq_len, 0, (void **)&port->cq);
    if (err)
        goto unmap_sq;
    err = port_memory(port);
    if (err)
        goto unmap_cq;
    port->sq_doorbell = cuda_mem_doorbell(cu, qp->sq_doorbell);
    port->cq_doorbell = cuda_mem_doorbell(cu, qp->cq_doorbell);
    err = send_port(cu, i);
    if (err)
        goto free_memory;
    cu->rings[i] = (struct cuda_rings){.sq = qp->sq, .cq = qp->cq};
    return 0;

free_memory:
    cudaFree(port->trackers);
    cudaFree(port->free_cids);
unmap_cq:
    cudaHostUnregister(qp->cq);
unmap_sq:
    cudaHostUnregister(qp->sq);
    return err;
}

void gq_cuda_port_remove(struct gq_exec *x, unsigned i)
{
    struct gq_cuda *cu = gq_cuda_of(x);

    if (gq_cuda_stuck(cu))
        return;
    cudaFree(cu->host_ports[i].trackers);
    cudaFree(cu->host_ports[i].free_cids);
    cudaHostUnregister(cu->rings[i].cq);
    cudaHostUnregister(cu->rings[i].sq);
}

/* Pinned memory has the same address for GPU and host. */
int gq_cuda_alloc_pinned(void **out, size_t len)
{
    return gq_cuda_errno(cudaHostAlloc(out, len, MAPPED_FLAGS));
}

int gq_cuda_shared_alloc(struct gq_exec *x, size_t len, void **out)
{
    int err = gq_cuda_alloc_pinned(out, len);

    (void)x;
    if (!err)
        memset(*out, 0, len);
    return err;
}

void gq_cuda_shared_free(struct gq_exec *x, void *addr)
{
    if (!gq_cuda_stuck(gq_cuda_of(x)))
        cudaFreeHost(addr);
}

/*
 * Explains a failure. The NVIDIA driver maps a drive's registers by walking the
 * page tables, which many of its versions do not support. A software
 * controller's page is ordinary memory if its file is.
 */
static const char *why_not_mapped(const struct nvme_transport *t)
{
    if (t->doorbells_are_mmio)
        return "the NVIDIA driver does not map a drive's registers, which takes root or "
               "PeerMappingOverride=1, and driver 570.133, 580.65 or later, built for this kernel";
    return "CUDA does not map the server's doorbell page, whose file must be on tmpfs (/dev/shm)";
}

/*
 * Doorbells that are registered with CUDA. An address can be registered once in
 * a process, so the executors of a controller share it.
 */
#define SHARED_DOORBELLS 16
static struct {
    pthread_mutex_t lock; /* protects the rest */
    struct {
        void *at; /* NULL: free */
        unsigned users;
    } of[SHARED_DOORBELLS];
} cuda_mem_shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

/*
 * The caller holds the lock. Returns the entry of `at`, otherwise a free one,
 * or SHARED_DOORBELLS if there is none.
 */
static unsigned find_doorbells(const void *at)
{
    unsigned unused = SHARED_DOORBELLS;

    for (unsigned i = 0; i < SHARED_DOORBELLS; i++) {
        if (cuda_mem_shared.of[i].at == at)
            return i;
        if (!cuda_mem_shared.of[i].at)
            unused = i;
    }
    return unused;
}

/* Registers the doorbells, or takes the device's address of registered ones. */
static int map_doorbells(void *at, const struct nvme_transport *t, void **out)
{
    unsigned flags = t->doorbells_are_mmio ? cudaHostRegisterIoMemory : 0;
    int err = -ENOTSUP;

    pthread_mutex_lock(&cuda_mem_shared.lock);
    unsigned i = find_doorbells(at);
    if (i < SHARED_DOORBELLS && cuda_mem_shared.of[i].users)
        err = gq_cuda_errno(cudaHostGetDevicePointer(out, at, 0));
    else if (i < SHARED_DOORBELLS)
        err = cuda_mem_map_host(at, t->doorbells_len, flags, out);
    if (!err) {
        cuda_mem_shared.of[i].at = at;
        cuda_mem_shared.of[i].users++;
    }
    pthread_mutex_unlock(&cuda_mem_shared.lock);
    return err;
}

int gq_cuda_map_doorbells(struct gq_cuda *cu, enum gq_doorbells want)
{
    struct nvme_transport *t = cu->transport;
    struct gq_exec *x = &cu->exec;
    int err = -ENOTSUP;

    snprintf(x->note, sizeof(x->note), "%s", GQ_NOTE_REQUESTED);
    if (want != GQ_DOORBELLS_CPU) {
        err = map_doorbells((void *)(uintptr_t)t->doorbells, t, (void **)&cu->doorbells);
        snprintf(x->note, sizeof(x->note), "%s", err ? why_not_mapped(t) : "");
    }
    x->rings = !err;
    return err && want == GQ_DOORBELLS_DIRECT ? -ENOTSUP : 0;
}

void gq_cuda_unmap_doorbells(struct gq_cuda *cu)
{
    void *at = (void *)(uintptr_t)cu->transport->doorbells;

    if (!cu->doorbells)
        return;
    pthread_mutex_lock(&cuda_mem_shared.lock);
    unsigned i = find_doorbells(at);
    if (--cuda_mem_shared.of[i].users == 0) {
        cudaHostUnregister(at);
        cuda_mem_shared.of[i].at = NULL;
    }
    pthread_mutex_unlock(&cuda_mem_shared.lock);
}
