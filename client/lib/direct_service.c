/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements the host side of the service. Its persistent kernel reads for waiting threads. */
#include "client/lib/direct_service.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/device/device_image.h"
#include "client/device/gd_launch.h"
#include "client/device/gd_service.h"
#include "client/lib/error.h"
#include "support/clock.h"
#include "support/minmax.h"
#include "support/page.h"

#define KERNEL      "gpunvme_direct_serve"
#define THREADS     32u
#define MEMORY      ((sizeof(struct gd_service) + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES)
#define PART        DIRECT_PART /* bytes read at a time, so that each wait can be bounded */
#define LAUNCHED    (4 * PART)  /* the same for a launched kernel, whose start and end take long */
#define CLOCK_POLLS 64u         /* reads of a word between two readings of the clock */
#define CHECK_NS    (NS_PER_S / 10) /* between two checks of the CUDA context */
/* Until kernels of others give a launched one room, and it ends. */
#define CLOSE_NS (10 * NS_PER_S)

struct direct_service {
    struct memory_space space;
    struct cuda_kernel kernel;
    void *stream;
    void *launches; /* stream of the kernels for long reads */
    struct memory_space_map map;
    struct gd_service *memory; /* in the map */
    struct gq_service service;

    uint64_t command_ns; /* atomic; the drive's deadline, as the last read had it */

    pthread_mutex_t launch_lock; /* serialises long reads that are launched; protects `left` */
    bool left; /* only the first launches of a long read were made, so its kernels report no end */

    bool given_up; /* atomic; a read timed out, and a block that may have begun it may still run */
    bool stuck;    /* atomic; the last wait for such a block was in vain */
    bool failed;   /* atomic; the CUDA context had failed at the last check */
    struct direct_service *next_stuck;
};

/*
 * Services whose kernel did not end when they were closed. They are never
 * freed.
 */
static pthread_mutex_t stuck_lock = PTHREAD_MUTEX_INITIALIZER; /* protects the list */
static struct direct_service *stuck_services;

static int direct_service_launch_kernel(void *ctx, const struct gq_service_launch *launch)
{
    struct direct_service *s = ctx;
    struct gq_service_launch l = *launch;
    void *args[] = {&l};

    return cuda_driver_launch(s->space.cuda, s->space.device, &s->kernel, launch->slots, THREADS,
                              s->stream, args);
}

static int direct_service_open_memory(struct direct_service *s)
{
    int err = memory_space_alloc_host(&s->space, MEMORY, &s->map);

    if (err)
        return err;
    s->memory = s->map.addr;
    gq_service_init(&s->service, &s->memory->memory, s->map.at, direct_service_launch_kernel, s);
    return 0;
}

int direct_service_open(const struct memory_space *p, struct direct_service **out)
{
    *out = NULL;
    if (!service_image())
        return 0;
    struct direct_service *s = calloc(1, sizeof(*s));
    if (!s)
        return gpunvme_fail(-ENOMEM, "out of memory");
    s->space = *p;
    pthread_mutex_init(&s->launch_lock, NULL);
    int err = cuda_driver_load(p->cuda, p->device, service_image(), KERNEL, &s->kernel);
    if (!err)
        err = cuda_driver_stream_new(p->cuda, p->device, true, &s->stream);
    if (!err)
        err = cuda_driver_stream_new(p->cuda, p->device, true, &s->launches);
    if (!err)
        err = direct_service_open_memory(s);
    if (err) {
        (void)direct_service_close(s); /* has launched nothing */
        return err;
    }
    *out = s;
    return 0;
}

static bool drain_stream(const struct direct_service *s, void *stream)
{
    uint64_t patience_ns = 2 * __atomic_load_n(&s->command_ns, __ATOMIC_RELAXED) + CLOSE_NS;

    return !stream || cuda_driver_stream_drain(s->space.cuda, s->space.device, stream, patience_ns);
}

static void free_stream(const struct memory_space *p, void *stream)
{
    if (stream)
        cuda_driver_stream_free(p->cuda, p->device, stream);
}

static bool service_remains(struct direct_service *s)
{
    pthread_mutex_lock(&stuck_lock);
    s->next_stuck = stuck_services;
    stuck_services = s;
    pthread_mutex_unlock(&stuck_lock);
    return false;
}

bool direct_service_any_stuck(void)
{
    bool any = false;

    pthread_mutex_lock(&stuck_lock);
    for (struct direct_service *s = stuck_services; s && !any; s = s->next_stuck)
        any = !direct_service_has_left(s);
    pthread_mutex_unlock(&stuck_lock);
    return any;
}

bool direct_service_close(struct direct_service *s)
{
    if (!s)
        return true;
    const struct memory_space *p = &s->space;
    if (!drain_stream(s, s->stream) || !drain_stream(s, s->launches))
        return service_remains(s);
    free_stream(p, s->stream);
    free_stream(p, s->launches);
    if (s->memory) {
        gq_service_destroy(&s->service);
        memory_space_unshare(p, &s->map);
    }
    cuda_driver_unload(p->cuda, p->device, &s->kernel);
    pthread_mutex_destroy(&s->launch_lock);
    free(s);
    return true;
}

/* Sets gpunvme_error() for errors other than CUDA errors, for which cuda_driver sets the text. */
static int direct_service_say(int err)
{
    return err ? gpunvme_fail(err, "read through leased queues: %s", strerror(-err)) : 0;
}

/*
 * Checks the CUDA context. It is called at intervals, because the kernel of a failed context ends
 * without a report.
 */
static int direct_service_check(struct direct_service *s)
{
    int err = cuda_driver_stream_check(s->space.cuda, s->space.device, s->stream);

    __atomic_store_n(&s->failed, err != 0, __ATOMIC_RELAXED);
    return err;
}

/* Describes the state of a host thread that waits for a read. */
struct wait {
    uint64_t start_ns, check_ns, patience_ns;
    unsigned polls;
};

static struct wait begin_wait(uint64_t patience_ns)
{
    return (struct wait){now_ns(), CHECK_NS, patience_ns, 0};
}

/* Called after each poll. Returns 0, or the error with which the wait ends. */
static int go_on_waiting(struct direct_service *s, struct wait *w)
{
    if (++w->polls % CLOCK_POLLS)
        return 0;
    sched_yield(); /* lets a software controller use this processor */
    uint64_t waited_ns = now_ns() - w->start_ns;
    bool late = waited_ns >= w->patience_ns;
    int err = 0;
    if (late || waited_ns >= w->check_ns) {
        err = direct_service_check(s);
        w->check_ns = waited_ns + CHECK_NS;
    }
    return err || !late ? err : direct_service_say(-ETIMEDOUT);
}

/* Returns true and the result of the item with this number if it has ended. */
static bool take_answer(const struct direct_service *s, int slot, uint32_t number, int *err)
{
    uint64_t word = __atomic_load_n(&s->memory->memory.slots[slot].answer, __ATOMIC_ACQUIRE);

    if (word >> 32 != number)
        return false;
    *err = direct_service_say((int32_t)(uint32_t)word);
    return true;
}

/*
 * Waits for the end of the item with this number. Returns 0 or -errno. After an
 * error of a launch or of the wait the item may have ended all the same: blocks
 * that another thread launched may have served it.
 */
static int direct_service_wait_for(struct direct_service *s, int slot, uint32_t number,
                                   uint64_t patience_ns)
{
    struct wait wait = begin_wait(patience_ns);
    int err = 0;

    while (!err) {
        bool unserved = gq_service_is_unserved(&s->service);
        if (take_answer(s, slot, number, &err))
            return err;
        err = unserved ? gq_service_start(&s->service, slot) : 0;
        if (!err)
            err = go_on_waiting(s, &wait);
    }
    gq_service_retract(&s->service, slot);
    if (!take_answer(s, slot, number, &err))
        __atomic_store_n(&s->given_up, true, __ATOMIC_RELEASE);
    return err;
}

/*
 * Lets a block read a part of the remaining bytes after `done` bytes have been read. Returns bytes
 * or -errno.
 */
static int64_t serve_part(struct direct_service *s, const struct direct_service_read *r,
                          uint64_t done)
{
    const struct gd_request request = {.file = r->file_at,
                                       .addr = r->addr + done,
                                       .len = min_u64(r->len - done, PART),
                                       .offset = r->offset + done};
    int slot = gq_service_claim(&s->service, true);
    uint32_t number = gq_service_post(&s->service, slot, &request, sizeof(request));
    int err = direct_service_wait_for(s, slot, number, direct_patience_ns(&r->file->set, PART));

    gq_service_release(&s->service, slot);
    return err ? err : (int64_t)request.len;
}

/* Called under launch_lock. Returns true if the kernels of all launched reads have ended. */
static bool launched_has_ended(struct direct_service *s)
{
    if (s->left && cuda_driver_stream_drain(s->space.cuda, s->space.device, s->launches, 0)) {
        s->memory->launched = 0;
        s->left = false;
    }
    return __atomic_load_n(&s->memory->launched, __ATOMIC_ACQUIRE) != GD_LAUNCHED;
}

/* Abandons a launched read. Its kernel no longer begins, or ends soon, and is waited for later. */
static void give_up_launched(struct direct_service *s)
{
    __atomic_store_n(&s->memory->cancel, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&s->given_up, true, __ATOMIC_RELEASE);
}

/* Called under launch_lock. Waits for the end of a launched read. Returns 0 or -errno. */
static int wait_for_launched(struct direct_service *s, uint64_t patience_ns)
{
    struct wait wait = begin_wait(patience_ns);
    int err = 0;

    while (!err) {
        if (launched_has_ended(s))
            return direct_service_say(s->memory->launched < 0 ? (int)s->memory->launched : 0);
        err = go_on_waiting(s, &wait);
    }
    give_up_launched(s);
    return err;
}

/*
 * Called under launch_lock. Reads a part of a long read by a launched kernel. Returns bytes,
 * -errno, or 0 if a block has to read the part. The wait is as long as for that many parts of a
 * block.
 */
static int64_t launch_part(struct direct_service *s, const struct direct_service_read *r,
                           uint64_t done)
{
    struct gd_launch part;

    if (!r->launch || !launched_has_ended(s))
        return 0;
    part = *r->whole;
    part.addr += done;
    part.offset += done;
    part.len = min_u64(r->len - done, LAUNCHED);
    part.bytes = (int64_t *)(uintptr_t)(s->map.at + offsetof(struct gd_service, launched));
    part.cancel = (const uint32_t *)(uintptr_t)(s->map.at + offsetof(struct gd_service, cancel));
    s->memory->launched = GD_LAUNCHED;
    s->memory->cancel = 0;
    int err = r->launch(r->direct, &part, s->launches);
    s->left = err == -ETIMEDOUT;
    if (s->left)
        give_up_launched(s);
    else if (err <= 0)
        s->memory->launched = 0;
    if (err <= 0)
        return err;
    err = wait_for_launched(s, direct_patience_ns(&r->file->set, part.len));
    return err ? err : (int64_t)part.len;
}

/* Returns bytes or -errno. */
static int64_t read_part(struct direct_service *s, const struct direct_service_read *r,
                         uint64_t done)
{
    int err = __atomic_load_n(&s->failed, __ATOMIC_RELAXED) ? direct_service_check(s) : 0;
    int64_t launched = 0;

    if (!err && r->launch) {
        pthread_mutex_lock(&s->launch_lock);
        launched = launch_part(s, r, done);
        pthread_mutex_unlock(&s->launch_lock);
    }
    if (err || launched)
        return err ? err : launched;
    return serve_part(s, r, done);
}

int64_t direct_service_read(struct direct_service *s, const struct direct_service_read *r)
{
    uint64_t done = 0;

    __atomic_store_n(&s->command_ns, r->file->set.command_ns, __ATOMIC_RELAXED);
    while (done < r->len) {
        int64_t part = read_part(s, r, done);
        if (part < 0)
            return done ? (int64_t)done : part;
        done += (uint64_t)part;
    }
    return (int64_t)done;
}

/* Returns true if no kernel of the service up to this launch runs or can still begin. */
static bool has_left(struct direct_service *s, uint32_t launch)
{
    pthread_mutex_lock(&s->launch_lock);
    bool left = gq_service_has_ended(&s->service, launch) && launched_has_ended(s);
    pthread_mutex_unlock(&s->launch_lock);
    return left;
}

bool direct_service_has_left(struct direct_service *s)
{
    return !s || has_left(s, gq_service_launched(&s->service));
}

/* Returns false if the time of a command is over and the blocks still run. */
static bool await_blocks(struct direct_service *s)
{
    const struct timespec step = {.tv_nsec = NS_PER_MS};

    uint64_t end = now_ns() + 2 * __atomic_load_n(&s->command_ns, __ATOMIC_RELAXED) + NS_PER_S;
    uint32_t launch = gq_service_launched(&s->service);
    while (!has_left(s, launch)) {
        if (__atomic_load_n(&s->failed, __ATOMIC_RELAXED))
            return true;
        if (now_ns() >= end)
            return false;
        nanosleep(&step, NULL);
    }
    return true;
}

/* Waits once for each wait of a block, which lasts at most the time of a command. */
bool direct_service_settle(struct direct_service *s)
{
    if (!s)
        return true;
    if (__atomic_exchange_n(&s->given_up, false, __ATOMIC_ACQ_REL))
        __atomic_store_n(&s->stuck, !await_blocks(s), __ATOMIC_RELEASE);
    return !__atomic_load_n(&s->stuck, __ATOMIC_ACQUIRE) || direct_service_has_left(s);
}
