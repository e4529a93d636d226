/* SPDX-License-Identifier: BSD-2-Clause */
/* The driver, its stream, and kernels that do what the host sees of the real ones. */
#include "tests/client/lib/launch_rig.h"

#include <stdlib.h>
#include <string.h>

#include "client/device/gd_launch.h"
#include "client/lib/cuda_driver_internal.h"
#include "client/lib/direct.h"

#define KERNELS_MAX 8u
#define NO_MEMORY   2

/* Handles of kernels: what cuLaunchKernel() is given. */
static char read_kernel, list_kernel, compare_kernel;

struct kernel {
    const void *function;

    union {
        struct gd_launch read;
        struct gd_compare_launch compare;
    } args;
};

struct launch_rig {
    struct cuda_driver cuda;
    struct connection g;
    struct gpunvme_direct d;
    struct leased_file file;
    struct gd_buffer buffer;
    struct gq_sum_table table;
    struct gpunvme_piece pieces[LAUNCH_RIG_PIECES];
    char *memory;
    int64_t bytes;
    uint32_t words[LAUNCH_RIG_BYTES / GQ_SUM_BLOCK];

    pthread_t thread;
    pthread_mutex_t lock; /* protects the rest */
    pthread_cond_t changed;
    struct kernel kernels[KERNELS_MAX]; /* launched, by their number modulo KERNELS_MAX */
    unsigned launched, ended, queries, dirty, refuse;
    bool hold, captured, differs, ending;
};

static struct launch_rig *rig; /* one at a time: the driver's functions find it here */

/* --- Kernels --------------------------------------------------------------------------------- */

static void end_check(struct gd_check *check)
{
    check->refused = 0;
    check->runs++;
}

static void read_file(const struct gd_launch *l)
{
    if (l->check && l->check->refused)
        rig->dirty++;
    memset((void *)(uintptr_t)l->addr, 1, l->len);
    if (l->check)
        l->check->bytes = (int64_t)l->len;
    else
        *l->bytes = (int64_t)l->len;
}

static void run_read(const struct gd_launch *l)
{
    if (l->concludes) {
        *l->bytes = l->check->bytes;
        end_check(l->check);
    } else {
        read_file(l);
    }
}

static void run_list(const struct gd_launch *l)
{
    if (l->concludes) {
        end_check(l->check);
        return;
    }
    if (l->check && l->check->refused)
        rig->dirty++;
    memset((void *)(uintptr_t)l->buffer.addr, 1, l->n);
}

static void run(const struct kernel *k)
{
    if (k->function == &compare_kernel)
        k->args.compare.check->refused += rig->differs;
    else if (k->args.read.list)
        run_list(&k->args.read);
    else
        run_read(&k->args.read);
}

static void *run_kernels(void *arg)
{
    struct launch_rig *r = arg;

    pthread_mutex_lock(&r->lock);
    while (!r->ending) {
        if (r->ended == r->launched || r->hold || r->captured) {
            pthread_cond_wait(&r->changed, &r->lock);
            continue;
        }
        run(&r->kernels[r->ended % KERNELS_MAX]);
        r->ended++;
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* --- The driver ------------------------------------------------------------------------------ */

static size_t args_of(const void *function)
{
    return function == &compare_kernel ? sizeof(struct gd_compare_launch)
                                       : sizeof(struct gd_launch);
}

/* Captured kernels have no place: none of them runs. NOLINTNEXTLINE(readability-function-size) */
static CUresult launch_kernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned bx,
                              unsigned by, unsigned bz, unsigned shared, CUstream stream,
                              void **args, void **extra)
{
    struct kernel *k = &rig->kernels[rig->launched % KERNELS_MAX];
    CUresult result = 0;

    (void)x, (void)y, (void)z, (void)bx, (void)by, (void)bz, (void)shared, (void)stream,
        (void)extra;
    pthread_mutex_lock(&rig->lock);
    if (rig->refuse && --rig->refuse == 0)
        result = NO_MEMORY;
    else if (rig->captured)
        rig->ended = ++rig->launched;
    else {
        k->function = function;
        memcpy(&k->args, args[0], args_of(function));
        rig->launched++;
    }
    pthread_cond_broadcast(&rig->changed);
    pthread_mutex_unlock(&rig->lock);
    return result;
}

static CUresult query(CUstream stream)
{
    (void)stream;
    pthread_mutex_lock(&rig->lock);
    CUresult result = rig->ended == rig->launched ? 0 : CUDA_ERROR_NOT_READY;
    rig->queries++;
    pthread_mutex_unlock(&rig->lock);
    return result;
}

static CUresult is_capturing(CUstream stream, int *status)
{
    (void)stream;
    pthread_mutex_lock(&rig->lock);
    *status = rig->captured;
    pthread_mutex_unlock(&rig->lock);
    return 0;
}

/* Under the lock: kernels use the same memory. */
static CUresult copy(CUdeviceptr dst, CUdeviceptr src, size_t len, CUstream stream)
{
    (void)stream;
    pthread_mutex_lock(&rig->lock);
    memcpy((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, len);
    pthread_mutex_unlock(&rig->lock);
    return 0;
}

/* Copies have ended when they are started. */
static CUresult synchronize(CUstream stream)
{
    (void)stream;
    return 0;
}

static CUresult alloc(CUdeviceptr *out, size_t len)
{
    *out = (uintptr_t)malloc(len);
    return *out ? 0 : NO_MEMORY;
}

static CUresult release(CUdeviceptr addr)
{
    free((void *)(uintptr_t)addr);
    return 0;
}

static CUresult push(CUcontext context)
{
    (void)context;
    return 0;
}

static CUresult pop(CUcontext *context)
{
    (void)context;
    return 0;
}

static CUresult exchange(int *mode)
{
    (void)mode;
    return 0;
}

static CUresult error_string(CUresult result, const char **text)
{
    (void)result;
    *text = "what CUDA says";
    return 0;
}

/* --- The handle ------------------------------------------------------------------------------ */

static void open_driver(struct launch_rig *r)
{
    r->cuda = (struct cuda_driver){.cuLaunchKernel = launch_kernel,
                                   .cuStreamQuery = query,
                                   .cuStreamIsCapturing = is_capturing,
                                   .cuMemcpyAsync = copy,
                                   .cuStreamSynchronize = synchronize,
                                   .cuMemAlloc = alloc,
                                   .cuMemFree = release,
                                   .cuCtxPushCurrent = push,
                                   .cuCtxPopCurrent = pop,
                                   .cuThreadExchangeStreamCaptureMode = exchange,
                                   .cuGetErrorString = error_string,
                                   .contexts = {(CUcontext)r}};
    pthread_mutex_init(&r->cuda.lock, NULL);
}

static int open_direct(struct launch_rig *r, bool stages)
{
    struct gpunvme_direct *d = &r->d;
    uint64_t addr = (uintptr_t)r->memory;

    d->g = &r->g;
    d->space = (struct memory_space){.cuda = &r->cuda};
    d->kernel.function = &read_kernel;
    d->list_kernel.function = &list_kernel;
    d->compare_kernel.function = &compare_kernel;
    r->buffer = (struct gd_buffer){
        .addr = addr,
        .len = LAUNCH_RIG_BYTES,
        .target = {.base = addr, .iova = stages ? GD_UNREACHABLE : 0, .len = LAUNCH_RIG_BYTES}};
    d->buffers = &r->buffer;
    d->n_buffers = 1;
    return direct_slots_open(d);
}

static void open_file(struct launch_rig *r, bool sums, uint64_t command_ns)
{
    r->file.d = &r->d;
    r->file.device = (struct gpunvme_device_file){
        .map = {.end = LAUNCH_RIG_BYTES, .lba_size = 512},
        .set = {.n_queues = 16,
                .command_ns = command_ns,
                .max_command = 128u << 10,
                .lane_bytes = 8192},
        .sums = {.words = sums ? r->words : NULL, .table = &r->table},
    };
}

struct launch_rig *launch_rig_open(bool stages, bool sums, uint64_t command_ns)
{
    struct launch_rig *r = calloc(1, sizeof(*r));
    char *memory = calloc(1, LAUNCH_RIG_BYTES);

    rig = r;
    if (!r || !memory) {
        free(memory);
        free(r);
        return NULL;
    }
    r->memory = memory;
    r->g.fd = -1;
    pthread_mutex_init(&r->g.lock, NULL);
    pthread_mutex_init(&r->d.lock, NULL);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    open_driver(r);
    open_file(r, sums, command_ns);
    if (open_direct(r, stages) == 0 && pthread_create(&r->thread, NULL, run_kernels, r) == 0)
        return r;
    free(memory);
    free(r);
    return NULL;
}

void launch_rig_close(struct launch_rig *r)
{
    pthread_mutex_lock(&r->lock);
    r->ending = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    direct_slots_close(&r->d);
    free(r->memory);
    free(r);
}

int launch_rig_read(struct launch_rig *r)
{
    return direct_read_async(&r->file, r->memory, LAUNCH_RIG_BYTES, 0, NULL, &r->bytes);
}

int launch_rig_list(struct launch_rig *r)
{
    return direct_readv_async(&r->file, r->memory, r->pieces, LAUNCH_RIG_PIECES, NULL);
}

int64_t launch_rig_result(struct launch_rig *r)
{
    pthread_mutex_lock(&r->lock);
    while (r->ended != r->launched)
        pthread_cond_wait(&r->changed, &r->lock);
    int64_t bytes = r->bytes;
    pthread_mutex_unlock(&r->lock);
    return bytes;
}

/* --- What the test says and asks ------------------------------------------------------------- */

static void set(struct launch_rig *r, bool *what, bool on)
{
    pthread_mutex_lock(&r->lock);
    *what = on;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

void launch_rig_hold(struct launch_rig *r, bool hold)
{
    set(r, &r->hold, hold);
}

void launch_rig_capture(struct launch_rig *r, bool on)
{
    set(r, &r->captured, on);
}

void launch_rig_differ(struct launch_rig *r, bool differs)
{
    set(r, &r->differs, differs);
}

void launch_rig_refuse(struct launch_rig *r, unsigned nth)
{
    pthread_mutex_lock(&r->lock);
    r->refuse = nth;
    pthread_mutex_unlock(&r->lock);
}

struct launch_rig_counts launch_rig_counts(struct launch_rig *r)
{
    pthread_mutex_lock(&r->lock);
    struct launch_rig_counts counts = {r->launched, r->launched - r->ended, r->queries, r->dirty};
    pthread_mutex_unlock(&r->lock);
    return counts;
}
