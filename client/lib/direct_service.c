/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads that a host waits for, by a persistent kernel. */
#include "client/lib/direct_service.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "client/device/device_image.h"
#include "client/device/gd_launch.h"
#include "client/device/gd_service.h"
#include "client/lib/error.h"
#include "support/clock.h"
#include "support/minmax.h"
#include "support/page.h"

#define KERNEL      "gpunvme_direct_serve"
#define THREADS     (GD_READ_QUEUES * 32u)
#define PART        DIRECT_PART /* bytes at a time, so that waiting can be bounded */
#define LAUNCHED    (4 * PART)  /* the same of a kernel of its own, whose start and end take long */
#define CLOCK_POLLS 64u         /* one poll in so many reads the clock */
#define CHECK_NS    (NS_PER_S / 10) /* of a read's wait, between two checks of the CUDA context */

struct direct_service {
    struct memory_space space;
    struct cuda_kernel kernel;
    void *stream;
    void *launches;            /* the stream of kernels for long reads */
    struct gd_service *memory; /* a page of its own, mapped at: */
    uint64_t device;

    pthread_mutex_t lock; /* protects the slot, and with it the memory: one read at a time */
    struct gq_tagged_slot slot;
    struct gd_set set; /* of whose queues the block that was launched last takes one */
    const struct gq_sum_table *sum_table; /* of that block; NULL: it compares nothing */
    bool
        given_up; /* atomic: a read timed out, and the block that may have begun it may still run */
    bool failed;  /* the CUDA context had failed at the last check */
    bool left;    /* of a long read only the first launches were made: its kernels report no end */
};

static int direct_service_launch_kernel(void *ctx, const struct gq_tagged_slot_launch *slot)
{
    struct direct_service *s = ctx;
    struct gd_service_launch l = {
        .slot = *slot,
        .answer = (uint64_t *)(uintptr_t)(s->device + offsetof(struct gd_service, answer)),
        .sent = (uint64_t *)(uintptr_t)(s->device + offsetof(struct gd_service, sent)),
        .set = s->set,
        .sum_table = s->sum_table};
    void *args[] = {&l};

    return cuda_driver_launch(s->space.cuda, s->space.device, &s->kernel, THREADS, s->stream, args);
}

/*
 * A page that no child of fork() has: if both had it, the parent's next store could go to a copy of
 * it, and the block would poll the original for ever.
 */
static void *new_page(void)
{
    void *page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (page == MAP_FAILED)
        return NULL;
    (void)madvise(page, PAGE_BYTES,
                  MADV_DONTFORK); /* a failure matters only to a process that forks */
    return page;
}

static int direct_service_open_memory(struct direct_service *s)
{
    static_assert(sizeof(struct gd_service) <= PAGE_BYTES, "one page");
    void *page = new_page();

    if (!page)
        return gpunvme_fail(-ENOMEM, "out of memory");
    int err = cuda_driver_map(s->space.cuda, s->space.device, page, PAGE_BYTES, CUDA_HOST_MEMORY,
                              &s->device);
    if (err) {
        munmap(page, PAGE_BYTES);
        return err;
    }
    s->memory = page;
    gq_tagged_slot_init(&s->slot, &s->memory->slot, s->device + offsetof(struct gd_service, slot));
    s->slot.launch_kernel = direct_service_launch_kernel;
    s->slot.ctx = s;
    return 0;
}

int direct_service_open(const struct memory_space *p, bool launches, struct direct_service **out)
{
    *out = NULL;
    if (!service_image())
        return 0;
    struct direct_service *s = calloc(1, sizeof(*s));
    if (!s)
        return gpunvme_fail(-ENOMEM, "out of memory");
    s->space = *p;
    pthread_mutex_init(&s->lock, NULL);
    int err = cuda_driver_load(p->cuda, p->device, service_image(), KERNEL, &s->kernel);
    if (!err)
        err = cuda_driver_stream_urgent(p->cuda, p->device, &s->stream);
    if (!err && launches)
        err = cuda_driver_stream_urgent(p->cuda, p->device, &s->launches);
    if (!err)
        err = direct_service_open_memory(s);
    if (err) {
        direct_service_close(s);
        return err;
    }
    *out = s;
    return 0;
}

static void close_stream(const struct memory_space *p, void *stream)
{
    if (!stream)
        return;
    (void)cuda_driver_copy_wait(p->cuda, p->device, stream);
    cuda_driver_stream_free(p->cuda, p->device, stream);
}

void direct_service_close(struct direct_service *s)
{
    if (!s)
        return;
    const struct memory_space *p = &s->space;
    close_stream(p, s->stream);
    close_stream(p, s->launches);
    if (s->memory) {
        cuda_driver_unpin(p->cuda, p->device, s->memory);
        munmap(s->memory, PAGE_BYTES);
    }
    cuda_driver_unload(p->cuda, p->device, &s->kernel);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/*
 * Its command has completed with status 0, which the block may not have seen yet. The load of the
 * CQE acquires: the data read is in memory, for this thread and for work that it starts. cqs NULL:
 * the block has more to do then.
 */
static bool direct_service_has_ended(struct direct_service *s, uint32_t number,
                                     const struct nvme_cqe *const *cqs)
{
    if (!cqs)
        return false;
    uint64_t sent = __atomic_load_n(&s->memory->sent, __ATOMIC_ACQUIRE);

    return sent >> 32 == number && gd_has_ended(sent, cqs);
}

/*
 * Errors that are not CUDA's, for which cuda_driver leaves a sentence of its own. A mismatch is not
 * the end of a read.
 */
static int direct_service_say(int err)
{
    return err && err != GQ_MISMATCH
               ? gpunvme_fail(err, "read through leased queues: %s", strerror(-err))
               : err;
}

/* Under the lock. A kernel whose context fails is gone without a word. */
static int direct_service_check(struct direct_service *s)
{
    int err = cuda_driver_stream_check(s->space.cuda, s->space.device, s->stream);

    s->failed = err != 0;
    return err;
}

/*
 * Under the lock. The end of the read `number`: 0 or -errno. The block's answer counts more than
 * the completion, whose CQE may be another command's when it is polled.
 */
static int direct_service_wait_for(struct direct_service *s, uint32_t number,
                                   const struct nvme_cqe *const *cqs, uint64_t patience_ns)
{
    uint64_t start = now_ns(), check_ns = CHECK_NS;

    for (unsigned polls = 1;; polls++) {
        uint64_t waited_ns = polls % CLOCK_POLLS == 0 ? now_ns() - start : 0;
        bool late = waited_ns >= patience_ns;
        bool alone = gq_tagged_slot_is_unserved(&s->slot);
        bool ended = direct_service_has_ended(s, number, cqs);
        uint64_t answer = __atomic_load_n(&s->memory->answer, __ATOMIC_ACQUIRE);
        if (answer >> 32 == number)
            return direct_service_say((int32_t)(uint32_t)answer);
        if (ended)
            return 0;
        int err = alone ? gq_tagged_slot_start(&s->slot) : 0;
        if (!err && (late || waited_ns >= check_ns)) {
            err = direct_service_check(s);
            check_ns = waited_ns + CHECK_NS;
        }
        if (err || late) {
            gq_tagged_slot_retract(&s->slot);
            __atomic_store_n(&s->given_up, true, __ATOMIC_RELEASE);
            return err ? err : direct_service_say(-ETIMEDOUT);
        }
    }
}

/* Under the lock. Can the block that is there, or comes next, serve commands of the file? */
static bool knows(struct direct_service *s, const struct gpunvme_device_file *f)
{
    if (gq_tagged_slot_is_unserved(&s->slot)) {
        s->set = f->set;
        s->sum_table = f->sums.words ? f->sums.table : s->sum_table;
    }
    return memcmp(&s->set, &f->set, sizeof(f->set)) == 0 &&
           (!f->sums.words || s->sum_table == f->sums.table);
}

static union gd_request request_command(const struct direct_service_read *r)
{
    const struct gpunvme_device_file *f = r->file;
    const struct gq_cmd *cmd = r->command;
    const uint32_t *sum = f->sums.words ? &f->sums.words[r->offset / GQ_SUM_BLOCK] : NULL;

    return (union gd_request){
        .command = {.opcode = NVME_IO_READ,
                    .nsid = f->set.nsid,
                    .lease = (uintptr_t)f->lease,
                    .checked_ns = (uintptr_t)f->checked_ns,
                    .prp1 = cmd->prp1,
                    .prp2 = sum ? (uintptr_t)sum : cmd->prp2,
                    .slba = cmd->slba,
                    .nlb = cmd->nlb,
                    .staged = (r->staged ? (uint32_t)r->len : 0) | (sum ? GD_COMPARES : 0),
                    .dst = r->addr}};
}

/* done: bytes of it that were read before. */
static union gd_request request_part(const struct direct_service_read *r, uint64_t done)
{
    return (union gd_request){.read = {.file = r->file_at,
                                       .addr = r->addr + done,
                                       .len = min_u64(r->len - done, PART),
                                       .offset = r->offset + done}};
}

/* Under the lock. as_command: it has one, of which GQ_MISMATCH is a result as well. */
static int direct_service_hand_over(struct direct_service *s, const struct direct_service_read *r,
                                    uint64_t done, bool as_command)
{
    const struct gpunvme_device_file *f = r->file;
    bool has_more = r->staged || (as_command && f->sums.words); /* to do than the command */
    union gd_request request = as_command ? request_command(r) : request_part(r, done);
    uint32_t number = gq_tagged_slot_post(&s->slot, &request, sizeof(request));

    return direct_service_wait_for(s, number, has_more ? NULL : r->cqs,
                                   direct_patience_ns(&f->set, PART));
}

/* Under the lock. Has the kernel of every long read that was launched ended? */
static bool launched_has_ended(struct direct_service *s)
{
    if (s->left && cuda_driver_stream_drain(s->space.cuda, s->space.device, s->launches, 0)) {
        s->memory->launched = 0;
        s->left = false;
    }
    return __atomic_load_n(&s->memory->launched, __ATOMIC_ACQUIRE) != GD_LAUNCHED;
}

/* Under the lock. Its kernel does not begin any more, or ends soon, and is waited for later. */
static void give_up_launched(struct direct_service *s)
{
    __atomic_store_n(&s->memory->cancel, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&s->given_up, true, __ATOMIC_RELEASE);
}

/* Under the lock. The end of a read that was launched: 0 or -errno. */
static int wait_for_launched(struct direct_service *s, uint64_t patience_ns)
{
    uint64_t start = now_ns(), check_ns = CHECK_NS;
    int err = 0;

    for (unsigned polls = 1;; polls++) {
        uint64_t waited_ns = polls % CLOCK_POLLS == 0 ? now_ns() - start : 0;
        bool late = waited_ns >= patience_ns;
        if (launched_has_ended(s))
            return direct_service_say(s->memory->launched < 0 ? (int)s->memory->launched : 0);
        if (late || waited_ns >= check_ns) {
            err = direct_service_check(s);
            check_ns = waited_ns + CHECK_NS;
        }
        if (err || late) {
            give_up_launched(s);
            return err ? err : direct_service_say(-ETIMEDOUT);
        }
    }
}

/*
 * Under the lock. The part of a long read by a kernel of its own: bytes, -errno, or 0: by the
 * block. It is waited for as long as its bytes would be as parts of the block's.
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
    part.bytes = (int64_t *)(uintptr_t)(s->device + offsetof(struct gd_service, launched));
    part.cancel = (const uint32_t *)(uintptr_t)(s->device + offsetof(struct gd_service, cancel));
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

/* Under the lock. The general path reads a block that differs again, and reports it. */
static int direct_service_serve(struct direct_service *s, const struct direct_service_read *r,
                                uint64_t done)
{
    bool command = knows(s, r->file) && r->command;
    int err = direct_service_hand_over(s, r, done, command);

    return command && err == GQ_MISMATCH ? direct_service_hand_over(s, r, done, false) : err;
}

/* Bytes or -errno. */
static int64_t read_part(struct direct_service *s, const struct direct_service_read *r,
                         uint64_t done)
{
    pthread_mutex_lock(&s->lock);
    int err = s->failed ? direct_service_check(s) : 0;
    int64_t launched = err ? 0 : launch_part(s, r, done);
    if (!err && !launched)
        err = direct_service_serve(s, r, done);
    pthread_mutex_unlock(&s->lock);
    if (err || launched)
        return err ? err : launched;
    return (int64_t)min_u64(r->len - done, PART);
}

int64_t direct_service_read(struct direct_service *s, const struct direct_service_read *r)
{
    uint64_t done = 0;

    while (done < r->len) {
        int64_t part = read_part(s, r, done);
        if (part < 0)
            return done ? (int64_t)done : part;
        done += (uint64_t)part;
    }
    return (int64_t)done;
}

/* Under the lock: no kernel of the service is there, or comes. */
static bool is_alone(struct direct_service *s)
{
    return gq_tagged_slot_is_unserved(&s->slot) && launched_has_ended(s);
}

bool direct_service_has_left(struct direct_service *s)
{
    if (!s)
        return true;
    pthread_mutex_lock(&s->lock);
    bool alone = is_alone(s);
    pthread_mutex_unlock(&s->lock);
    return alone;
}

/* Under the lock, so that no other read keeps the block. It has a command for each of its waits. */
static void await_leaving(struct direct_service *s)
{
    const struct timespec step = {.tv_nsec = NS_PER_MS};
    uint64_t end = now_ns() + 2 * s->set.command_ns + NS_PER_S;

    while (!is_alone(s) && !s->failed && now_ns() < end)
        nanosleep(&step, NULL);
    __atomic_store_n(&s->given_up, false, __ATOMIC_RELEASE); /* it is waited for once */
}

void direct_service_settle(struct direct_service *s)
{
    if (!s || !__atomic_load_n(&s->given_up, __ATOMIC_ACQUIRE))
        return;
    pthread_mutex_lock(&s->lock);
    await_leaving(s);
    pthread_mutex_unlock(&s->lock);
}
