/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Resets, enables and shuts down a controller by CC and CSTS (Base 3.5.1,
 * 3.6.1).
 */
#include <errno.h>
#include <nvme/types.h>

#include "blockdev/nvme/nvme_identify.h"
#include "blockdev/nvme/nvme_internal.h"
#include "support/clock.h"
#include "support/wait.h"

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
        /* Another process has disabled it meanwhile, so it will not become ready. */
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
    /* Without an IOMMU silent registers do not prove that it has stopped. */
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
