/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Loads the CUDA driver with dlopen(3), so that programs start on machines
 * without it.
 */
#include "client/lib/cuda_driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/lib/cuda_driver_internal.h"
#include "client/lib/error.h"
#include "support/clock.h"

#define DRAIN_STEP_NS 100000 /* interval between two queries of a stream */

static int driver_failed(struct cuda_driver *cu, CUresult result, const char *what)
{
    const char *text = NULL;

    cu->cuGetErrorString(result, &text);
    return gpunvme_fail(result == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : -EIO, "%s: %s", what,
                        text ? text : "unknown CUDA error");
}

static int driver_check(struct cuda_driver *cu, CUresult result, const char *what)
{
    return result ? driver_failed(cu, result, what) : 0;
}

static const struct {
    const char *symbol;
    size_t offset; /* of the function's address in struct cuda_driver */
} driver_functions[] = {
#define DRIVER_ENTRY(name, symbol, args) {symbol, offsetof(struct cuda_driver, name)},
    DRIVER_FUNCTIONS(DRIVER_ENTRY)
#undef DRIVER_ENTRY
};

static int load_functions(struct cuda_driver *cu)
{
    for (size_t i = 0; i < sizeof(driver_functions) / sizeof(driver_functions[0]); i++) {
        void *address = dlsym(cu->library, driver_functions[i].symbol);
        if (!address)
            return gpunvme_fail(-ENODEV, "libcuda.so.1 has no %s: the driver is too old",
                                driver_functions[i].symbol);
        memcpy((char *)cu + driver_functions[i].offset, &address, sizeof(address));
    }
    return 0;
}

static int init_driver(struct cuda_driver *cu)
{
    int devices = 0;
    CUresult result = cu->cuInit(0);

    if (!result)
        result = cu->cuDeviceGetCount(&devices);
    if (result) {
        driver_failed(cu, result, "cuInit");
        return -ENODEV;
    }
    return devices ? 0 : gpunvme_fail(-ENODEV, "the CUDA driver sees no device");
}

int cuda_driver_open(struct cuda_driver **out)
{
    struct cuda_driver *cu = calloc(1, sizeof(*cu));

    if (!cu)
        return gpunvme_fail(-ENOMEM, "out of memory");
    pthread_mutex_init(&cu->lock, NULL);
    cu->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int err = cu->library ? load_functions(cu)
                          : gpunvme_fail(-ENODEV, "no CUDA driver on this machine (libcuda.so.1)");
    if (!err)
        err = init_driver(cu);
    if (err) {
        cuda_driver_close(cu);
        return err;
    }
    *out = cu;
    return 0;
}

void cuda_driver_close(struct cuda_driver *cu)
{
    if (!cu)
        return;
    for (int i = 0; i < CUDA_MAX_DEVICES; i++) {
        if (cu->contexts[i])
            cu->cuDevicePrimaryCtxRelease(i);
    }
    if (cu->library)
        dlclose(cu->library);
    pthread_mutex_destroy(&cu->lock);
    free(cu);
}

static CUresult retain_context(struct cuda_driver *cu, int device, CUcontext *context)
{
    CUresult result = 0;

    pthread_mutex_lock(&cu->lock);
    *context = cu->contexts[device];
    if (!*context)
        result = cu->cuDevicePrimaryCtxRetain(context, device);
    if (!result)
        cu->contexts[device] = *context;
    pthread_mutex_unlock(&cu->lock);
    return result;
}

/* Makes the device's primary context current. The CUDA runtime uses the same context. */
static int push_context(struct cuda_driver *cu, int device)
{
    CUcontext context;
    CUresult result = 0;

    if (device < 0 || device >= CUDA_MAX_DEVICES)
        return gpunvme_fail(-ENODEV, "CUDA device %d: no such ordinal", device);
    context = cu->contexts[device];
    if (!context)
        result = retain_context(cu, device, &context);
    if (!result)
        result = cu->cuCtxPushCurrent(context);
    return driver_check(cu, result, "CUDA context");
}

static void pop_context(struct cuda_driver *cu)
{
    CUcontext old;

    cu->cuCtxPopCurrent(&old);
}

/* Called with the result of a call that was made in the context. Returns 0 or -errno. */
static int leave_context(struct cuda_driver *cu, CUresult result, const char *what)
{
    pop_context(cu);
    return driver_check(cu, result, what);
}

int cuda_driver_locate(struct cuda_driver *cu, uint64_t addr, int *device)
{
    unsigned type = 0;
    CUresult result = cu->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, addr);

    *device = CUDA_NO_DEVICE;
    if (result == CUDA_ERROR_INVALID_VALUE || (!result && type != CU_MEMORYTYPE_DEVICE))
        return 0;
    if (!result)
        result = cu->cuPointerGetAttribute(device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, addr);
    return driver_check(cu, result, "cuPointerGetAttribute");
}

void cuda_driver_sync_copies(struct cuda_driver *cu, int device, uint64_t addr)
{
    const unsigned on = 1;

    if (push_context(cu, device))
        return;
    (void)cu->cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, addr);
    pop_context(cu);
}

uint64_t cuda_driver_allocation_id(struct cuda_driver *cu, uint64_t addr)
{
    unsigned long long id = 0;

    return cu->cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, addr) == 0 ? id : 0;
}

int cuda_driver_allocation(struct cuda_driver *cu, uint64_t addr, struct cuda_allocation *out)
{
    CUdeviceptr base;
    size_t len;

    *out = (struct cuda_allocation){.device = CUDA_NO_DEVICE};
    int err = cuda_driver_locate(cu, addr, &out->device);
    if (err || out->device == CUDA_NO_DEVICE)
        return err;
    err = push_context(cu, out->device);
    if (err)
        return err;
    err = leave_context(cu, cu->cuMemGetAddressRange(&base, &len, addr), "cuMemGetAddressRange");
    if (err)
        return err;
    out->id = cuda_driver_allocation_id(cu, addr);
    out->base = base;
    out->len = len;
    return 0;
}

int cuda_driver_uuid(struct cuda_driver *cu, int device, uint8_t uuid[16])
{
    CUuuid id;
    CUdevice dev;
    CUresult result = cu->cuDeviceGet(&dev, device);

    if (!result)
        result = cu->cuDeviceGetUuid(&id, dev);
    if (result)
        return driver_failed(cu, result, "cuDeviceGetUuid");
    memcpy(uuid, id.bytes, sizeof(id.bytes));
    return 0;
}

int cuda_driver_current(struct cuda_driver *cu)
{
    CUdevice device;

    return cu->cuCtxGetDevice(&device) ? CUDA_NO_DEVICE : device;
}

int cuda_driver_devices(struct cuda_driver *cu)
{
    int devices = 0;

    return cu->cuDeviceGetCount(&devices) ? 0 : devices;
}

int cuda_driver_describe(struct cuda_driver *cu, int device, struct cuda_device_info *out)
{
    CUdevice dev;
    CUresult result = cu->cuDeviceGet(&dev, device);

    if (!result)
        result = cu->cuDeviceGetName(out->name, sizeof(out->name), dev);
    if (!result)
        result = cu->cuDeviceGetPCIBusId(out->bus_id, sizeof(out->bus_id), dev);
    if (!result)
        result = cu->cuDriverGetVersion(&out->version);
    return driver_check(cu, result, "CUDA device");
}

int cuda_driver_find(struct cuda_driver *cu, const uint8_t uuid[16], int *device)
{
    int devices = 0;
    CUresult result = cu->cuDeviceGetCount(&devices);

    if (result)
        return driver_failed(cu, result, "cuDeviceGetCount");
    for (int i = 0; i < devices; i++) {
        uint8_t id[16];
        int err = cuda_driver_uuid(cu, i, id);
        if (err)
            return err;
        if (memcmp(id, uuid, sizeof(id)) == 0) {
            *device = i;
            return 0;
        }
    }
    return gpunvme_fail(-ENODEV, "this process does not see a GPU of the mount "
                                 "(CUDA_VISIBLE_DEVICES?)");
}

static int check_exportable(struct cuda_driver *cu, uint64_t addr)
{
    unsigned managed = 0;
    int capable = 0;
    CUresult result = cu->cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, addr);

    if (!result)
        result = cu->cuPointerGetAttribute(&capable,
                                           CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, addr);
    if (result)
        return driver_failed(cu, result, "cuPointerGetAttribute");
    if (managed)
        return gpunvme_fail(-ENOTSUP, "managed memory cannot be registered: use cudaMalloc");
    if (!capable)
        return gpunvme_fail(-ENOTSUP, "memory without a CUDA IPC handle (VMM or memory pool) "
                                      "cannot be registered: use cudaMalloc");
    return 0;
}

static int get_handle(struct cuda_driver *cu, uint64_t addr, size_t len, CUipcMemHandle *handle,
                      uint64_t *offset)
{
    CUdeviceptr base;
    size_t size;
    CUresult result = cu->cuMemGetAddressRange(&base, &size, addr);

    if (result)
        return driver_failed(cu, result, "cuMemGetAddressRange");
    if (len > size || addr - base > size - len)
        return gpunvme_fail(-EINVAL, "the buffer leaves its CUDA allocation of %zu bytes", size);
    result = cu->cuIpcGetMemHandle(handle, base);
    if (result)
        return driver_failed(cu, result, "cuIpcGetMemHandle");
    *offset = addr - base;
    return 0;
}

int cuda_driver_export(struct cuda_driver *cu, int device, uint64_t addr, size_t len,
                       uint8_t handle[64], uint64_t *offset)
{
    CUipcMemHandle ipc;
    int err = push_context(cu, device);

    if (err)
        return err;
    err = check_exportable(cu, addr);
    if (!err)
        err = get_handle(cu, addr, len, &ipc, offset);
    pop_context(cu);
    if (!err)
        memcpy(handle, ipc.reserved, sizeof(ipc.reserved));
    return err;
}

#define EXPORT_PAGE 4096u

int cuda_driver_export_pages(struct cuda_driver *cu, int device, uint64_t addr, size_t len)
{
    uint64_t head = addr % EXPORT_PAGE;
    size_t pages = (head + len + EXPORT_PAGE - 1) / EXPORT_PAGE * EXPORT_PAGE, size;
    CUdeviceptr base;
    int fd = -1;
    int err = push_context(cu, device);

    if (err)
        return err;
    CUresult result = cu->cuMemGetAddressRange(&base, &size, addr);
    if (!result && base % EXPORT_PAGE == 0)
        result = cu->cuMemGetHandleForAddressRange(&fd, addr - head, pages,
                                                   CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    pop_context(cu);
    return result || fd < 0 ? -ENOTSUP : fd;
}

/*
 * Exports the handle of the allocation at addr. Only allocations of VMM have one.
 */
static int export_handle(struct cuda_driver *cu, uint64_t addr)
{
    unsigned long long handle;
    int fd = -1;

    if (cu->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)addr))
        return -ENOTSUP;
    CUresult result =
        cu->cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    cu->cuMemRelease(handle);
    if (!result && fd >= 0)
        return fd;
    return gpunvme_fail(-ENOTSUP, "VMM memory that was created without the handle type "
                                  "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR cannot be registered");
}

/* The caller has made the context current. */
static int export_segment(struct cuda_driver *cu, uint64_t addr, bool pages,
                          struct cuda_segment *out)
{
    CUdeviceptr base;
    size_t size;

    *out = (struct cuda_segment){.handle = -1, .exported = -1};
    if (cu->cuMemGetAddressRange(&base, &size, addr))
        return -ENOTSUP;
    out->base = base;
    out->len = size;
    out->handle = export_handle(cu, addr);
    if (out->handle < 0)
        return out->handle;
    if (pages && cu->cuMemGetHandleForAddressRange(&out->exported, base, size,
                                                   CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0))
        out->exported = -1;
    return 0;
}

void cuda_driver_close_segments(const struct cuda_segment *segments, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        close(segments[i].handle);
        if (segments[i].exported >= 0)
            close(segments[i].exported);
    }
}

static int export_segments(struct cuda_driver *cu, uint64_t addr, size_t len, bool pages,
                           struct cuda_segment *out, unsigned max)
{
    uint64_t at = addr;
    unsigned n = 0;
    int err = 0;

    for (; at < addr + len && !err; n += !err) {
        err = n == max ? -ENOTSUP : export_segment(cu, at, pages, &out[n]);
        if (!err)
            at = out[n].base + out[n].len;
    }
    if (!err)
        return (int)n;
    cuda_driver_close_segments(out, n);
    return err;
}

int cuda_driver_export_segments(struct cuda_driver *cu, int device, uint64_t addr, size_t len,
                                bool pages, struct cuda_segment *out, unsigned max)
{
    int n = push_context(cu, device);

    if (n)
        return n;
    n = export_segments(cu, addr, len, pages, out, max);
    pop_context(cu);
    return n;
}

int cuda_driver_alloc(struct cuda_driver *cu, int device, size_t len, uint64_t *addr)
{
    CUdeviceptr ptr;
    int err = push_context(cu, device);

    if (err)
        return err;
    CUresult result = cu->cuMemAlloc(&ptr, len);
    pop_context(cu);
    if (result) {
        driver_failed(cu, result, "cuMemAlloc");
        return -ENOMEM;
    }
    *addr = ptr;
    return 0;
}

int cuda_driver_free(struct cuda_driver *cu, int device, uint64_t addr)
{
    int err = push_context(cu, device);

    return err ? err : leave_context(cu, cu->cuMemFree(addr), "cuMemFree");
}

int cuda_driver_copy_out(struct cuda_driver *cu, int device, void *dst, uint64_t src, size_t len)
{
    int err = push_context(cu, device);

    return err ? err : leave_context(cu, cu->cuMemcpyDtoH(dst, src, len), "cuMemcpyDtoH");
}

/*
 * Waits for the copy. If the source is not pinned, cuMemcpyHtoD() may return while the last bytes
 * are still being copied, and kernels in other streams, which do not wait for the copy, would load
 * the old ones.
 */
int cuda_driver_copy_in(struct cuda_driver *cu, int device, uint64_t dst, const void *src,
                        size_t len)
{
    int err = push_context(cu, device);

    if (err)
        return err;
    CUresult result = cu->cuMemcpyHtoD(dst, src, len);
    if (!result)
        result = cu->cuStreamSynchronize(NULL);
    return leave_context(cu, result, "cuMemcpyHtoD");
}

int cuda_driver_pin(struct cuda_driver *cu, int device, void *addr, size_t len)
{
    int err = push_context(cu, device);

    return err ? err
               : leave_context(cu, cu->cuMemHostRegister(addr, len, CU_MEMHOSTREGISTER_PORTABLE),
                               "cuMemHostRegister");
}

void cuda_driver_unpin(struct cuda_driver *cu, int device, void *addr)
{
    if (push_context(cu, device))
        return;
    cu->cuMemHostUnregister(addr);
    pop_context(cu);
}

int cuda_driver_stream_new(struct cuda_driver *cu, int device, bool urgent, void **stream)
{
    CUstream made = NULL;
    int least = 0, greatest = 0;
    int err = push_context(cu, device);

    if (err)
        return err;
    CUresult result = urgent ? cu->cuCtxGetStreamPriorityRange(&least, &greatest) : 0;
    if (!result)
        result = cu->cuStreamCreateWithPriority(&made, CU_STREAM_NON_BLOCKING, greatest);
    *stream = made;
    return leave_context(cu, result, "cuStreamCreateWithPriority");
}

void cuda_driver_stream_free(struct cuda_driver *cu, int device, void *stream)
{
    if (push_context(cu, device))
        return;
    cu->cuStreamDestroy(stream);
    pop_context(cu);
}

int cuda_driver_copy_start(struct cuda_driver *cu, int device, void *stream, uint64_t dst,
                           uint64_t src, size_t len)
{
    int err = push_context(cu, device);

    return err ? err : leave_context(cu, cu->cuMemcpyAsync(dst, src, len, stream), "cuMemcpyAsync");
}

int cuda_driver_copy_wait(struct cuda_driver *cu, int device, void *stream)
{
    int err = push_context(cu, device);

    return err ? err : leave_context(cu, cu->cuStreamSynchronize(stream), "copy");
}

int cuda_driver_ignore_captures(struct cuda_driver *cu)
{
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    cu->cuThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

void cuda_driver_heed_captures(struct cuda_driver *cu, int before)
{
    cu->cuThreadExchangeStreamCaptureMode(&before);
}

int cuda_driver_stream_check(struct cuda_driver *cu, int device, void *stream)
{
    int err = push_context(cu, device);

    if (err)
        return err;
    int mode = cuda_driver_ignore_captures(cu);
    CUresult result = cu->cuStreamQuery(stream);
    cuda_driver_heed_captures(cu, mode);
    pop_context(cu);
    if (result == 0 || result == CUDA_ERROR_NOT_READY)
        return 0;
    driver_failed(cu, result, "the CUDA context has failed, start the process anew");
    return -EIO;
}

/* A stream that is being captured is not queried, because that would invalidate the capture. */
bool cuda_driver_stream_drain(struct cuda_driver *cu, int device, void *stream,
                              uint64_t patience_ns)
{
    const struct timespec step = {.tv_nsec = DRAIN_STEP_NS};
    uint64_t end = now_ns() + patience_ns;
    CUresult result;

    if (cuda_driver_is_captured(cu, stream) || push_context(cu, device))
        return true;
    int mode = cuda_driver_ignore_captures(cu);
    while ((result = cu->cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY && now_ns() < end)
        nanosleep(&step, NULL);
    cuda_driver_heed_captures(cu, mode);
    pop_context(cu);
    return result != CUDA_ERROR_NOT_READY;
}

bool cuda_driver_is_captured(struct cuda_driver *cu, void *stream)
{
    int status = 0;

    return cu->cuStreamIsCapturing(stream, &status) == 0 && status;
}

int cuda_driver_stream_call(struct cuda_driver *cu, void *stream, void (*fn)(void *arg), void *arg)
{
    return driver_check(cu, cu->cuLaunchHostFunc(stream, fn, arg), "cuLaunchHostFunc");
}

int cuda_driver_stream_await(struct cuda_driver *cu, void *stream, uint64_t at, uint32_t value)
{
    CUresult result = cu->cuStreamWaitValue32(stream, at, value, CU_STREAM_WAIT_VALUE_GEQ);

    return driver_check(cu, result, "cuStreamWaitValue32");
}

int cuda_driver_stream_end(struct cuda_driver *cu, void *stream)
{
    return driver_check(cu, cu->cuStreamSynchronize(stream), "cuStreamSynchronize");
}

static unsigned host_flags(enum cuda_host_kind kind)
{
    unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;

    if (kind == CUDA_HOST_READ_ONLY)
        flags |= CU_MEMHOSTREGISTER_READ_ONLY;
    if (kind == CUDA_HOST_REGISTERS)
        flags |= CU_MEMHOSTREGISTER_IOMEMORY;
    return flags;
}

int cuda_driver_map(struct cuda_driver *cu, int device, void *addr, size_t len,
                    enum cuda_host_kind kind, uint64_t *mapped)
{
    CUdeviceptr ptr = 0;
    int err = push_context(cu, device);

    if (err)
        return err;
    CUresult result = cu->cuMemHostRegister(addr, len, host_flags(kind));
    if (!result) {
        result = cu->cuMemHostGetDevicePointer(&ptr, addr, 0);
        if (result)
            cu->cuMemHostUnregister(addr);
    }
    *mapped = ptr;
    return leave_context(cu, result, "memory shared with the mount");
}

int cuda_driver_load(struct cuda_driver *cu, int device, const void *image, const char *name,
                     struct cuda_kernel *out)
{
    CUmodule module;
    CUfunction function;
    int registers;
    int err = push_context(cu, device);

    if (err)
        return err;
    CUresult result = cu->cuModuleLoadData(&module, image);
    if (!result) {
        result = cu->cuModuleGetFunction(&function, module, name);
        if (!result)
            result = cu->cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function);
        if (result)
            cu->cuModuleUnload(module);
    }
    err = leave_context(cu, result, "the library's kernel");
    if (!err)
        *out = (struct cuda_kernel){.module = module, .function = function};
    return err;
}

void cuda_driver_unload(struct cuda_driver *cu, int device, struct cuda_kernel *kernel)
{
    if (!kernel->module || push_context(cu, device))
        return;
    cu->cuModuleUnload(kernel->module);
    pop_context(cu);
    *kernel = (struct cuda_kernel){0};
}

int cuda_driver_launch(struct cuda_driver *cu, int device, const struct cuda_kernel *kernel,
                       unsigned blocks, unsigned threads, void *stream, void **args)
{
    int err = push_context(cu, device);

    return err ? err
               : leave_context(cu,
                               cu->cuLaunchKernel(kernel->function, blocks, 1, 1, threads, 1, 1, 0,
                                                  stream, args, NULL),
                               "launch");
}
