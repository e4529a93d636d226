/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * State of a controller that all parts of the driver read: health, epoch,
 * doorbells.
 */
#include <nvme/types.h>

#include "blockdev/nvme/nvme_internal.h"

/*
 * Readers do not hold the admin lock. Release and acquire make a reader that
 * sees the flag also see its cause.
 */
static enum nvme_health health(const struct nvme_ctrlr *c)
{
    return __atomic_load_n(&c->health, __ATOMIC_ACQUIRE);
}

bool nvme_ctrlr_failed(const struct nvme_ctrlr *c)
{
    return health(c) == NVME_FAILED;
}

bool nvme_ctrlr_healthy(const struct nvme_ctrlr *c)
{
    return health(c) == NVME_HEALTHY;
}

void nvme_ctrlr_mark_failed(struct nvme_ctrlr *c)
{
    enum nvme_health healthy = NVME_HEALTHY;

    /* NVME_FAILED is final, so only a healthy controller changes. */
    __atomic_compare_exchange_n(&c->health, &healthy, NVME_UNHEALTHY, false, __ATOMIC_ACQ_REL,
                                __ATOMIC_ACQUIRE);
}

void nvme_ctrlr_fail(struct nvme_ctrlr *c, bool settled)
{
    __atomic_store_n(&c->settled, settled, __ATOMIC_RELEASE);
    __atomic_store_n(&c->health, NVME_FAILED, __ATOMIC_RELEASE);
}

bool nvme_ctrlr_replaced(const struct nvme_ctrlr *c)
{
    return __atomic_load_n(&c->replaced, __ATOMIC_ACQUIRE);
}

void nvme_ctrlr_set_taken(struct nvme_ctrlr *c)
{
    __atomic_store_n(&c->taken, true, __ATOMIC_RELEASE);
}

bool nvme_ctrlr_taken(const struct nvme_ctrlr *c)
{
    return __atomic_load_n(&c->taken, __ATOMIC_ACQUIRE);
}

bool nvme_ctrlr_settled(const struct nvme_ctrlr *c)
{
    return !nvme_ctrlr_failed(c) || __atomic_load_n(&c->settled, __ATOMIC_ACQUIRE);
}

unsigned nvme_ctrlr_epoch(const struct nvme_ctrlr *c)
{
    /* Acquire: a reader of the new epoch sees what the reset has set up. */
    return __atomic_load_n(&c->epoch, __ATOMIC_ACQUIRE);
}

void nvme_ctrlr_progress(struct nvme_ctrlr *c)
{
    /* Reading first keeps the cache line shared between the polling threads. */
    if (__atomic_load_n(&c->retries, __ATOMIC_RELAXED))
        __atomic_store_n(&c->retries, 0, __ATOMIC_RELAXED);
}

bool nvme_ctrlr_alive(struct nvme_ctrlr *c)
{
    bool paused = nvme_is_paused(c);
    uint32_t csts;

    if (nvme_ctrlr_failed(c))
        return false;
    csts = nvme_csts(c);
    if (csts == UINT32_MAX && (paused || nvme_is_paused(c)))
        return true;
    /* All-ones, the value of a device that is gone, include the fatal bit. */
    return (csts & (NVME_CSTS_FATAL | NVME_CSTS_READY)) == NVME_CSTS_READY;
}

size_t nvme_doorbell_stride(const struct nvme_ctrlr *c)
{
    return (size_t)4 << NVME_CAP_DSTRD(c->cap);
}

volatile uint32_t *nvme_ctrlr_doorbell(const struct nvme_ctrlr *c, unsigned index)
{
    return c->t->doorbells + index * (nvme_doorbell_stride(c) / sizeof(uint32_t));
}

static uint64_t state_count_of(const uint64_t *counter)
{
    return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

void nvme_ctrlr_counters(const struct nvme_ctrlr *c, struct nvme_counters *out)
{
    *out = (struct nvme_counters){.errors = state_count_of(&c->counters.errors),
                                  .timeouts = state_count_of(&c->counters.timeouts),
                                  .aborts = state_count_of(&c->counters.aborts),
                                  .recreates = state_count_of(&c->counters.recreates),
                                  .resets = state_count_of(&c->counters.resets)};
}

const struct nvme_ctrlr_info *nvme_ctrlr_info(const struct nvme_ctrlr *c)
{
    return &c->info;
}

struct nvme_transport *nvme_ctrlr_transport(struct nvme_ctrlr *c)
{
    return c->t;
}
