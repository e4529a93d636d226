/* SPDX-License-Identifier: BSD-2-Clause */
/* Small reads of the bounce path: slots, and the block that serves them. */
#include "client/lib/copy_service.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "client/device/device_image.h"
#include "client/device/gd_copies.h"
#include "client/lib/error.h"
#include "support/clock.h"

#define KERNEL      "gpunvme_copies"
#define THREADS     (GD_COPIES_SLOTS * 32u)
#define STAGING     ((size_t)GD_COPIES_SLOTS * GD_COPIES_STAGING)
#define HEAD        ((sizeof(struct gd_copies) + 4095) / 4096 * 4096)
#define ALL_SLOTS   ((1u << GD_COPIES_SLOTS) - 1)
#define FOLLOWS_NS  200000u         /* two reads so close together follow one another */
#define AVOID_NS    NS_PER_S        /* after a copy that was slow */
#define CHECK_NS    (NS_PER_S / 10) /* of a copy's wait, between two checks of the CUDA context */
#define CLOCK_POLLS 64u             /* one poll in so many reads the clock */
static_assert(COPY_SERVICE_BYTES + 4096 <= GD_COPIES_STAGING, "wherever in a page it begins");

struct copy_service {
    struct cuda_driver *cuda;
    int device;
    struct cuda_kernel kernel;
    void *stream, *engine; /* of the block; for copies that it left behind */
    char *memory;          /* struct gd_copies, then the staging */
    struct gd_copies *copies;
    uint64_t mapped, slow_ns, patience_ns;

    _Atomic uint32_t free; /* slots, a bit each */
    _Atomic uint32_t
        posted; /* copies whose threads rely on the block: none is launched meanwhile */
    _Atomic uint32_t given_up;           /* slots that are never free again, a bit each */
    union gd_copy lost[GD_COPIES_SLOTS]; /* their copies, stored before the bit */
    _Atomic uint64_t last_ns, avoid_until_ns;
    _Atomic bool failed;
    pthread_mutex_t lock; /* of launches; protects: */
    _Atomic uint32_t launched;
    struct copy_service *next; /* in_doubt.lock */
};

/* The services that have given up a copy, until they are closed. */
static struct {
    pthread_mutex_t lock; /* protects the list */
    struct copy_service *_Atomic first;
} in_doubt = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* --- Open and close -------------------------------------------------------------------------- */

/* Memory that no child of fork() has: else the next store could go to a copy of its page. */
static int copy_service_open_memory(struct copy_service *s)
{
    void *memory =
        mmap(NULL, HEAD + STAGING, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return gpunvme_fail(-ENOMEM, "out of memory");
    (void)madvise(memory, HEAD + STAGING, MADV_DONTFORK); /* only a process that forks needs it */
    int err =
        cuda_driver_map(s->cuda, s->device, memory, HEAD + STAGING, CUDA_HOST_MEMORY, &s->mapped);
    if (err) {
        munmap(memory, HEAD + STAGING);
        return err;
    }
    s->memory = memory;
    s->copies = memory;
    return 0;
}

int copy_service_open(struct cuda_driver *cuda, int device, uint64_t slow_ns, uint64_t patience_ns,
                      struct copy_service **out)
{
    *out = NULL;
    if (!copies_image())
        return 0;
    struct copy_service *s = calloc(1, sizeof(*s));
    if (!s)
        return gpunvme_fail(-ENOMEM, "out of memory");
    s->cuda = cuda;
    s->device = device;
    s->slow_ns = slow_ns;
    s->patience_ns = patience_ns;
    s->free = ALL_SLOTS;
    pthread_mutex_init(&s->lock, NULL);
    int err = cuda_driver_load(cuda, device, copies_image(), KERNEL, &s->kernel);
    if (!err)
        err = cuda_driver_stream_urgent(cuda, device, &s->stream);
    if (!err)
        err = cuda_driver_stream_new(cuda, device, &s->engine);
    if (!err)
        err = copy_service_open_memory(s);
    if (err) {
        copy_service_close(s);
        return err;
    }
    *out = s;
    return 0;
}

static void wait_for_stream(const struct copy_service *s, void *stream)
{
    if (stream)
        (void)cuda_driver_copy_wait(s->cuda, s->device, stream);
}

static void copy_service_free_stream(const struct copy_service *s, void *stream)
{
    if (stream)
        cuda_driver_stream_free(s->cuda, s->device, stream);
}

static void end_doubt(const struct copy_service *s)
{
    struct copy_service *before = NULL, *at;

    pthread_mutex_lock(&in_doubt.lock);
    for (at = in_doubt.first; at && at != s; at = at->next)
        before = at;
    if (at && before)
        before->next = at->next;
    else if (at)
        in_doubt.first = at->next;
    pthread_mutex_unlock(&in_doubt.lock);
}

void copy_service_close(struct copy_service *s)
{
    if (!s)
        return;
    wait_for_stream(s, s->stream);
    wait_for_stream(s, s->engine);
    end_doubt(s); /* other handles check the stream until then */
    copy_service_free_stream(s, s->stream);
    copy_service_free_stream(s, s->engine);
    if (s->memory) {
        cuda_driver_unpin(s->cuda, s->device, s->memory);
        munmap(s->memory, HEAD + STAGING);
    }
    cuda_driver_unload(s->cuda, s->device, &s->kernel);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

int copy_service_device(const struct copy_service *s)
{
    return s->device;
}

/* --- The block ------------------------------------------------------------------------------- */

static uint32_t load_word(const struct gd_copies_word *word)
{
    return (uint32_t)__atomic_load_n(&word->value, __ATOMIC_ACQUIRE);
}

static bool has_left(const struct copy_service *s)
{
    return load_word(&s->copies->ended) == atomic_load(&s->launched);
}

/* A block is on the GPU, and has not left yet. */
static bool is_there(const struct copy_service *s)
{
    return load_word(&s->copies->started) == atomic_load(&s->launched) && !has_left(s);
}

/*
 * A block that waits for room on the GPU has no copies: either their threads have found that no
 * block runs, or `posted` shows the launch that they rely on the one before.
 */
static int launch_locked(struct copy_service *s)
{
    struct gd_copies_launch l = {
        .copies = (struct gd_copies *)(uintptr_t)s->mapped,
        .staging = s->mapped + HEAD,
        .number = atomic_load(&s->launched) + 1,
    };
    void *args[] = {&l};

    atomic_store(&s->launched, l.number);
    int err = atomic_load(&s->posted)
                  ? -EAGAIN
                  : cuda_driver_launch(s->cuda, s->device, &s->kernel, THREADS, s->stream, args);
    if (err)
        atomic_store(&s->launched, l.number - 1);
    return err;
}

static void copy_service_launch(struct copy_service *s)
{
    if (pthread_mutex_trylock(&s->lock) != 0)
        return;
    if (has_left(s)) {
        int err = launch_locked(s);
        if (err && err != -EAGAIN)
            atomic_store(&s->failed, true);
    }
    pthread_mutex_unlock(&s->lock);
}

/* --- Slots ----------------------------------------------------------------------------------- */

static int take_slot(struct copy_service *s)
{
    uint32_t free = atomic_load(&s->free);

    while (free) {
        int slot = __builtin_ctz(free);
        if (atomic_compare_exchange_weak(&s->free, &free, free & ~(1u << slot)))
            return slot;
    }
    return -1;
}

int copy_service_claim(struct copy_service *s)
{
    uint64_t now = now_ns();
    uint64_t since_ns = now - atomic_exchange(&s->last_ns, now);

    if (atomic_load(&s->failed) || now < atomic_load(&s->avoid_until_ns))
        return -1;
    if (is_there(s))
        return take_slot(s);
    if (since_ns < FOLLOWS_NS && has_left(s))
        copy_service_launch(s);
    return -1;
}

void copy_service_release(struct copy_service *s, int slot)
{
    if (!(atomic_load(&s->given_up) & 1u << slot))
        atomic_fetch_or(&s->free, 1u << slot);
}

char *copy_service_staging(const struct copy_service *s, int slot)
{
    return s->memory + HEAD + (size_t)slot * GD_COPIES_STAGING;
}

/* --- Copies ---------------------------------------------------------------------------------- */

/* What was stored before, the staging included, is visible to the block that takes the words. */
static void copy_service_store_words(struct copy_service *s, int slot, uint32_t number,
                                     const union gd_copy *copy)
{
    for (unsigned i = 0; i < GD_COPY_WORDS; i++)
        __atomic_store_n(&s->copies->slots[slot].words[i],
                         number ? (uint64_t)number << 32 | copy->words[i] : 0, __ATOMIC_RELEASE);
}

/* 0: the copy is made; 1: the block left without it; -errno. */
static int copy_service_wait_for(struct copy_service *s, int slot, uint32_t number)
{
    uint64_t start_ns = now_ns(), check_ns = CHECK_NS, waited_ns = 0;
    int err = 0;

    for (unsigned polls = 1; !err; polls++) {
        bool left = has_left(s);
        if (load_word(&s->copies->done[slot]) == number)
            return 0;
        if (left)
            return 1;
        if (polls % CLOCK_POLLS)
            continue;
        waited_ns = now_ns() - start_ns;
        if (waited_ns >= s->slow_ns)
            atomic_store(&s->avoid_until_ns, start_ns + waited_ns + AVOID_NS);
        if (waited_ns >= s->patience_ns)
            err = gpunvme_fail(-ETIMEDOUT, "a copy to the GPU has not ended for %llu s",
                               (unsigned long long)(s->patience_ns / NS_PER_S));
        else if (waited_ns >= check_ns)
            err = cuda_driver_stream_check(s->cuda, s->device, s->stream);
        check_ns = waited_ns >= check_ns ? waited_ns + CHECK_NS : check_ns;
    }
    return err;
}

/*
 * A warp that has loaded all words of the slot makes the copy when the GPU lets it go on; any other
 * finds none.
 */
static void copy_service_give_up(struct copy_service *s, int slot, const union gd_copy *copy)
{
    s->lost[slot] = *copy;
    pthread_mutex_lock(&in_doubt.lock);
    if (!atomic_fetch_or(&s->given_up, 1u << slot)) {
        s->next = in_doubt.first;
        in_doubt.first = s;
    }
    pthread_mutex_unlock(&in_doubt.lock);
    copy_service_store_words(s, slot, 0, copy);
}

/*
 * As copy_service_copy(); 1: there is no block. After an error `posted` stays, so that no block
 * follows the one that is there.
 */
static int copy_by_block(struct copy_service *s, int slot, const union gd_copy *copy)
{
    uint32_t number = gq_tagged_slot_next(load_word(&s->copies->done[slot]));
    int err = 1;

    atomic_fetch_add(&s->posted, 1);
    if (is_there(s)) {
        copy_service_store_words(s, slot, number, copy);
        err = copy_service_wait_for(s, slot, number);
    }
    if (err == 1) /* no block polls the slot any more, or yet */
        copy_service_store_words(s, slot, 0, copy);
    if (err == -ETIMEDOUT)
        copy_service_give_up(s, slot, copy);
    if (err < 0)
        atomic_store(&s->failed, true);
    else
        atomic_fetch_sub(&s->posted, 1);
    return err;
}

int copy_service_copy(struct copy_service *s, int slot, uint64_t dst, size_t first, size_t len)
{
    const union gd_copy copy = {.dst = dst, .first = (uint32_t)first, .len = (uint32_t)len};
    uint64_t src = (uintptr_t)copy_service_staging(s, slot) + first;
    int err = copy_by_block(s, slot, &copy);

    if (err <= 0)
        return err;
    err = cuda_driver_copy_start(s->cuda, s->device, s->engine, dst, src, len);
    return err ? err : cuda_driver_copy_wait(s->cuda, s->device, s->engine);
}

/* The kernels of a context that has failed have ended. */
static bool may_write(struct copy_service *s, uint64_t addr, size_t len)
{
    uint32_t slots = atomic_load(&s->given_up);
    bool overlaps = false;

    for (; slots; slots &= slots - 1) {
        const union gd_copy *lost = &s->lost[__builtin_ctz(slots)];
        overlaps |= lost->dst < addr + len && addr < lost->dst + lost->len;
    }
    return overlaps && !has_left(s) && !cuda_driver_stream_check(s->cuda, s->device, s->stream);
}

bool copy_services_may_write(int device, uint64_t addr, size_t len)
{
    bool may = false;

    if (device == CUDA_NO_DEVICE || !in_doubt.first)
        return false;
    pthread_mutex_lock(&in_doubt.lock);
    for (struct copy_service *s = in_doubt.first; s && !may; s = s->next)
        may = s->device == device && may_write(s, addr, len);
    pthread_mutex_unlock(&in_doubt.lock);
    return may;
}
