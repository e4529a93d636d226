/* SPDX-License-Identifier: BSD-2-Clause */
/* A CUDA driver without a GPU: device memory is host memory, streams are threads. */
#include "tests/client/cufile/fake_cuda.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_SUPPORTED = 801 };

#define EXPORT __attribute__((visibility("default")))

/* --- Memory ---------------------------------------------------------------------------------- */

struct allocation {
    struct allocation *next;
    char *device; /* no access */
    char *shadow; /* the same pages */
    size_t len;
    uint64_t id;
    bool ipc;
    int fd;
};

static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *allocations; /* protected by memory_lock */
static uint64_t last_id;
static atomic_bool captured, refuses_waits, refuses_exports;
static atomic_ullong copies;

static void lock_memory(void)
{
    pthread_mutex_lock(&memory_lock);
}

static void unlock_memory(void)
{
    pthread_mutex_unlock(&memory_lock);
}

/*
 * A child of fork(2) gets an answer from the driver, and no lock that a thread
 * of its parent held.
 */
__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(lock_memory, unlock_memory, unlock_memory);
}

static struct allocation *find(unsigned long long addr)
{
    struct allocation *a = allocations;

    while (a && addr - (uintptr_t)a->device >= a->len)
        a = a->next;
    return a;
}

static void unmap(struct allocation *a)
{
    if (a->device != MAP_FAILED)
        munmap(a->device, a->len);
    if (a->shadow != MAP_FAILED)
        munmap(a->shadow, a->len);
    close(a->fd);
    free(a);
}

static struct allocation *map_twice(char *device, size_t len, int fd)
{
    struct allocation *a = calloc(1, sizeof(*a));

    if (!a)
        return NULL;
    a->fd = dup(fd);
    a->len = len;
    a->device = mmap(device, len, PROT_NONE, MAP_SHARED | (device ? MAP_FIXED : 0), fd, 0);
    a->shadow = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (a->device != MAP_FAILED && a->shadow != MAP_FAILED)
        return a;
    unmap(a);
    return NULL;
}

static int map_at(char *device, size_t len, bool ipc)
{
    int fd = memfd_create("fake-cuda", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return OUT_OF_MEMORY;
    struct allocation *a = ftruncate(fd, (off_t)len) == 0 ? map_twice(device, len, fd) : NULL;
    close(fd);
    if (!a)
        return OUT_OF_MEMORY;
    a->ipc = ipc;
    pthread_mutex_lock(&memory_lock);
    a->id = ++last_id;
    a->next = allocations;
    allocations = a;
    pthread_mutex_unlock(&memory_lock);
    return 0;
}

EXPORT int cuMemAlloc_v2(unsigned long long *out, size_t len)
{
    int result = map_at(NULL, len, true);

    *out = result ? 0 : (uintptr_t)allocations->device;
    return result;
}

EXPORT int fake_cuda_alloc_vmm(unsigned long long *out, size_t segment, size_t count)
{
    char *base = mmap(NULL, segment * count, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int result = base == MAP_FAILED ? OUT_OF_MEMORY : 0;

    for (size_t i = 0; i < count && !result; i++)
        result = map_at(base + i * segment, segment, false);
    *out = (uintptr_t)base;
    return result;
}

/*
 * Returns a file in place of a dma-buf, with the length of the dma-buf and the
 * device's bytes.
 */
EXPORT int cuMemGetHandleForAddressRange(void *handle, unsigned long long addr, size_t len,
                                         int type, unsigned long long flags)
{
    pthread_mutex_lock(&memory_lock);
    struct allocation *a = find(addr);
    bool inside = a && len <= a->len - (addr - (uintptr_t)a->device);
    int fd = inside && type == 1 && !flags && addr % 4096 == 0 && len % 4096 == 0
                 ? memfd_create("fake-dma-buf", MFD_CLOEXEC)
                 : -1;
    if (fd >= 0 && write(fd, a->shadow + (addr - (uintptr_t)a->device), len) != (ssize_t)len) {
        close(fd);
        fd = -1;
    }
    pthread_mutex_unlock(&memory_lock);
    *(int *)handle = fd;
    return fd >= 0 ? 0 : NOT_SUPPORTED;
}

/* The handle of an allocation is its id. */
EXPORT int cuMemRetainAllocationHandle(unsigned long long *handle, void *addr)
{
    pthread_mutex_lock(&memory_lock);
    struct allocation *a = find((uintptr_t)addr);
    *handle = a && !a->ipc ? a->id : 0;
    pthread_mutex_unlock(&memory_lock);
    return *handle ? 0 : INVALID_VALUE;
}

EXPORT int cuMemExportToShareableHandle(void *out, unsigned long long handle, int type,
                                        unsigned long long flags)
{
    int fd = -1;

    pthread_mutex_lock(&memory_lock);
    for (struct allocation *a = allocations; a && fd < 0; a = a->next) {
        if (a->id == handle && type == 1 && !flags && !atomic_load(&refuses_exports))
            fd = dup(a->fd);
    }
    pthread_mutex_unlock(&memory_lock);
    *(int *)out = fd;
    return fd >= 0 ? 0 : NOT_SUPPORTED;
}

EXPORT int cuMemRelease(unsigned long long handle)
{
    return handle ? 0 : INVALID_VALUE;
}

EXPORT void fake_cuda_refuse_exports(int on)
{
    atomic_store(&refuses_exports, on);
}

EXPORT int cuMemFree_v2(unsigned long long addr)
{
    pthread_mutex_lock(&memory_lock);
    struct allocation **link = &allocations, *a;
    while ((a = *link) && (uintptr_t)a->device != addr)
        link = &a->next;
    if (a)
        *link = a->next;
    pthread_mutex_unlock(&memory_lock);
    if (!a)
        return INVALID_VALUE;
    unmap(a);
    return 0;
}

/* Where the process reaches it: itself if it is host memory. */
static char *reach(unsigned long long addr)
{
    pthread_mutex_lock(&memory_lock);
    struct allocation *a = find(addr);
    char *at = a ? a->shadow + (addr - (uintptr_t)a->device) : (char *)(uintptr_t)addr;
    pthread_mutex_unlock(&memory_lock);
    return at;
}

/* Segments of VMM follow one another for the GPU only. */
static void copy(unsigned long long dst, unsigned long long src, size_t len)
{
    while (len) {
        size_t n = len < 4096 ? len : 4096;
        size_t to_page = 4096 - dst % 4096, from_page = 4096 - src % 4096;
        n = n < to_page ? n : to_page;
        n = n < from_page ? n : from_page;
        memcpy(reach(dst), reach(src), n);
        dst += n;
        src += n;
        len -= n;
    }
}

EXPORT int cuMemcpyDtoH_v2(void *dst, unsigned long long src, size_t len)
{
    copy((uintptr_t)dst, src, len);
    return 0;
}

EXPORT int cuMemcpyHtoD_v2(unsigned long long dst, const void *src, size_t len)
{
    copy(dst, (uintptr_t)src, len);
    return 0;
}

EXPORT int cuPointerGetAttribute(void *out, int attribute, unsigned long long addr)
{
    pthread_mutex_lock(&memory_lock);
    struct allocation *a = find(addr);
    int result = a ? 0 : INVALID_VALUE;
    if (a && attribute == 2) /* memory type: device */
        *(unsigned *)out = 2;
    else if (a && attribute == 7)
        *(unsigned long long *)out = a->id;
    else if (a && attribute == 8) /* managed */
        *(unsigned *)out = 0;
    else if (a && attribute == 9) /* ordinal */
        *(int *)out = 0;
    else if (a && attribute == 10) /* has an IPC handle */
        *(int *)out = a->ipc;
    else
        result = INVALID_VALUE;
    pthread_mutex_unlock(&memory_lock);
    return result;
}

/* Copies here have always ended when they return. */
EXPORT int cuPointerSetAttribute(const void *value, int attribute, unsigned long long addr)
{
    (void)value;
    pthread_mutex_lock(&memory_lock);
    int result = find(addr) && attribute == 6 ? 0 : INVALID_VALUE;
    pthread_mutex_unlock(&memory_lock);
    return result;
}

EXPORT int cuMemGetAddressRange_v2(unsigned long long *base, size_t *len, unsigned long long addr)
{
    pthread_mutex_lock(&memory_lock);
    struct allocation *a = find(addr);
    if (a) {
        *base = (uintptr_t)a->device;
        *len = a->len;
    }
    pthread_mutex_unlock(&memory_lock);
    return a ? 0 : INVALID_VALUE;
}

/* --- Streams --------------------------------------------------------------------------------- */

struct task {
    struct task *next;
    void (*call)(void *arg);
    void *arg;
    unsigned long long dst, src; /* a copy of len bytes, if not 0 */
    size_t len;
    const uint32_t *word; /* to be waited for, if not NULL */
    uint32_t value;
};

struct stream {
    pthread_t thread;
    pthread_mutex_t lock; /* protects the rest */
    pthread_cond_t changed;
    struct task *first, **last;
    bool busy, ending;
};

static struct stream *default_stream;
static pthread_once_t default_once = PTHREAD_ONCE_INIT;

static void perform(const struct task *t)
{
    if (t->call)
        t->call(t->arg);
    if (t->len) {
        copy(t->dst, t->src, t->len);
        atomic_fetch_add(&copies, 1);
    }
    while (t->word && (int32_t)(__atomic_load_n(t->word, __ATOMIC_ACQUIRE) - t->value) < 0)
        usleep(50);
}

static void *work(void *arg)
{
    struct stream *s = arg;

    pthread_mutex_lock(&s->lock);
    while (s->first || !s->ending) {
        struct task *t = s->first;
        if (!t) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        s->first = t->next;
        if (!s->first)
            s->last = &s->first;
        s->busy = true;
        pthread_mutex_unlock(&s->lock);
        perform(t);
        free(t);
        pthread_mutex_lock(&s->lock);
        s->busy = false;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

EXPORT int cuStreamCreate(fake_stream *out, unsigned flags)
{
    (void)flags;
    struct stream *s = calloc(1, sizeof(*s));
    if (!s)
        return OUT_OF_MEMORY;
    s->last = &s->first;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    *out = s;
    return pthread_create(&s->thread, NULL, work, s) ? OUT_OF_MEMORY : 0;
}

EXPORT int cuStreamCreateWithPriority(fake_stream *out, unsigned flags, int priority)
{
    (void)priority;
    return cuStreamCreate(out, flags);
}

EXPORT int cuStreamDestroy_v2(fake_stream stream)
{
    struct stream *s = stream;

    pthread_mutex_lock(&s->lock);
    s->ending = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    free(s);
    return 0;
}

static void make_default(void)
{
    fake_stream made;

    if (cuStreamCreate(&made, 0) == 0)
        default_stream = made;
}

static struct stream *stream_of(fake_stream stream)
{
    pthread_once(&default_once, make_default);
    return stream ? stream : default_stream;
}

static int give(fake_stream stream, const struct task *t)
{
    struct stream *s = stream_of(stream);
    struct task *mine = malloc(sizeof(*mine));

    if (!mine)
        return OUT_OF_MEMORY;
    *mine = *t;
    mine->next = NULL;
    pthread_mutex_lock(&s->lock);
    *s->last = mine;
    s->last = &mine->next;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

EXPORT int cuStreamSynchronize(fake_stream stream)
{
    struct stream *s = stream_of(stream);

    pthread_mutex_lock(&s->lock);
    while (s->first || s->busy)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

EXPORT int cuMemcpyAsync(unsigned long long dst, unsigned long long src, size_t len, fake_stream s)
{
    return give(s, &(struct task){.dst = dst, .src = src, .len = len});
}

EXPORT int cuLaunchHostFunc(fake_stream stream, void (*fn)(void *), void *arg)
{
    return give(stream, &(struct task){.call = fn, .arg = arg});
}

EXPORT int cuStreamWaitValue32_v2(fake_stream s, unsigned long long at, unsigned value, unsigned fl)
{
    if (atomic_load(&refuses_waits) || fl != 0)
        return NOT_SUPPORTED;
    return give(s, &(struct task){.word = (const uint32_t *)(uintptr_t)at, .value = value});
}

EXPORT int cuStreamIsCapturing(fake_stream stream, int *status)
{
    (void)stream;
    *status = atomic_load(&captured);
    return 0;
}

EXPORT int cuStreamQuery(fake_stream stream)
{
    (void)stream;
    return 0;
}

EXPORT void fake_cuda_capture(int on)
{
    atomic_store(&captured, on);
}

EXPORT void fake_cuda_refuse_waits(int on)
{
    atomic_store(&refuses_waits, on);
}

EXPORT uint64_t fake_cuda_copies(void)
{
    return atomic_load(&copies);
}

/*
 * --- Device 0, and its limits ---------------------------------------------------------------
 */

EXPORT int cuInit(unsigned flags)
{
    return flags ? INVALID_VALUE : 0;
}

EXPORT int cuGetErrorString(int error, const char **out)
{
    (void)error;
    *out = "an error of the driver without a GPU";
    return 0;
}

EXPORT int cuDriverGetVersion(int *out)
{
    *out = 13000;
    return 0;
}

EXPORT int cuDeviceGetCount(int *out)
{
    *out = 1;
    return 0;
}

EXPORT int cuDeviceGet(int *out, int ordinal)
{
    *out = ordinal;
    return ordinal ? INVALID_VALUE : 0;
}

EXPORT int cuDeviceGetUuid_v2(void *out, int device)
{
    memset(out, 0x11 + device, 16);
    return 0;
}

EXPORT int cuDeviceGetName(char *out, int len, int device)
{
    (void)device;
    strncpy(out, "no GPU", (size_t)len);
    return 0;
}

EXPORT int cuDeviceGetPCIBusId(char *out, int len, int device)
{
    (void)device;
    strncpy(out, "0000:00:00.0", (size_t)len);
    return 0;
}

EXPORT int cuDevicePrimaryCtxRetain(void **out, int device)
{
    static char context;

    *out = &context;
    return device ? INVALID_VALUE : 0;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device)
{
    return device ? INVALID_VALUE : 0;
}

EXPORT int cuCtxPushCurrent_v2(void *context)
{
    return context ? 0 : INVALID_VALUE;
}

EXPORT int cuCtxGetDevice(int *out)
{
    *out = 0;
    return 0;
}

EXPORT int cuCtxPopCurrent_v2(void **out)
{
    *out = NULL;
    return 0;
}

EXPORT int cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    *least = *greatest = 0;
    return 0;
}

EXPORT int cuThreadExchangeStreamCaptureMode(int *mode)
{
    (void)mode;
    return 0;
}

EXPORT int cuMemHostRegister_v2(void *addr, size_t len, unsigned flags)
{
    (void)flags;
    return addr && len ? 0 : INVALID_VALUE;
}

EXPORT int cuMemHostUnregister(void *addr)
{
    return addr ? 0 : INVALID_VALUE;
}

EXPORT int cuMemHostGetDevicePointer_v2(unsigned long long *out, void *addr, unsigned flags)
{
    *out = (uintptr_t)addr;
    return flags ? INVALID_VALUE : 0;
}

#define UNSUPPORTED(name)     \
    EXPORT int name(void)     \
    {                         \
        return NOT_SUPPORTED; \
    }
int cuIpcGetMemHandle(void), cuModuleLoadData(void), cuModuleUnload(void),
    cuModuleGetFunction(void), cuFuncGetAttribute(void), cuLaunchKernel(void);
UNSUPPORTED(cuIpcGetMemHandle)
UNSUPPORTED(cuModuleLoadData)
UNSUPPORTED(cuModuleUnload)
UNSUPPORTED(cuModuleGetFunction)
UNSUPPORTED(cuFuncGetAttribute)
UNSUPPORTED(cuLaunchKernel)
