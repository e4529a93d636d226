/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Provides the controller's state that all parts of the driver use: health,
 * epoch and doorbells. Resets, enables and shuts down the controller by CC and
 * CSTS (BASE 3.5.1, 3.6.1).
 */
#include <errno.h>
#include <nvme/types.h>

#include "blockdev/nvme/nvme_identify.h"
#include "blockdev/nvme/nvme_internal.h"
#include "support/clock.h"
#include "support/wait.h"

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

#define CAP_TO_UNIT_MS 500u
#define CSS_NVM        0x1u
#define SQE_LOG2       6u
#define CQE_LOG2       4u

#define REGS_GONE      0xffffffffu /* value of reads from a device that is gone */
#define SILENT_POLL_MS 10u         /* such reads are bus errors, so they are made rarely */

static uint32_t enable_read(struct nvme_ctrlr *c, uint32_t reg)
{
    uint32_t value = (uint32_t)c->t->ops->read(c->t, reg, 4);

    if (value == REGS_GONE)
        __atomic_store_n(&c->unanswered, true, __ATOMIC_RELAXED);
    return value;
}

int nvme_check_cap(const struct nvme_ctrlr *c, const char **what)
{
    size_t admin_doorbells = (size_t)8 << NVME_CAP_DSTRD(c->cap);

    if (c->cap == UINT64_MAX)
        return nvme_wrong(what, -EIO, "its registers read all-ones, the device does not answer");
    if (c->cap == 0)
        return nvme_wrong(
            what, -ENODEV,
            "its registers read 0: it is a virtual function (SR-IOV) that is offline, give it "
            "queues and set it online with nvme virt-mgmt, or its memory space is off");
    if (!(NVME_CAP_CSS(c->cap) & CSS_NVM))
        return nvme_wrong(what, -ENOTSUP, "it has no NVM command set (CAP.CSS)");
    if (NVME_CAP_MPSMIN(c->cap) > NVME_CAP_MPSMAX(c->cap) || NVME_CAP_MQES(c->cap) == 0)
        return nvme_wrong(what, -EPROTO, "its capabilities cannot be (CAP.MPSMIN, CAP.MQES)");
    if (NVME_CAP_MPSMIN(c->cap) > 0)
        return nvme_wrong(what, -ENOTSUP, "it has no 4 KiB memory pages (CAP.MPSMIN)");
    if (admin_doorbells > c->t->doorbells_len)
        return nvme_wrong(what, -EPROTO, "its doorbell stride exceeds its doorbells (CAP.DSTRD)");
    return 0;
}

uint32_t nvme_csts(struct nvme_ctrlr *c)
{
    return enable_read(c, NVME_REG_CSTS);
}

/*
 * Waits until (CSTS & mask) == value. If stop_on_fatal is set, CSTS.CFS ends
 * the wait. Callers allow one unit more than CAP.TO, because a controller that
 * reports 0 still needs a moment.
 */
static int wait_csts(struct nvme_ctrlr *c, uint32_t mask, uint32_t value, unsigned ms,
                     bool stop_on_fatal)
{
    uint64_t deadline = deadline_after_ms(ms);
    struct poll_wait wait = {0};

    for (;;) {
        bool late = now_ns() >= deadline;
        uint32_t csts = nvme_csts(c);

        if (csts == REGS_GONE)
            return -EIO;
        if ((csts & mask) == value)
            return 0;
        if (stop_on_fatal && csts & NVME_CSTS_FATAL)
            return -EIO;
        /* Another process has disabled the controller meanwhile, so RDY will not be set. */
        if ((late || poll_wait_once(&wait)) && value == NVME_CSTS_READY &&
            !(enable_read(c, NVME_REG_CC) & NVME_CC_ENABLE))
            return -EIO;
        if (late)
            return -ETIMEDOUT;
    }
}

uint64_t nvme_cap(struct nvme_ctrlr *c)
{
    uint64_t cap = c->t->ops->read(c->t, NVME_REG_CAP, 8);

    if (!nvme_cap_answered(cap))
        __atomic_store_n(&c->unanswered, true, __ATOMIC_RELAXED);
    return cap;
}

bool nvme_silent(struct nvme_ctrlr *c)
{
    return !nvme_cap_answered(nvme_cap(c));
}

bool nvme_is_paused(const struct nvme_ctrlr *c)
{
    return c->t->ops->silent && c->t->ops->silent(c->t);
}

bool nvme_gone(struct nvme_ctrlr *c)
{
    uint64_t deadline = deadline_after_ms(NVME_GONE_MS);

    for (;;) {
        bool late = now_ns() >= deadline;

        if (!nvme_silent(c))
            return false;
        if (late && !nvme_is_paused(c))
            return true;
        wait_ms(SILENT_POLL_MS);
    }
}

void nvme_answered(struct nvme_ctrlr *c)
{
    __atomic_store_n(&c->unanswered, false, __ATOMIC_RELAXED);
}

bool nvme_overtaken(struct nvme_ctrlr *c)
{
    return __atomic_load_n(&c->unanswered, __ATOMIC_RELAXED) ||
           (!(enable_read(c, NVME_REG_CC) & NVME_CC_ENABLE) && !(nvme_csts(c) & NVME_CSTS_READY));
}

/* Some controllers hang if a register is read while they stop. */
static unsigned pause_ms(const struct nvme_ctrlr *c)
{
    return c->quirks & NVME_QUIRK_SLOW_DISABLE ? NVME_SLOW_DISABLE_MS : 0;
}

static unsigned rdy_ms(const struct nvme_ctrlr *c)
{
    return (NVME_CAP_TO(c->cap) + 1) * CAP_TO_UNIT_MS;
}

unsigned nvme_ready_ms(const struct nvme_ctrlr *c)
{
    return rdy_ms(c) + pause_ms(c);
}

int nvme_disable(struct nvme_ctrlr *c)
{
    uint32_t cc = enable_read(c, NVME_REG_CC);

    if (cc == REGS_GONE)
        return -EIO;
    if (cc & NVME_CC_ENABLE) {
        c->t->ops->write(c->t, NVME_REG_CC, cc & ~NVME_CC_ENABLE, 4);
        wait_ms(pause_ms(c));
    }
    return wait_csts(c, NVME_CSTS_READY, 0, rdy_ms(c), false);
}

int nvme_disable_any(struct nvme_ctrlr *c)
{
    uint32_t cc = enable_read(c, NVME_REG_CC);

    if (cc == REGS_GONE)
        return -EIO;
    /* If another process has set EN, EN may change only after RDY has followed. */
    if (cc & NVME_CC_ENABLE)
        wait_csts(c, NVME_CSTS_READY, NVME_CSTS_READY, rdy_ms(c), true);
    return nvme_disable(c);
}

int nvme_device_reset(struct nvme_ctrlr *c)
{
    int rc = c->t->ops->reset ? c->t->ops->reset(c->t) : -ENOTSUP;

    if (rc)
        return rc;
    wait_ms(pause_ms(c));
    return nvme_disable(c);
}

bool nvme_quiesce(struct nvme_ctrlr *c)
{
    /*
     * Without an IOMMU, silent registers do not prove that the controller has
     * stopped.
     */
    if (nvme_silent(c))
        return !c->t->physical;
    return nvme_disable(c) == 0 || nvme_device_reset(c) == 0;
}

int nvme_enable(struct nvme_ctrlr *c)
{
    uint32_t entries = NVME_ADMIN_DEPTH - 1;
    uint32_t cc =
        NVME_CC_ENABLE | SQE_LOG2 << NVME_CC_IOSQES_SHIFT | CQE_LOG2 << NVME_CC_IOCQES_SHIFT;

    c->t->ops->write(c->t, NVME_REG_AQA, entries << 16 | entries, 4);
    c->t->ops->write(c->t, NVME_REG_ASQ, c->admin_mem.iova, 8);
    c->t->ops->write(c->t, NVME_REG_ACQ, c->admin_mem.iova + NVME_PAGE_SIZE, 8);
    c->t->ops->write(c->t, NVME_REG_CC, cc, 4);
    return wait_csts(c, NVME_CSTS_READY, NVME_CSTS_READY, rdy_ms(c), true);
}

void nvme_shutdown(struct nvme_ctrlr *c)
{
    uint32_t cc = enable_read(c, NVME_REG_CC);

    if (cc == REGS_GONE || !(cc & NVME_CC_ENABLE))
        return;
    c->t->ops->write(c->t, NVME_REG_CC, (cc & ~NVME_CC_SHN_BITS) | NVME_CC_SHN_ORDERLY, 4);
    wait_csts(c, NVME_CSTS_SHST_BITS, NVME_CSTS_SHST_COMPLETE, c->shutdown_ms, true);
}
