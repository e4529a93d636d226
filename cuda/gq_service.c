/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements the host's side of the service. */
#include "cuda/gq_service.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

void gq_service_init(struct gq_service *s, struct gq_service_memory *memory, uint64_t device,
                     int (*launch_kernel)(void *ctx, const struct gq_service_launch *l), void *ctx)
{
    *s = (struct gq_service){
        .memory = memory,
        .launch = {.memory = (struct gq_service_memory *)(uintptr_t)device, .slots = 1},
        .launch_kernel = launch_kernel,
        .ctx = ctx};
    pthread_mutex_init(&s->lock, NULL);
    for (unsigned i = 0; i < GQ_SERVICE_SLOTS; i++)
        pthread_mutex_init(&s->claims[i], NULL);
}

void gq_service_destroy(struct gq_service *s)
{
    for (unsigned i = 0; i < GQ_SERVICE_SLOTS; i++)
        pthread_mutex_destroy(&s->claims[i]);
    pthread_mutex_destroy(&s->lock);
}

uint32_t gq_service_launched(const struct gq_service *s)
{
    return __atomic_load_n(&s->launch.number, __ATOMIC_ACQUIRE);
}

/* The difference is signed because numbers of launches wrap. */
bool gq_service_has_ended(const struct gq_service *s, uint32_t launch)
{
    return (int32_t)(__atomic_load_n(&s->memory->ended[0], __ATOMIC_ACQUIRE) - launch) >= 0;
}

bool gq_service_is_unserved(const struct gq_service *s)
{
    return gq_service_has_ended(s, gq_service_launched(s));
}

static bool is_usable(const struct gq_service *s, uint32_t slot)
{
    uint32_t started = __atomic_load_n(&s->memory->slots[slot].started, __ATOMIC_RELAXED);

    return slot == 0 || started == gq_service_launched(s);
}

static void count_user(struct gq_service *s)
{
    uint32_t users = __atomic_add_fetch(&s->users, 1, __ATOMIC_RELAXED);
    uint32_t most = __atomic_load_n(&s->most_users, __ATOMIC_RELAXED);

    while (users > most && !__atomic_compare_exchange_n(&s->most_users, &most, users, false,
                                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

int gq_service_claim(struct gq_service *s, bool waits)
{
    uint32_t slots = __atomic_load_n(&s->launch.slots, __ATOMIC_RELAXED), slot;

    count_user(s);
    for (slot = 0; slot < slots; slot++) {
        if (is_usable(s, slot) && pthread_mutex_trylock(&s->claims[slot]) == 0)
            return (int)slot;
    }
    if (waits) {
        assert(slots > 0 && "a service has a slot");
        slot = __atomic_load_n(&s->users, __ATOMIC_RELAXED) % slots;
        slot = is_usable(s, slot) ? slot : 0;
        pthread_mutex_lock(&s->claims[slot]);
        return (int)slot;
    }
    __atomic_sub_fetch(&s->users, 1, __ATOMIC_RELAXED);
    return -EBUSY;
}

void gq_service_release(struct gq_service *s, int slot)
{
    pthread_mutex_unlock(&s->claims[slot]);
    __atomic_sub_fetch(&s->users, 1, __ATOMIC_RELAXED);
}

uint32_t gq_service_post(struct gq_service *s, int slot, const void *item, size_t len)
{
    uint64_t *words = s->memory->slots[slot].words;
    uint32_t payload[GQ_SERVICE_WORDS] = {0}, number = s->numbers[slot] + 1;

    assert(len <= sizeof(payload));
    memcpy(payload, item, len);
    number = number ? number : 1;
    s->numbers[slot] = number;
    for (unsigned i = 0; i < GQ_SERVICE_WORDS; i++)
        __atomic_store_n(&words[i], (uint64_t)number << 32 | payload[i], __ATOMIC_RELEASE);
    return number;
}

void gq_service_retract(struct gq_service *s, int slot)
{
    for (unsigned i = 0; i < GQ_SERVICE_WORDS; i++)
        __atomic_store_n(&s->memory->slots[slot].words[i], 0, __ATOMIC_RELEASE);
}

/* The caller holds the lock. A failed launch leaves the number as it was: no kernel will end it. */
static int launch_locked(struct gq_service *s)
{
    uint32_t most = __atomic_load_n(&s->most_users, __ATOMIC_RELAXED);
    struct gq_service_launch next = s->launch;
    int err;

    most = most < GQ_SERVICE_SLOTS ? most : GQ_SERVICE_SLOTS;
    next.number++;
    next.slots = most > next.slots ? most : next.slots;
    __atomic_store_n(&s->launch.number, next.number, __ATOMIC_RELEASE);
    err = s->launch_kernel(s->ctx, &next);
    if (err)
        __atomic_store_n(&s->launch.number, next.number - 1, __ATOMIC_RELEASE);
    else
        __atomic_store_n(&s->launch.slots, next.slots, __ATOMIC_RELAXED);
    return err;
}

/* The lock keeps launches of other threads from taking the item before it is withdrawn. */
int gq_service_start(struct gq_service *s, int slot)
{
    int err = 0;

    pthread_mutex_lock(&s->lock);
    if (gq_service_is_unserved(s))
        err = launch_locked(s);
    if (err)
        gq_service_retract(s, slot);
    pthread_mutex_unlock(&s->lock);
    return err;
}
