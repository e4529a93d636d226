/* SPDX-License-Identifier: BSD-2-Clause */
/* The block of copies as threads, with a driver that is a fake. */
#define GQ_LANES 32u

/* The block's clock can be in a hurry, and its warps can be paused in front of a word. */
#define gq_clock_ns     clock_of_the_machine
#define gq_acquire_word load_of_the_machine
#include "cuda/queue/gq_fence.h"
#undef gq_clock_ns
#undef gq_acquire_word
static uint64_t gq_clock_ns(void);
static uint64_t gq_acquire_word(const uint64_t *word);
#define gq_copy_4k copy_at_once
#include "cuda/queue/gq_bytes.h"
#undef gq_copy_4k
static void gq_copy_4k(uint64_t dst, uint64_t src, uint64_t len, uint32_t first, uint32_t step);
#include "client/device/gd_copy_warp.h"

#include "tests/client/lib/copy_service_rig.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "client/device/device_image.h"
#include "client/lib/error.h"

static struct {
    struct gd_copies_launch launch;
    struct gd_copies_block block;
    pthread_t thread;
    bool running; /* until it is joined */
    _Atomic int held, fail_launches;
    _Atomic bool hold, hurry, pause, pause_copies, resume_at_check, fail_stream;
    _Atomic unsigned launches, engine, warps, paused;
} rig;

static uint64_t gq_clock_ns(void)
{
    static _Atomic uint64_t later_ns;

    if (rig.hurry)
        later_ns += GD_COPIES_STAY_NS;
    return clock_of_the_machine() + later_ns;
}

static uint64_t gq_acquire_word(const uint64_t *word)
{
    rig.paused++;
    while (rig.pause)
        sched_yield();
    rig.paused--;
    return load_of_the_machine(word);
}

static void gq_copy_4k(uint64_t dst, uint64_t src, uint64_t len, uint32_t first, uint32_t step)
{
    while (rig.pause_copies)
        sched_yield();
    copy_at_once(dst, src, len, first, step);
}

int copy_service_rig_open(uint64_t slow_ns, uint64_t patience_ns, struct copy_service **out)
{
    memset(&rig, 0, sizeof(rig));
    return copy_service_open((struct cuda_driver *)&rig, 0, slow_ns, patience_ns, out);
}

void copy_service_rig_close(struct copy_service *s)
{
    copy_service_close(s);
}

unsigned copy_service_rig_launches(void)
{
    return rig.launches;
}

unsigned copy_service_rig_engine(void)
{
    return rig.engine;
}

int copy_service_rig_held(void)
{
    return rig.held;
}

void copy_service_rig_hold(bool hold)
{
    rig.hold = hold;
}

void copy_service_rig_hurry(bool hurry)
{
    rig.hurry = hurry;
}

/* The number of warps is read first: it only falls, and no more than these can be paused. */
bool copy_service_rig_pause(void)
{
    unsigned warps;

    rig.pause = true;
    do {
        sched_yield();
        warps = rig.warps;
    } while (rig.paused != warps);
    return warps != 0;
}

void copy_service_rig_resume(void)
{
    rig.pause = false;
}

void copy_service_rig_pause_copies(bool pause)
{
    rig.pause_copies = pause;
}

void copy_service_rig_resume_at_check(void)
{
    rig.resume_at_check = true;
}

void copy_service_rig_fail_launches(int err)
{
    rig.fail_launches = err;
}

void copy_service_rig_fail_stream(void)
{
    rig.fail_stream = true;
}

/* --- The block ------------------------------------------------------------------------------- */

static void *serve_slot(void *arg)
{
    gd_copies_serve(&rig.launch, &rig.block, (uint32_t)(uintptr_t)arg);
    rig.warps--;
    return NULL;
}

static void *serve(void *arg)
{
    struct gd_copies *copies = rig.launch.copies;
    pthread_t warps[GD_COPIES_SLOTS];

    (void)arg;
    while (rig.hold)
        sched_yield();
    rig.warps = GD_COPIES_SLOTS;
    gd_store_own_result((int64_t *)&copies->started.value, rig.launch.number);
    for (uintptr_t i = 0; i < GD_COPIES_SLOTS; i++) {
        if (pthread_create(&warps[i], NULL, serve_slot, (void *)i) != 0)
            abort();
    }
    for (unsigned i = 0; i < GD_COPIES_SLOTS; i++)
        pthread_join(warps[i], NULL);
    gd_store_own_result((int64_t *)&copies->ended.value, rig.launch.number);
    return NULL;
}

/* --- The driver ------------------------------------------------------------------------------ */

const void *copies_image(void)
{
    return "code";
}

int cuda_driver_load(struct cuda_driver *cu, int device, const void *image, const char *name,
                     struct cuda_kernel *out)
{
    (void)cu, (void)device, (void)image, (void)name;
    out->module = &rig;
    rig.held++;
    return 0;
}

void cuda_driver_unload(struct cuda_driver *cu, int device, struct cuda_kernel *kernel)
{
    (void)cu, (void)device;
    if (kernel->module)
        rig.held--;
}

int cuda_driver_stream_urgent(struct cuda_driver *cu, int device, void **stream)
{
    (void)cu, (void)device;
    *stream = &rig;
    rig.held++;
    return 0;
}

int cuda_driver_stream_new(struct cuda_driver *cu, int device, void **stream)
{
    (void)cu, (void)device;
    *stream = &rig.engine;
    rig.held++;
    return 0;
}

void cuda_driver_stream_free(struct cuda_driver *cu, int device, void *stream)
{
    (void)cu, (void)device, (void)stream;
    rig.held--;
}

int cuda_driver_copy_start(struct cuda_driver *cu, int device, void *stream, uint64_t dst,
                           uint64_t src, size_t len)
{
    (void)cu, (void)device, (void)stream;
    memcpy((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, len);
    rig.engine++;
    return 0;
}

int cuda_driver_copy_wait(struct cuda_driver *cu, int device, void *stream)
{
    (void)cu, (void)device;
    if (stream == &rig && rig.running) {
        pthread_join(rig.thread, NULL);
        rig.running = false;
    }
    return 0;
}

int cuda_driver_stream_check(struct cuda_driver *cu, int device, void *stream)
{
    (void)cu, (void)device, (void)stream;
    if (rig.resume_at_check)
        copy_service_rig_resume();
    return rig.fail_stream ? gpunvme_fail(-EIO, "what CUDA says") : 0;
}

int cuda_driver_map(struct cuda_driver *cu, int device, void *addr, size_t len,
                    enum cuda_host_kind kind, uint64_t *mapped)
{
    (void)cu, (void)device, (void)len, (void)kind;
    *mapped = (uintptr_t)addr;
    rig.held++;
    return 0;
}

void cuda_driver_unpin(struct cuda_driver *cu, int device, void *addr)
{
    (void)cu, (void)device, (void)addr;
    rig.held--;
}

/* Launches of one stream run one after the other. */
int cuda_driver_launch(struct cuda_driver *cu, int device, const struct cuda_kernel *kernel,
                       unsigned threads, void *stream, void **args)
{
    (void)kernel, (void)threads;
    if (rig.fail_launches)
        return rig.fail_launches;
    cuda_driver_copy_wait(cu, device, stream);
    memcpy(&rig.launch, args[0], sizeof(rig.launch));
    rig.block = (struct gd_copies_block){0};
    if (pthread_create(&rig.thread, NULL, serve, NULL) != 0)
        return -EAGAIN;
    rig.running = true;
    rig.launches++;
    return 0;
}
